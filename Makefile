# Two commands do everything: `make demo` and `make test`. Both install what they need into .venv first.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
PIP := $(BIN)/pip --disable-pip-version-check

# The tests that other versions than the newest run: workers under fork and spawn, threads, resume, every format, the
# command. They take minutes, not the whole suite's time.
MATRIX_TESTS := \
	tests/core tests/house/test_imports.py \
	tests/conformance/test_collate.py tests/conformance/test_hooks.py \
	tests/conformance/test_iterable.py tests/conformance/test_pinning.py tests/conformance/test_start_methods.py \
	tests/conformance/test_validation.py tests/conformance/test_workers.py \
	tests/workers/test_threads.py \
	tests/epoch/test_stateful.py tests/epoch/test_epochs_after.py \
	tests/data/test_stream.py tests/data/formats/test_round_trip.py tests/data/formats/test_other_libraries.py \
	tests/data/formats/test_other_stores.py tests/transforms/test_adapters.py tests/shared_memory/test_codec.py \
	tests/observe/test_writers.py tests/cli/test_inspect.py tests/cli/test_run.py tests/cli/test_wrong_calls.py
MATRIX_MARKS := not stress and not clients
LOWEST := .venv-matrix/lowest
LOWEST_STAMP := $(LOWEST)/.installed

CLIENTS := .venv-clients
CLIENTS_STAMP := $(CLIENTS)/.installed

.PHONY: demo test test-clients test-matrix test-lowest test-trixie stress check lint types contracts bench tables clean install

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
	@$(BIN)/python -m pytest -n 2 -m "not alone and not stress and not clients"
	@$(BIN)/python -m pytest -m "alone and not stress and not clients"

# Real frameworks with torch's loader, with ours, and under `headrace run`; they have an environment of their own.
test-clients: $(CLIENTS_STAMP)
	@$(CLIENTS)/bin/python -m pytest -m clients -v tests/clients

$(CLIENTS_STAMP): pyproject.toml constraints.txt
	@echo "Installing the frameworks into $(CLIENTS) (a few minutes) ..."
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt torch
	@$(CLIENTS)/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable '.[clients]'
	@touch $@

# Other versions than those of .venv: the lowest that pyproject.toml allows, and those of Debian trixie.
test-matrix: test-lowest test-trixie

test-lowest: $(LOWEST_STAMP)
	@$(LOWEST)/bin/python -m pytest -n 2 -q -m "$(MATRIX_MARKS)" $(MATRIX_TESTS)

# torch stays as it is pinned: of its lowest version, PyPI has builds with CUDA only. Debian's is that version.
$(LOWEST_STAMP): pyproject.toml constraints.txt
	@echo "Installing the lowest versions into $(LOWEST) (about a minute) ..."
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt torch uv
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
		--constraint constraints.txt --editable '.[dev]'
	@touch $@

test-trixie:
	@.ci/trixie -n 2 -q -m "$(MATRIX_MARKS)" $(MATRIX_TESTS)

stress: $(STAMP)
	@$(BIN)/python -m pytest -m stress tests
	@$(BIN)/python tests/data/formats/fuzz.py --seconds $(or $(SECONDS),300) --seed $(or $(SEED),$$(date +%s))

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
	rm -rf $(VENV) $(CLIENTS) .venv-matrix .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache headrace-demo
