# The first call builds .venv from constraints.txt; later calls reuse it.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

# Tests run in two processes; more threads than that would only fight over the cores.
export OMP_NUM_THREADS ?= 1

.PHONY: help demo test check format lint types bench soak evidence docs clean

help:
	@echo "make demo   train and compare on embedded data, about two minutes on two cores"
	@echo "make test   all tests, doctests and README examples"
	@echo "make check  format, lint, types and make test"
	@echo "make bench  speed ratios, printed as a table"
	@echo "make soak   1000 kills, and spoiled files for an hour; MINUTES=5 for less"

$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt pip
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable . --group dev
	@touch $@

demo: $(READY)
	$(BIN)/macc run demo

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist loadgroup -q

format: $(READY)
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(READY)
	$(BIN)/mypy

check: lint types test

bench: export OMP_NUM_THREADS = 2
bench: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group bench
	$(BIN)/python -m benchmarks

soak: $(READY)
	PYTHONPATH=tests $(BIN)/python -m soak --minutes $(or $(MINUTES),60) --kills $(or $(KILLS),$(if $(MINUTES),0,1000))

evidence: $(READY)
	$(BIN)/python -m benchmarks.first_evidence

docs: $(READY)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --group docs
	$(BIN)/sphinx-build --fail-on-warning --keep-going docs site

clean:
	rm -rf $(VENV) build dist site docs/gallery docs/commands.md .pytest_cache .mypy_cache .ruff_cache
