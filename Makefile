# Two commands do everything: `make demo` and `make test`. Both install what they need into .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/pip --disable-pip-version-check

CLIENTS := .venv-clients
CLIENTS_STAMP := $(CLIENTS)/.installed

.PHONY: demo test test-clients stress check lint types contracts bench tables clean install

install: $(STAMP)

# torch comes first and pinned: a plain `torch` would draw in several GB of CUDA packages.
$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (about a minute) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --constraint constraints.txt torch
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

demo: $(STAMP)
	@$(BIN)/headrace demo

test: $(STAMP)
	@$(BIN)/python -m pytest -n 2 -m "not alone and not stress"
	@$(BIN)/python -m pytest -m "alone and not stress"

# Real frameworks with torch's loader, with ours, and under `headrace run`; they have an environment of their own.
test-clients: $(CLIENTS_STAMP)
	@$(CLIENTS)/bin/python -m pytest -m clients -v tests/clients

$(CLIENTS_STAMP): pyproject.toml constraints.txt
	@echo "Installing the frameworks into $(CLIENTS) (a few minutes) ..."
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt torch
	@$(CLIENTS)/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable '.[clients]'
	@touch $@

stress: $(STAMP)
	@$(BIN)/python -m pytest -m stress tests
	@$(BIN)/python tests/formats/fuzz.py --seconds $(or $(SECONDS),300) --seed $(or $(SEED),$$(date +%s))

check: lint types contracts test

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)
	@$(BIN)/mypy

contracts: $(STAMP)
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q tests/house

bench: $(STAMP)
	@$(BIN)/python benchmarks/tables.py --all

tables: $(STAMP)
	@$(BIN)/python benchmarks/tables.py $(or $(TABLES),--list)

clean:
	rm -rf $(VENV) $(CLIENTS) .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache headrace-demo
