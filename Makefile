# Two commands do everything: `make run` and `make test`. `make down` takes it away again.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
# Name of the kind cluster that `run` makes; `test` makes its own beside it.
CLUSTER ?= mocker
# IMAGE=... names what is built and loaded. With MOCKER_KUBECONFIG it must be given, and name an
# image that the cluster can pull.
BUILD_IMAGE = $(PYTHON) hack/cluster.py build-image $(if $(IMAGE),--tag "$(IMAGE)")

# Builds and loads the images, and prepares a shell line for kubectl, helm and kind.
ON_CLUSTER = \
	IMAGE="$$($(BUILD_IMAGE))"; export IMAGE; \
	$(PYTHON) hack/cluster.py load --name $(CLUSTER) "$$IMAGE"; \
	NATS_IMAGE="$$($(PYTHON) hack/cluster.py nats-image --name $(CLUSTER))"; export NATS_IMAGE; \
	lines="$$($(PYTHON) hack/cluster.py env --name $(CLUSTER))"; eval "$$lines";

.PHONY: help
help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: ## Install the locked dependencies and the project into .venv
	@$(PYTHON) hack/setup.py

.PHONY: run
run: setup cluster-up ## From nothing to a planner's decision, told as a story
	@$(ON_CLUSTER) .venv/bin/python hack/run.py

.PHONY: down
down: ## Remove the clusters and all that belongs to them; caches stay
	@$(PYTHON) hack/cluster.py down --all

.PHONY: test
test: setup ## Run every tier of tests that this machine allows
	@.venv/bin/python hack/test.py

.PHONY: judges
judges: setup ## Run the tests by foreign consumers alone (docs/judges.md)
	@.venv/bin/python hack/test.py judges

.PHONY: check
check: setup ## The one gate for style, types and layers
	.venv/bin/ruff format --check .
	.venv/bin/ruff check .
	.venv/bin/mypy
	.venv/bin/lint-imports
	.venv/bin/mocker-operator crd | diff - crds/mockerdeployments.mocker.dev.yaml
	diff crds/mockerdeployments.mocker.dev.yaml charts/mocker-operator/crds/mockerdeployments.mocker.dev.yaml

.PHONY: bench
bench: bench-worker cluster-up ## Measure all budgets; figures go to benchmarks/*.json
	@$(ON_CLUSTER) .venv/bin/python benchmarks/budgets.py

.PHONY: bench-worker
bench-worker: setup ## Measure a live worker, and what one would use instead; best on a quiet machine
	-@.venv/bin/python benchmarks/streaming.py

.PHONY: cluster-up
cluster-up: ## Bring up the kind cluster alone
	@$(PYTHON) hack/cluster.py up --name $(CLUSTER)

.PHONY: cluster-down
cluster-down: ## Delete the kind cluster alone
	@$(PYTHON) hack/cluster.py down --name $(CLUSTER)

.PHONY: image
image: ## Build the one image of all programs
	@$(BUILD_IMAGE)

.PHONY: generate
generate: setup ## Write the CRD again from the models
	.venv/bin/mocker-operator crd > crds/mockerdeployments.mocker.dev.yaml
	cp crds/mockerdeployments.mocker.dev.yaml charts/mocker-operator/crds/

LOCK = uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-header -q

.PHONY: lock
lock: ## Resolve the dependencies again (needs uv)
	$(LOCK) --extra tokenizer -o requirements.lock pyproject.toml
	$(LOCK) --extra tokenizer -o requirements-dev.lock --group dev pyproject.toml
	for judge in aiperf schemathesis; do $(LOCK) -o hack/judges/$$judge.lock hack/judges/$$judge.in; done
	for judge in hack/judges/dynamo-*.in; do $(LOCK) --no-deps -o $${judge%.in}.lock $$judge; done
	for rival in hack/judges/rival-*.in; do $(LOCK) --override $${rival%.in}.without -o $${rival%.in}.lock $$rival; done
