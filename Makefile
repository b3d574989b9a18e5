# `make` prints what there is. Everything installs what it needs into .venv.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
VENV := .venv
BIN := $(VENV)/bin
PROJECTS := operator/pyproject.toml trainer/pyproject.toml client/pyproject.toml
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
# After Ctrl-C, which the runner has reported, make ends by the same signal and adds no line.
RUN = @trap : INT; $(BIN)/python -m testing.run $(1) || { code=$$?; [ $$code -eq 130 ] || exit $$code; kill -INT $$PPID; }

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-all test-unit test-process test-cluster test-e2e test-long test-times \
	truth models compare captures split-costs peers benchmarks lint format manifests verify docs lock chart \
	release-artifacts images cluster-up cluster-down clean

help: ## Print this help
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} \
		/^[a-z0-9-]+:.*## / {printf "  %-20s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

##@ Use
demo: $(VENV)/.demo ## Train the main example here: no cluster, no GPU
	$(BIN)/tfparallel run examples/digits/job.yaml

##@ Test
test: $(VENV)/.dev ## Run the essential tests: minutes, without Go, root or a cluster
	$(call RUN,--part essential)

test-all: $(VENV)/.dev ## Run all tests but the long tier, as CI does (Go is fetched; real pods need root)
	$(call RUN,)

test-unit: $(VENV)/.dev ## Run the tests that start nothing: seconds
	$(call RUN,--tier unit)

test-process: $(VENV)/.dev ## Run the tests that use TensorFlow or start processes
	$(call RUN,--tier process)

test-cluster: $(VENV)/.dev ## Run the tests against a real API server
	$(call RUN,--tier cluster)

test-e2e: $(VENV)/.dev ## Run the tests with real pods (root)
	$(call RUN,--tier e2e)

test-long: $(VENV)/.dev ## Run all tiers, print the branches that ran, write docs/benchmarks/long-tier.md (root)
	$(call RUN,--tier unit,process,cluster,e2e,long --branches)

test-times: $(VENV)/.dev ## Print the files that cost most in the last run
	$(BIN)/python -m testing.run.costs

truth: $(VENV)/.dev ## Train every model on every layout and write docs/benchmarks/truth.md: some minutes
	$(BIN)/python -m benchmarks.pages.truth
	$(BIN)/python -m benchmarks.pages.truth_servers
	$(BIN)/python -m benchmarks.pages.truth_split

models: $(VENV)/.dev ## Train the models that others wrote and write docs/benchmarks/models.md: a quarter of an hour
	$(BIN)/python -m benchmarks.pages.models

compare: $(VENV)/.dev ## Compare sync with async on the examples and write docs/benchmarks/compare.md: some minutes
	$(BIN)/python -m benchmarks.pages.comparisons

captures: $(VENV)/.dev ## Run each verb at 80 columns, on a cluster too, and write docs/reference/captures.md (root)
	$(BIN)/python -m benchmarks.pages.captures

split-costs: $(VENV)/.dev ## Measure the examples of model split and write their page: some minutes
	$(BIN)/python -m benchmarks.pages.split_costs

peers: $(VENV)/.dev ## Measure the trainer next to PyTorch and JAX and write docs/benchmarks/peers.md: forty minutes
	$(BIN)/python -m benchmarks.pages.peers

benchmarks: $(VENV)/.dev ## Measure trainer and operator and write their pages: an hour
	$(BIN)/python -m benchmarks

##@ Develop
setup: $(VENV)/.dev ## Install everything for development into .venv

lint: $(VENV)/.dev ## Check style, types, layers and language
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy client operator trainer images release testing tests manifests benchmarks docs/.site/hooks.py
	$(BIN)/lint-imports
	$(BIN)/python -m testing.patterns
	$(BIN)/python -m testing.words
	$(BIN)/python -m testing.language

format: $(VENV)/.dev ## Rewrite the code in the common style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

manifests: $(VENV)/.dev ## Generate the CRD and the reference from the types
	$(BIN)/python -m manifests

verify: $(VENV)/.dev ## Fail when a generated file differs from its source
	$(BIN)/python -m manifests --check

docs: $(VENV)/.docs ## Build the site of the documentation in build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

lock: $(VENV)/.dev ## Pin the newest requirements
	$(BIN)/python requirements/lock.py

chart: $(VENV)/.dev ## Package the chart into build/chart
	$(BIN)/python -m release --chart

release-artifacts: $(VENV)/.dev ## Build wheels, chart, images and inventories into build/release; SNAPSHOT=1: of any commit
	$(BIN)/python -m release $(if $(SNAPSHOT),--snapshot) $(if $(filter 0,$(IMAGES)),--no-images) \
		$(if $(ENGINE),--engine $(ENGINE)) $(if $(BASE_IMAGE),--base-image $(BASE_IMAGE))

##@ Cluster
images: ## Build both images; REGISTRY=… TAG=… PUSH=1 ENGINE=… BASE_IMAGE=… CUDA=1 ARCHIVES=folder
	@$(PYTHON) -m images $(if $(ENGINE),--engine $(ENGINE)) $(if $(REGISTRY),--registry $(REGISTRY)) \
		$(if $(TAG),--tag $(TAG)) $(if $(PUSH),--push) $(if $(BASE_IMAGE),--base-image $(BASE_IMAGE)) \
		$(if $(CUDA),--requirements requirements/trainer-cuda.txt) \
		$(if $(ARCHIVES),--archives $(ARCHIVES)) $(TARGETS)

cluster-up: $(VENV)/.dev ## Start a real test cluster with images and volumes, and print the next commands (root)
	$(BIN)/python -m testing.cluster up --mode full --equipped

cluster-down: $(VENV)/.dev ## End it and leave nothing behind
	$(BIN)/python -m testing.cluster down --mode full

clean: ## Remove what was generated here
	rm -rf $(VENV) build runs .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: requirements/demo.txt requirements/examples.txt $(PROJECTS) | $(VENV)/bin/python
	@echo "Installing TensorFlow and the rest into $(VENV): about a minute, once"
	$(PIP) install --require-hashes -r requirements/demo.txt
	$(PIP) install --require-hashes --no-deps -r requirements/examples.txt
	$(PIP) install --no-deps --no-build-isolation -e trainer -e operator -e client
	@touch $@

$(VENV)/.docs: requirements/docs.txt | $(VENV)/bin/python
	$(PIP) install --require-hashes -r requirements/docs.txt
	@touch $@

$(VENV)/.dev: requirements/dev.txt requirements/keras2.txt $(VENV)/.demo
	@echo "Installing what the tests need into $(VENV)"
	$(PIP) install --require-hashes -r requirements/dev.txt
	$(PIP) install --require-hashes --no-deps -r requirements/keras2.txt
	@touch $@
