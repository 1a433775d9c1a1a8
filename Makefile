# Everything there is to do here. `make` alone lists it. POSIX make and sh only.
.POSIX:

PYTHON = python3
VENV = .venv
BIN = $(VENV)/bin
LITELLM_VENV = .venv-litellm
LANGCHAIN_VENV = .venv-langchain
AIOBOTOCORE_VENV = .venv-aiobotocore
LANGCHAIN = langchain-openai langchain-anthropic hypothesis pytest pytest-asyncio pytest-timeout
FRAMEWORKS = instructor langchain llamaindex smolagents autogen strands mistral agno agent_framework haystack litellm
PACKAGES_instructor = instructor 'openai>=3' anthropic
PROGRAMS_instructor = instructor_async instructor_sync instructor_anthropic
PACKAGES_langchain = langchain-openai langchain-google-genai
PROGRAMS_langchain = langchain_openai_async langchain_openai_sync langchain_google
PACKAGES_llamaindex = llama-index-llms-openai llama-index-llms-google-genai
PROGRAMS_llamaindex = llamaindex_openai llamaindex_openai_sync llamaindex_google
PACKAGES_smolagents = 'smolagents[openai]'
PROGRAMS_smolagents = smolagents_openai
PACKAGES_autogen = 'autogen-ext[openai]' autogen-core autogen-agentchat
PROGRAMS_autogen = autogen_openai
PACKAGES_strands = 'strands-agents[openai,anthropic,gemini]'
PROGRAMS_strands = strands_openai strands_anthropic strands_gemini strands_bedrock
PACKAGES_mistral = mistralai langchain-ollama langchain-xai langchain-mistralai
PROGRAMS_mistral = mistral_sdk langchain_ollama langchain_xai langchain_mistral
PROGRAMS_agno = agno_sync agno_claude agno_gemini
PROGRAMS_agent_framework = agent_framework_anthropic
PROGRAMS_haystack = haystack_async
PACKAGES_litellm = litellm==1.106.2 openai==2.54.0 mcp
PROGRAMS_litellm = litellm_sync
# The frameworks whose agents are let make mistakes, in their newest version and in that of a year ago (for AutoGen the same;
# CrewAI's agents used no provider's calls then).
AGENTS = agents pydantic_ai langgraph llamaindex agno autogen agent_framework smolagents strands instructor anthropic haystack crewai
YEAR_OLD = agents_2025 pydantic_ai_2025 langgraph_2025 llamaindex_2025 agno_2025 agent_framework_2025 smolagents_2025 strands_2025 instructor_2025 anthropic_2025 haystack_2025
PACKAGES_agents = openai-agents
PACKAGES_pydantic_ai = 'pydantic-ai-slim[openai]'
PACKAGES_langgraph = langchain langgraph langchain-openai
PACKAGES_agno = agno 'openai>=3' anthropic google-genai
PACKAGES_agent_framework = agent-framework-core agent-framework-openai agent-framework-anthropic
PACKAGES_anthropic = anthropic
PACKAGES_haystack = haystack-ai
PACKAGES_crewai = crewai 'litellm<1.90'
PACKAGES_agents_2025 = openai-agents==0.5.0 'openai<2.9'
PACKAGES_pydantic_ai_2025 = 'pydantic-ai-slim[openai]==1.14.0' 'openai<2.9' 'opentelemetry-api<1.39'
PACKAGES_langgraph_2025 = langchain==1.0.5 langgraph==1.0.3 langgraph-prebuilt==1.0.2 langchain-openai==1.0.2 'openai<2.9'
PACKAGES_llamaindex_2025 = llama-index-core==0.14.8 llama-index-llms-openai==0.6.9 'openai<2.9'
PACKAGES_agno_2025 = agno==2.2.10 'openai<2.9'
PACKAGES_agent_framework_2025 = --pre agent-framework-core==1.0.0b251112 'mcp[ws]<1.23' 'openai<2.9'
PACKAGES_smolagents_2025 = 'smolagents[openai]==1.22.0' 'openai<2.9'
PACKAGES_strands_2025 = 'strands-agents[openai]==1.15.0' 'openai<2.9'
PACKAGES_instructor_2025 = instructor==1.13.0 'openai<2.9'
PACKAGES_anthropic_2025 = anthropic==0.72.0
PACKAGES_haystack_2025 = haystack-ai==2.20.0 'openai<2.9'
LITELLM = litellm==1.106.2 openai==2.54.0 mcp anthropic httpx2 hypothesis pytest pytest-asyncio pytest-timeout
PIP = $(BIN)/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt
TESTS = tests
ARGS =
# One more than CI's machine has cores: half of a test's time it waits for servers, browsers and databases.
WORKERS = 3

# A file's tests share servers and browsers, so one worker runs them all. tests/conftest.py sorts the files.
PYTEST = -m pytest $(BESIDE)
SUITE = -m tests.suite $(BESIDE)
BESIDE = -n $(WORKERS) --dist loadfile --no-loadscope-reorder

# Tests start a hundred Python processes: what one has compiled, the others read, whatever the environment says.
BYTECODE = PYTHONDONTWRITEBYTECODE=

# The rooms that do no I/O: nothing but their own tests can show that they are right, so they are held to more.
PURE = src/callstream/errors.py,src/callstream/events.py,src/callstream/codec.py,src/callstream/jsontext/*,src/callstream/wire/*,src/callstream/calls.py,src/callstream/view/*,src/callstream/agui/*,src/callstream/uistream/*
PURE_COVERAGE = 100

# One module a table, each run as `python -m bench.<name>`.
TABLES = preview decode rewrite journal hooks endtoend pace many shapes server hostile eager early uistream reader byhand gateway tricks simulated

# Environments beside the usual one: what is compared with, and the oldest versions that are declared.
RIVAL = .venv-ag-ui-adk
OLDEST = .venv-oldest
# opentelemetry 1.42, the newest that google-adk 2.12 takes, says this on Python 3.11 whenever it is imported.
OLDEST_WARNINGS = -W 'ignore:SelectableGroups dict interface:DeprecationWarning'

.PHONY: help venv test slow before oldest check format-check lint types imports coverage format demo bench continuing-hosts crash chaos continue stops parity schema-suite copilotkit ai-sdk clients gateway gateway-programs demo-gateway js litellm langchain aiobotocore frameworks live docs clean

help: ## list these targets (default)
	@echo "make <target>"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-16s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "The first target that needs it makes $(VENV) (about two minutes). Another Python: make PYTHON=python3.12 test"
	@echo "Some tests only: make test TESTS=tests/test_architecture.py ARGS='-x -k layers'"

venv: $(VENV)/.installed-dev ## make .venv with all that tests and checks need

test: $(VENV)/.installed-dev ## run the tests, except those marked slow
	@$(BYTECODE) $(BIN)/python $(PYTEST) -m 'not slow' $(TESTS) $(ARGS)

slow: $(VENV)/.installed-dev ## run the tests that make test leaves out, and properties with all their examples
	@echo "==> slow tests"
	@$(BYTECODE) HYPOTHESIS_PROFILE=$${HYPOTHESIS_PROFILE:-ci} $(BIN)/python $(SUITE) -m 'slow or hypothesis' $(TESTS) $(ARGS)

before: $(VENV)/.installed-dev ## which of TESTS fail on the sources of an older revision: make before REV=v1 TESTS=tests/x.py
	@$(BIN)/python -m tests.before $(REV) $(TESTS) $(ARGS)

oldest: $(OLDEST)/.installed ## run google-adk's tests and example with the oldest versions that are declared
	@$(OLDEST)/bin/python $(PYTEST) $(OLDEST_WARNINGS) tests/adk $(ARGS)
	@$(OLDEST)/bin/python -m pytest $(OLDEST_WARNINGS) tests/test_examples.py -k google_adk

check: format-check lint types imports coverage slow ## all that CI runs: format, lint, types, imports, tests, coverage
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

coverage: $(VENV)/.installed-dev ## run the tests of make test, and hold them to the coverage thresholds
	@echo "==> tests with coverage"
	@$(BYTECODE) $(BIN)/python $(SUITE) -m 'not slow' --cov --cov-report= --cov-fail-under=0 $(ARGS)
	@echo "==> coverage, all rooms"
	@$(BIN)/coverage report
	@echo "==> coverage, pure rooms: at least $(PURE_COVERAGE) %"
	@$(BIN)/coverage report --include='$(PURE)' --fail-under=$(PURE_COVERAGE)

format: $(VENV)/.installed-dev ## format the code, and repair what lint can repair
	@$(BIN)/ruff check --fix --quiet . || true
	@$(BIN)/ruff format .

demo: $(VENV)/.installed-demo ## an agent, its server, the inspector and a journal; no account needed (ARGS=--terminal)
	@$(BIN)/python -m callstream demo $(ARGS) || [ $$? -eq 130 ]

continuing-hosts: .venv-continuing-pydantic_ai/.installed .venv-continuing-langgraph/.installed ## the environments of bench.continuing's other hosts

bench: $(VENV)/.installed-bench $(RIVAL)/.installed ## measure Callstream beside other libraries, on the same data
	@failed=; for table in $(TABLES); do \
	  echo "==> bench/$$table.py"; $(BIN)/python -m bench.$$table || failed="$$failed $$table"; \
	done; [ -z "$$failed" ] || { echo "what is wanted was missed in:$$failed" >&2; exit 1; }

crash: $(VENV)/.installed-dev ## kill a writing process again and again, and read what its journal kept
	@$(BIN)/python -m bench.crash

langchain: $(LANGCHAIN_VENV)/.installed ## run the example and the how-to for LangChain, in an environment of its own
	@$(LANGCHAIN_VENV)/bin/python -m pytest tests/test_langchain.py tests/test_examples.py -k langchain $(ARGS)

aiobotocore: $(AIOBOTOCORE_VENV)/.installed ## run the tests that need aiobotocore, in an environment of its own
	@$(AIOBOTOCORE_VENV)/bin/python -m pytest tests/tap/test_aiobotocore.py $(ARGS)

frameworks: $(FRAMEWORKS:%=frameworks-%) $(AGENTS:%=faults-%) $(YEAR_OLD:%=faults-%) ## run programs with each framework, and agents whose models make mistakes, in environments of their own
	@$(PYTHON) docs/faults.py

frameworks-%: .venv-frameworks-%/.installed
	@.venv-frameworks-$*/bin/python -m tests.frameworks.harness $(PROGRAMS_$*)

faults-%: .venv-frameworks-%/.installed
	@.venv-frameworks-$*/bin/python -W ignore -m tests.frameworks.faults $*

litellm: $(LITELLM_VENV)/.installed ## run the tests that need litellm, in an environment of its own
	@$(LITELLM_VENV)/bin/python -m pytest tests/adk/test_litellm.py $(ARGS)

live: $(VENV)/.installed-dev ## two turns with a real Gemini, if there are credentials in the environment
	@$(BIN)/python -m pytest -m live tests/live $(ARGS)

chaos: $(VENV)/.installed-dev ## kill replicas on one PostgreSQL while 50 threads talk to them, and see that nobody notices
	@$(BIN)/python -W ignore -m tests.server.chaos $(ARGS)

continue: $(VENV)/.installed-dev ## kill servers while their runs work, and see that the runs go on; ARGS='--journal postgres', or ARGS=--clients for what every client shows
	@$(BIN)/python -W ignore -m tests.server.continuing $(ARGS)

stops: $(VENV)/.installed-dev ## stop 2,000 runs at random moments, then 15 minutes of soak, on SQLite and PostgreSQL sessions
	@$(BIN)/python -W ignore -m tests.server.stops $(ARGS)

parity: $(VENV)/.installed-dev ## what the official AG-UI client sees of google-adk apps, against a plain Runner's events
	@$(BIN)/python -c "import a2a" 2>/dev/null || $(BIN)/python -m pip --disable-pip-version-check install --quiet "google-adk[a2a]"
	@$(BIN)/python -m tests.adk.parity $(ARGS)

schema-suite: $(VENV)/.installed-dev ## judge JSON-Schema-Test-Suite while it is written; downloads jsonschema's sources with pip
	@$(BIN)/python -m tests.tools.suite
	@$(BIN)/python -m pytest tests/tools/test_schema_suite.py $(ARGS)

copilotkit: $(VENV)/.installed-dev ## put the real CopilotKit runtime in front of the server; installs 270 MB with npm
	@command -v npm >/dev/null || { echo "the CopilotKit runtime needs node and npm" >&2; exit 1; }
	@cd tests/server/copilotkit && npm install --no-audit --no-fund --no-package-lock --ignore-scripts
	@$(BIN)/python -m pytest tests/server/adk/test_copilotkit.py $(ARGS)

ai-sdk: $(VENV)/.installed-dev ## let the AI SDK (ai 5, 6 and 7) judge the UI message stream; installs 100 MB with npm
	@command -v npm >/dev/null || { echo "the AI SDK needs node and npm" >&2; exit 1; }
	@$(BIN)/python -m pytest tests/uistream tests/server/adk/test_chat.py $(ARGS)

clients: $(VENV)/.installed-dev ## cut every front end's client at every event, and let it join at every record; installs with npm
	@command -v npm >/dev/null || { echo "the clients need node and npm" >&2; exit 1; }
	@$(BIN)/python -m pytest tests/server/test_cut_clients.py tests/server/test_tanstack.py tests/server/test_connect_thread.py tests/server/adk/test_copilotkit_core.py tests/agui/test_other_clients.py -s $(ARGS)

gateway: $(VENV)/.installed-dev ## what SDKs for Python and Node get through the gateway: all shapes, bad ends, cuts; installs 80 MB with npm
	@command -v npm >/dev/null || { echo "the SDKs for Node need node and npm" >&2; exit 1; }
	@$(BIN)/python -W ignore -m tests.gateway.matrix $(ARGS)

gateway-programs: $(VENV)/.installed-dev ## the real Claude Code and Codex through the gateway, offline; installs 600 MB with npm
	@command -v npm >/dev/null || { echo "the programs need node and npm" >&2; exit 1; }
	@$(BIN)/python -W ignore -m tests.gateway.coding $(ARGS)

demo-gateway: $(VENV)/.installed-dev ## a gateway, Anthropic's SDK for Node that is cut off and comes back, the inspector; no account needed
	@command -v npm >/dev/null || { echo "the SDK for Node needs node and npm" >&2; exit 1; }
	@$(BIN)/python -W ignore -m tests.gateway.demo $(ARGS) || [ $$? -eq 130 ]

js: $(VENV)/.installed-dev ## test the npm package, write its types, build its page of React and test that; installs 60 MB with npm
	@command -v npm >/dev/null || { echo "the npm package needs node and npm" >&2; exit 1; }
	@cd js/demo && npm install --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=error
	@cd tests/js/client && npm install --no-audit --no-fund --no-package-lock --ignore-scripts --loglevel=error
	@rm -rf js/types && js/demo/node_modules/.bin/tsc -p js && echo "==> js/types"
	@node js/demo/build.js
	@$(BIN)/python -m pytest tests/js tests/page/test_react.py tests/server/adk/test_transport.py $(ARGS)
	@$(BIN)/python -W ignore -m tests.page.responsive

docs: $(VENV)/.installed-docs ## build the documentation into site/
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "==> site/index.html"

clean: ## remove the environments and all that was built
	@rm -rf $(VENV) $(RIVAL) $(RIVAL)-litellm $(OLDEST) $(LITELLM_VENV) $(LITELLM_VENV)-proxy $(LANGCHAIN_VENV) $(AIOBOTOCORE_VENV) .venv-frameworks-* .venv-continuing-* build dist site htmlcov .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache src/callstream/server/page/react
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

.PRECIOUS: .venv-frameworks-%/.installed
.venv-frameworks-%/.installed: pyproject.toml
	@[ -x .venv-frameworks-$*/bin/python ] || $(PYTHON) -m venv .venv-frameworks-$*
	@echo "==> installing callstream and $* into .venv-frameworks-$*"
	@.venv-frameworks-$*/bin/python -m pip --disable-pip-version-check install --quiet --editable . httpx $(PACKAGES_$*)
	@touch $@

# google-adk takes litellm up to 1.106.2, and that one openai 2; everything else here is tested with openai 3.
$(LITELLM_VENV)/.installed: pyproject.toml
	@[ -x $(LITELLM_VENV)/bin/python ] || $(PYTHON) -m venv $(LITELLM_VENV)
	@echo "==> installing callstream[adk] and litellm into $(LITELLM_VENV)"
	@$(LITELLM_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[adk]' $(LITELLM)
	@touch $@

$(LANGCHAIN_VENV)/.installed: pyproject.toml
	@[ -x $(LANGCHAIN_VENV)/bin/python ] || $(PYTHON) -m venv $(LANGCHAIN_VENV)
	@echo "==> installing callstream and LangChain into $(LANGCHAIN_VENV)"
	@$(LANGCHAIN_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --editable . $(LANGCHAIN)
	@touch $@

# It brings aiohttp, which google-genai prefers to httpx wherever it finds it.
$(AIOBOTOCORE_VENV)/.installed: pyproject.toml constraints.txt
	@[ -x $(AIOBOTOCORE_VENV)/bin/python ] || $(PYTHON) -m venv $(AIOBOTOCORE_VENV)
	@echo "==> installing callstream[dev,aiobotocore] into $(AIOBOTOCORE_VENV), about two minutes the first time"
	@$(AIOBOTOCORE_VENV)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable '.[dev,aiobotocore]'
	@touch $@

# For bench.gateway: LiteLLM's proxy, as its users install it.
$(LITELLM_VENV)-proxy/.installed:
	@[ -x $(LITELLM_VENV)-proxy/bin/python ] || $(PYTHON) -m venv $(LITELLM_VENV)-proxy
	@echo "==> installing litellm[proxy] into $(LITELLM_VENV)-proxy, about two minutes"
	@$(LITELLM_VENV)-proxy/bin/python -m pip --disable-pip-version-check install --quiet 'litellm[proxy]==1.106.2'
	@touch $@

# For bench.pace --maker litellm: both servers beside the same litellm.
$(RIVAL)-litellm/.installed: pyproject.toml
	@[ -x $(RIVAL)-litellm/bin/python ] || $(PYTHON) -m venv $(RIVAL)-litellm
	@echo "==> installing callstream, ag_ui_adk and litellm into $(RIVAL)-litellm, about two minutes the first time"
	@$(RIVAL)-litellm/bin/python -m pip --disable-pip-version-check install --quiet --editable '.[adk,server]' ag-ui-adk==0.11.0 litellm==1.106.2 openai==2.54.0 mcp
	@touch $@

$(RIVAL)/.installed: pyproject.toml constraints.txt
	@[ -x $(RIVAL)/bin/python ] || $(PYTHON) -m venv $(RIVAL)
	@echo "==> installing callstream[comparison] into $(RIVAL), about a minute the first time"
	@$(RIVAL)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints.txt --editable '.[comparison]'
	@touch $@

# For bench.continuing. They import nothing of Callstream.
CONTINUING_pydantic_ai = 'pydantic-ai-slim[openai]==2.66.0' dbos==3.3.0
CONTINUING_langgraph = langgraph==1.2.20 langchain==1.4.7 langchain-openai langgraph-checkpoint-sqlite==3.1.2 aiosqlite
.PRECIOUS: .venv-continuing-%/.installed
.venv-continuing-%/.installed:
	@[ -x .venv-continuing-$*/bin/python ] || $(PYTHON) -m venv .venv-continuing-$*
	@echo "==> installing what bench.continuing needs of $* into .venv-continuing-$*"
	@.venv-continuing-$*/bin/python -m pip --disable-pip-version-check install --quiet $(CONTINUING_$*)
	@touch $@

$(OLDEST)/.installed: pyproject.toml constraints-oldest.txt
	@[ -x $(OLDEST)/bin/python ] || $(PYTHON) -m venv $(OLDEST)
	@echo "==> installing callstream[test-adk] into $(OLDEST), about a minute the first time"
	@$(OLDEST)/bin/python -m pip --disable-pip-version-check install --quiet --constraint constraints-oldest.txt --editable '.[test-adk]'
	@touch $@
