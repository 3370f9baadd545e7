# What one does with this project. Caches (programs, images) are in ~/.cache/cosyvoice-operator or $COSYVOICE_CACHE.
.DEFAULT_GOAL := help
.PHONY: help setup lint check test bench bench-engine bench-server bench-autoscaling bench-operator demo demo-down generate lock

PYTHON ?= python3
VENV := .venv/bin
# The demo needs two small packages, not the five gigabytes of `make setup`; where that was run, it will do.
DEMO := $(if $(wildcard .venv/.complete),.venv,build/demo-venv)
COMPILE := $(VENV)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate

help: ## list these targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

setup: .venv/.complete ## make .venv with everything that tests and checks need
.venv/.complete: requirements/dev.txt requirements/uv.txt
	@echo "== making .venv (torch brings CUDA libraries: about 5 GB)"
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: give PYTHON=...")'
	$(PYTHON) -m venv .venv
	$(VENV)/pip install --quiet --require-hashes -r requirements/uv.txt
	$(VENV)/uv pip sync --quiet --python $(VENV)/python --require-hashes requirements/dev.txt
	@touch $@

lint: setup ## formatting, lint, types, layers
	@echo "== formatting and lint"
	$(VENV)/ruff format --check .
	$(VENV)/ruff check .
	@echo "== types and layers"
	$(VENV)/mypy
	$(VENV)/mypy hack tests/cluster tests/kind tests/conftest.py
	PYTHONPATH=operator:worker:contract $(VENV)/lint-imports

check: lint ## lint and the fast tests: about a minute
	@echo "== fast tests"
	$(VENV)/python -m pytest -q -n 2 -m "not controlplane and not kind" tests/unit

test: setup ## all tests, on real control planes and a real kind cluster
	@echo "== tests that need no cluster"
	$(VENV)/python -m pytest -n 2 -m "not controlplane and not kind"
	@echo "== tests on control planes and on a kind cluster"
	$(VENV)/python -m pytest -m "controlplane or kind"

bench: bench-engine bench-server bench-operator bench-autoscaling ## all measurements

bench-engine: setup build/bench-venv/.complete ## the engine beside the official code; writes build/bench/engine.json
	PYTHONPATH=worker:contract:. $(VENV)/python -m tests.bench.engine

bench-server: setup ## a worker under load and faults, over HTTP; writes build/bench/server.json
	PYTHONPATH=worker:contract:. $(VENV)/python -m tests.bench.server

bench-autoscaling: setup ## what each way of scaling costs over a day; writes build/bench/autoscaling.json
	PYTHONPATH=operator:contract:. $(VENV)/python -m tests.bench.autoscaling

bench-operator: setup ## what the operator costs at 2,000 services; writes build/bench/operator.json
	PYTHONPATH=operator:contract:. $(VENV)/python -m tests.bench.operator

demo: $(DEMO)/.complete ## from nothing to speech that Kubernetes scales
	$(DEMO)/bin/python -m hack.demo up

demo-down: $(DEMO)/.complete ## remove what `make demo` made
	$(DEMO)/bin/python -m hack.demo down

build/demo-venv/.complete: requirements/demo.txt
	@echo "== making a small virtual environment for the demo"
	$(PYTHON) -c 'import sys; sys.exit(None if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed: give PYTHON=...")'
	$(PYTHON) -m venv build/demo-venv
	build/demo-venv/bin/pip install --quiet --require-hashes -r requirements/demo.txt
	@touch $@

build/bench-venv/.complete: requirements/bench-peer.txt requirements/bench-peer-bare.txt
	@echo "== making the virtual environment of the official code"
	$(PYTHON) -m venv build/bench-venv
	$(VENV)/uv pip sync --quiet --python build/bench-venv/bin/python --require-hashes $^
	@touch $@

generate: setup ## write the files that are generated: the CRD, and the chart's copy of it
	PYTHONPATH=operator:contract $(VENV)/python -m cosyvoice_operator crd > crds/cosyvoiceservices.tts.cosyvoice.io.yaml
	cp crds/cosyvoiceservices.tts.cosyvoice.io.yaml charts/cosyvoice-operator/files/crd.yaml
	PYTHONPATH=operator:contract $(VENV)/python -m cosyvoice_operator.api.reference > docs/api.md

lock: setup ## resolve pyproject.toml into requirements/*.txt; the images run Python 3.13
	$(COMPILE) --python-version 3.11 --extra operator --extra worker --group dev pyproject.toml -o requirements/dev.txt
	$(COMPILE) --python-version 3.11 --group demo -o requirements/demo.txt
	$(COMPILE) --python-version 3.11 --group uv -o requirements/uv.txt
	$(COMPILE) --python-version 3.11 --group bench-peer -o requirements/bench-peer.txt
	$(COMPILE) --python-version 3.11 --no-deps --group bench-peer-bare -o requirements/bench-peer-bare.txt
	$(COMPILE) --python-version 3.13 --extra operator pyproject.toml -o requirements/operator.txt
	$(COMPILE) --python-version 3.13 --extra worker pyproject.toml -o requirements/worker-cuda.txt
	$(COMPILE) --python-version 3.13 --extra worker --override requirements/worker-cpu.overrides pyproject.toml \
	  -o requirements/worker-cpu.txt
