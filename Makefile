# Everything there is to do here. `make` alone lists it. POSIX make and sh only.
.POSIX:

PYTHON = python3
VENV = .venv
BIN = $(VENV)/bin
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
TESTS = tests
ARGS =
WORKERS = 2

# The rooms that do no I/O: nothing but their own tests can show that they are right, so they are held to more.
PURE = src/callstream/errors.py,src/callstream/events.py,src/callstream/jsonpath.py,src/callstream/jsonstream.py,src/callstream/jsonwriter.py,src/callstream/jsonshape.py,src/callstream/jsontree.py,src/callstream/wire/*,src/callstream/calls.py,src/callstream/agui/*
PURE_COVERAGE = 100

# One module a table, each run as `python -m bench.<name>`.
TABLES = preview decode rewrite journal hooks endtoend many

.PHONY: help venv test check format-check lint types imports coverage format demo bench crash docs clean

help: ## list these targets (default)
	@echo "make <target>"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-13s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "The first target that needs it makes $(VENV) (about two minutes). Another Python: make PYTHON=python3.12 test"
	@echo "Some tests only: make test TESTS=tests/test_architecture.py ARGS='-x -k layers'"

venv: $(VENV)/.installed-dev ## make .venv with all that tests and checks need

test: $(VENV)/.installed-dev ## run the tests
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(TESTS) $(ARGS)

check: format-check lint types imports coverage ## all that CI runs: format, lint, types, imports, tests, coverage
	@echo "==> all checks passed"

format-check: $(VENV)/.installed-dev
	@echo "==> format"
	@$(BIN)/ruff format --check --quiet . || { echo "run 'make format'" >&2; exit 1; }

lint: $(VENV)/.installed-dev
	@echo "==> lint"
	@$(BIN)/ruff check --quiet .

types: $(VENV)/.installed-dev ## check types only
	@echo "==> types"
	@$(BIN)/mypy

imports: $(VENV)/.installed-dev ## check who imports whom only
	@echo "==> imports"
	@PYTHONPATH=src $(BIN)/lint-imports --no-logo --cache-dir $(VENV)/.import_linter_cache

coverage: $(VENV)/.installed-dev ## run the tests and hold them to the coverage thresholds
	@echo "==> tests with coverage"
	@$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --cov --cov-report= --cov-fail-under=0 $(ARGS)
	@echo "==> coverage, all rooms"
	@$(BIN)/coverage report
	@echo "==> coverage, pure rooms: at least $(PURE_COVERAGE) %"
	@$(BIN)/coverage report --include='$(PURE)' --fail-under=$(PURE_COVERAGE)

format: $(VENV)/.installed-dev ## format the code, and repair what lint can repair
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

demo: $(VENV)/.installed-demo ## an agent, its server, the inspector and a journal; no account needed (ARGS=--terminal)
	@$(BIN)/python -m callstream demo $(ARGS) || [ $$? -eq 130 ]

bench: $(VENV)/.installed-bench ## measure Callstream beside other libraries, on the same data
	@for table in $(TABLES); do \
	  if [ -f bench/$$table.py ]; then \
	    echo "==> bench/$$table.py"; $(BIN)/python -m bench.$$table || exit 1; \
	  else \
	    echo "==> bench/$$table.py is not there yet, skipped"; \
	  fi; \
	done

crash: $(VENV)/.installed-dev ## kill a writing process again and again, and read what its journal kept
	@[ -f bench/crash.py ] || { echo "bench/crash.py is not there yet" >&2; exit 1; }
	@$(BIN)/python -m bench.crash

docs: $(VENV)/.installed-docs ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "==> site/index.html"

clean: ## remove .venv and all that was built
	@rm -rf $(VENV) build dist site htmlcov .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +

# An existing environment is used as it is; pip brings it up to date when pyproject.toml or constraints.txt changes.
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Callstream needs Python 3.11 or newer; name one: make PYTHON=python3.11" >&2; exit 1; }
	@[ -x $(BIN)/python ] || { echo "==> making $(VENV) with `$(PYTHON) --version`"; $(PYTHON) -m venv $(VENV); } || \
	  { rm -rf $(VENV); echo "no environment without Python's venv module; Debian calls it python3-venv" >&2; exit 1; }
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.made pyproject.toml constraints.txt
	@echo "==> installing callstream[dev] into $(VENV), about two minutes the first time"
	@$(PIP) --editable '.[dev]'
	@touch $@

# What a newcomer waits for is no more than the demo needs.
$(VENV)/.installed-demo: $(VENV)/.made pyproject.toml constraints.txt
	@echo "==> installing callstream[adk,server,cli] into $(VENV), about a minute the first time"
	@$(PIP) --editable '.[adk,server,cli]'
	@touch $@

$(VENV)/.installed-bench: $(VENV)/.installed-dev
	@echo "==> installing callstream[bench] into $(VENV)"
	@$(PIP) --editable '.[bench]'
	@touch $@

$(VENV)/.installed-docs: $(VENV)/.installed-dev
	@echo "==> installing callstream[docs] into $(VENV)"
	@$(PIP) --editable '.[docs]'
	@touch $@
