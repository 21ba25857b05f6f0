# macc on CPU builds of PyTorch. uv knows where these are; with `--build-arg TORCH=auto` it takes the
# builds for the graphics card that it finds.
#
#   docker build -t macc .
#   docker run --rm -v "$PWD:/work" macc evaluate predictions.npz
#
# Not built yet: there was no Docker engine where this was written.
FROM python:3.11-slim

ARG TORCH=cpu
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

RUN pip install uv && uv pip install --system --torch-backend "$TORCH" torch==2.13.0
COPY pyproject.toml README.md LICENSE constraints.txt /source/
COPY src /source/src
RUN pip install --constraint /source/constraints.txt "/source[data,report,parquet,sweep,export]"

RUN useradd --create-home macc
USER macc
WORKDIR /work
ENTRYPOINT ["macc"]
CMD ["--help"]
