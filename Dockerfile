# macc on CPU builds of PyTorch, from PyTorch's own index. An empty TORCH_INDEX takes torch from the
# usual index, on Linux with the CUDA libraries.
#
#   docker build -t macc .
#   docker run --rm -v "$PWD:/work" macc evaluate predictions.npz
#
# Not built yet: there was no Docker engine where this was written.
FROM python:3.11-slim

ARG TORCH_INDEX=""
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PYTHONUNBUFFERED=1

RUN pip install torch==2.13.0 ${TORCH_INDEX:+--index-url "$TORCH_INDEX"}
COPY pyproject.toml README.md LICENSE constraints.txt /source/
COPY src /source/src
RUN pip install --constraint /source/constraints.txt "/source[data,report,parquet,sweep,export]"

RUN useradd --create-home macc
USER macc
WORKDIR /work
ENTRYPOINT ["macc"]
CMD ["--help"]
