# `make demo` shows the package, `make test` tests it; `make` alone lists all commands. Each installs what it needs first.

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
	tests/workers/test_threads.py tests/samplers/test_packed.py tests/samplers/test_packed_mixtures.py \
	tests/data/test_packed_stream.py \
	tests/batches/test_collate_packed.py tests/transforms/test_tokenization.py \
	tests/epoch/test_stateful.py tests/epoch/test_epochs_after.py tests/epoch/test_hugging_face_streams.py \
	tests/data/test_stream.py tests/data/formats/test_round_trip.py tests/data/formats/test_other_libraries.py \
	tests/data/formats/test_other_stores.py tests/storage/test_fetcher.py tests/storage/test_io_process.py \
	tests/storage/test_nginx.py tests/storage/test_seaweed.py tests/transforms/test_adapters.py tests/shared_memory/test_codec.py \
	tests/sources/test_kafka.py tests/sources/test_decoding.py tests/sources/test_every_source.py \
	tests/observe/test_writers.py tests/cli/test_inspect.py tests/cli/test_run.py tests/cli/test_wrong_calls.py
LOWEST := .venv-matrix/lowest
LOWEST_STAMP := $(LOWEST)/.installed

CLIENTS_LOWEST := .venv-matrix/clients-lowest
CLIENTS_LOWEST_STAMP := $(CLIENTS_LOWEST)/.installed

DEMO := .venv-demo
DEMO_STAMP := $(DEMO)/.installed

CLIENTS := .venv-clients
CLIENTS_STAMP := $(CLIENTS)/.installed

.PHONY: help demo docs package test test-part test-all test-clients test-touched-clients test-matrix test-lowest test-clients-lowest test-trixie stress check check-part lint types contracts bench tables clean install

# The first target, so that `make` alone prints it. A command is listed by the words behind its `##`.
help:
	@echo "Commands, and how long they take on two cores:"
	@sed -n 's/^\([a-z][a-z-]*\):[^#]*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{printf "%-20s%s\n", $$1, $$2}'

install: $(STAMP)  ## .venv with everything for development; a minute

# torch comes first and pinned: a plain `torch` would draw in several GB of CUDA packages.
$(STAMP): pyproject.toml constraints.txt
	@echo "Installing into $(VENV) (about a minute) ..."
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(PIP) install --quiet --constraint constraints.txt torch
	@$(PIP) install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $(STAMP)

# In an environment of its own, which installs in seconds what takes a minute for development.
# Pip would compile all modules of torch: Python compiles those that are imported, which takes a minute less.
demo: $(DEMO_STAMP)  ## shows what headrace does, beside torch and torchdata; two minutes
	@$(DEMO)/bin/headrace demo

$(DEMO_STAMP): pyproject.toml constraints.txt
	@echo "Installing into $(DEMO) (less than a minute) ..."
	@test -x $(DEMO)/bin/python || $(PYTHON) -m venv $(DEMO)
	@$(DEMO)/bin/pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt torch
	@$(DEMO)/bin/pip --disable-pip-version-check install --quiet --no-compile --constraint constraints.txt --editable '.[demo]' torchdata
	@touch $@

# tests/selection.py says which cases are quick and which are thorough. Those marked `alone` run behind all others.
QUICK := not thorough and not stress and not clients
ALL := not stress and not clients
# Which fifth of the thorough tests `test-part` runs. It changes from commit to commit; outside of a checkout it is the
# first.
PART ?= $(shell echo $$(( 0x$$(git rev-parse --short=7 HEAD 2>/dev/null || echo 0) % 5 + 1 )))
# Those that may run beside others run in two rounds, since a process that has imported less forks faster: folders whose
# tests start many workers and import little, then all others. The rules of the house are left to `contracts`.
LIGHT := $(addprefix tests/,batches conformance epoch faults loader samplers shared_memory workers)
OTHERS = $(filter-out $(LIGHT) tests/house tests/clients,$(patsubst %/,%,$(filter-out %/__pycache__/,$(wildcard tests/*/))))
# The part of those that run alone imports only the files that have such tests: to import all of them takes ten seconds.
ALONE = $(sort $(shell grep -rl --include='test_*.py' 'mark\.alone' tests))

# Pytest and each program that a test starts would compile all modules anew.
unexport PYTHONDONTWRITEBYTECODE

# How many tests run at a time.
JOBS ?= 2
# $(call run-tests,marks,options): all rounds, also where one has failed.
define run-tests
@failed=; \
echo "1 of 3: orders, batches and workers ..."; \
$(BIN)/python -m pytest -n $(JOBS) $(2) -m "not alone and $(1)" $(LIGHT) || failed="$$failed 1"; \
echo "2 of 3: data, sources, commands and the rest ..."; \
$(BIN)/python -m pytest -n $(JOBS) $(2) -m "not alone and $(1)" $(OTHERS) || failed="$$failed 2"; \
echo "3 of 3: what runs alone ..."; \
$(BIN)/python -m pytest $(2) -m "alone and $(1)" $(ALONE) || failed="$$failed 3"; \
if [ -n "$$failed" ]; then echo "Of the 3 rounds, these failed (see above):$$failed"; exit 1; fi; \
echo "All 3 passed."
endef

test: $(STAMP)  ## the quick tests, which show each ability once; eight minutes
	$(call run-tests,$(QUICK),-q)

test-part: $(STAMP)  ## the quick tests, and a fifth of the others: PART=1 to 5, or by the commit
	@echo "Of the thorough tests, this runs part $(PART) of 5."
	$(call run-tests,$(ALL),-q --durations=10 --part $(PART)/5)

test-all: $(STAMP)  ## all tests, with the slowest ones listed; half an hour
	$(call run-tests,$(ALL),--durations=25)

# Real frameworks with torch's loader, with ours, and under `headrace run`; they have an environment of their own.
test-clients: $(CLIENTS_STAMP)  ## real frameworks, in an environment of their own; half an hour
	@$(CLIENTS)/bin/python -m pytest -m clients -v tests/clients
	@.ci/clients --passed

# A fifth of those that a change can touch: .ci/clients.passed says with which code they passed last.
test-touched-clients:
	@touched="$$(.ci/clients)"; \
	if [ -z "$$touched" ]; then echo "No change since the last run can touch a framework: these tests are left out."; \
	else $(MAKE) --no-print-directory $(CLIENTS_STAMP) \
	&& echo "Of the tests of frameworks that the change can touch, this runs part $(PART) of 5." \
	&& $(CLIENTS)/bin/python -m pytest -m clients -v --durations=10 --part $(PART)/5 $$touched; fi

# Older versions of torchtitan import triton, which comes with builds of torch for CUDA only.
TORCHTITAN := torchtitan==0.3.0 spmd_types==0.2.3

# $(call install-apart,environment,packages): those that would draw in what they can do without. LitData asks for
# torchvision, of which PyPI has builds for torch with CUDA only, and for the newest boto3, which does not go with what
# others here need; torchtitan asks for an older `datasets`. Of those, its checkpoints need tyro and spmd_types.
define install-apart
@$(1)/bin/pip freeze --exclude-editable > $(1)/installed.txt
@$(1)/bin/pip --disable-pip-version-check install --quiet --constraint $(1)/installed.txt boto3 tyro
@$(1)/bin/pip --disable-pip-version-check install --quiet --no-deps $(2)
endef

$(CLIENTS_STAMP): pyproject.toml constraints.txt
	@echo "Installing the frameworks into $(CLIENTS) (a few minutes) ..."
	@test -x $(CLIENTS)/bin/python || $(PYTHON) -m venv $(CLIENTS)
	@$(CLIENTS)/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt torch
	@$(CLIENTS)/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable '.[clients]'
	$(call install-apart,$(CLIENTS),litdata $(TORCHTITAN))
	@touch $@

# Other versions than those of .venv: the lowest that pyproject.toml allows, and those of Debian trixie.
test-matrix: test-lowest test-clients-lowest test-trixie  ## other versions: the next three

test-lowest: $(LOWEST_STAMP)  ## a part of the tests with the lowest versions that pyproject.toml allows
	@$(LOWEST)/bin/python -m pytest -n 2 -q -m "$(QUICK)" $(MATRIX_TESTS)

# torch stays as it is pinned: of its lowest version, PyPI has builds with CUDA only. Debian's is that version. It has
# brought the newest fsspec, and uv would choose what goes with that.
$(LOWEST_STAMP): pyproject.toml constraints.txt
	@echo "Installing the lowest versions into $(LOWEST) (about a minute) ..."
	@test -x $(LOWEST)/bin/python || $(PYTHON) -m venv $(LOWEST)
	@$(LOWEST)/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt torch uv
	@$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct \
		--reinstall-package fsspec --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Frameworks that many have not updated: what they do with the loader, and how they resume. The other tests of
# tests/clients are of formats, which `test-lowest` reads.
test-clients-lowest: $(CLIENTS_LOWEST_STAMP)  ## the frameworks in the lowest versions that pyproject.toml allows; fifteen minutes
	@$(CLIENTS_LOWEST)/bin/python -m pytest -m clients -v $(addprefix tests/clients/test_,clients.py resumed.py pages.py)

# fsspec as above.
$(CLIENTS_LOWEST_STAMP): pyproject.toml constraints.txt
	@echo "Installing the lowest versions of frameworks into $(CLIENTS_LOWEST) (a few minutes) ..."
	@test -x $(CLIENTS_LOWEST)/bin/python || $(PYTHON) -m venv $(CLIENTS_LOWEST)
	@$(CLIENTS_LOWEST)/bin/pip --disable-pip-version-check install --quiet --constraint constraints.txt torch uv
	@$(CLIENTS_LOWEST)/bin/uv pip install --quiet --python $(CLIENTS_LOWEST)/bin/python --resolution lowest-direct \
		--reinstall-package fsspec --constraint constraints.txt --editable '.[clients]'
	$(call install-apart,$(CLIENTS_LOWEST),litdata==0.2.40 $(TORCHTITAN))
	@touch $@

test-trixie:  ## the same part on Debian trixie: Python 3.13, torch 2.6 (needs root and debootstrap)
	@.ci/trixie -n 2 -q -m "$(QUICK)" $(MATRIX_TESTS)

stress: $(STAMP)  ## further cases of the tests, and damaged files for five minutes; SEED=... SECONDS=...
	@$(BIN)/python -m pytest -m stress tests
	@$(BIN)/python tests/data/formats/fuzz.py --seconds $(or $(SECONDS),300) --seed $(or $(SEED),$$(date +%s))

check: lint types contracts test  ## what a change must pass before it is sent: the next three, and `make test`

check-part: lint types contracts test-part  ## the same with a fifth of the other tests: what CI runs first

lint: $(STAMP)  ## ruff
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .

types: $(STAMP)  ## mypy --strict
	@$(BIN)/mypy

contracts: $(STAMP)  ## which module may import which, and the rules of the house
	@$(BIN)/lint-imports
	@$(BIN)/python -m pytest -q tests/house

bench: $(STAMP)  ## all tables of docs/benchmarks/figures.md anew; an hour and a half
	@$(BIN)/python -m benchmarks page --all

tables: $(STAMP)  ## lists the benchmarks; TABLES="order tar" measures these tables anew
	@$(BIN)/python -m benchmarks $(if $(TABLES),page $(TABLES))

docs: $(STAMP)  ## the docs site of this version, into site/; half a minute
	@$(BIN)/python -m website

package: $(STAMP)  ## the wheel and the sdist, checked, into dist/; half a minute
	@rm -rf dist
	@$(BIN)/python -m build --outdir dist .
	@$(BIN)/twine check --strict dist/*
	@$(BIN)/check-wheel-contents dist/*.whl

clean:  ## removes the environments and what tools have left
	rm -rf $(VENV) $(CLIENTS) $(DEMO) .venv-matrix .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache dist site
