# make demo    serve a real model, plant four faults, catch, capture and replay them
# make test    lint, types and tests
# Both do all their own set-up with any Python >= 3.11, and are quick when run again.

MODEL := smollm2-135m
VENV := .venv
BIN := $(VENV)/bin
TEST_WORKERS ?= 2
CONSTRAINTS := requirements/constraints.txt
INSTALLED := build/installed

.DEFAULT_GOAL := help
.PHONY: help setup model demo test lint types pytest format clean

help:
	@sed -n 's/^# \(make .*\)/\1/p' Makefile

setup: $(VENV)/.installed

$(BIN)/python:
	@python=$$(./requirements/find-python) || exit 1; \
	echo "==> virtual environment in $(VENV), from $$python"; \
	"$$python" -m venv $(VENV)

$(VENV)/.installed: pyproject.toml $(CONSTRAINTS) | $(BIN)/python
	@echo "==> installing checkengine and its pinned dependencies"
	@$(BIN)/python -m pip install --disable-pip-version-check -c $(CONSTRAINTS) setuptools wheel
	@$(BIN)/python -m pip install --disable-pip-version-check --no-build-isolation -c $(CONSTRAINTS) -e ".[dev]"
	@touch $@

model: setup
	@$(BIN)/checkengine models get $(MODEL)

demo: model
	@$(BIN)/checkengine demo

test: lint types pytest

lint: setup
	@echo "==> ruff"
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

# Types are checked on the package as a user gets it: a regular install, because a type checker cannot follow
# the namespace of an editable one. build/lib would carry deleted files into the wheel, so it goes first.
types: setup
	@echo "==> mypy on the installed package"
	@rm -rf build/lib build/bdist.* $(INSTALLED)
	@$(BIN)/python -m pip install --disable-pip-version-check --quiet --no-deps --no-build-isolation --target $(INSTALLED) .
	@MYPYPATH=$(INSTALLED) $(BIN)/mypy --config-file pyproject.toml -p checkengine

# Two processes with one thread each: two OpenMP threads in each of them would wait for each other on two cores.
pytest: setup model
	@echo "==> pytest"
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_WORKERS) --dist loadfile

format: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis checkengine-out
