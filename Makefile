# Recipes for people, pre-commit and CI alike. `make demo` and `make test` need Python >= 3.11, git
# and make only; everything else is fetched by `make setup`.

SHELL := /bin/bash
BIN := .venv/bin
UV := $(shell command -v uv || echo .uv/bin/uv)
# One thread for each process: the tests start many processes on few cores.
export OMP_NUM_THREADS ?= 1

# Tests that need a GPU skip themselves elsewhere; narrow a run with e.g. MARKS="not slow".
MARKS ?= not gpu and not multigpu

# Tests are shared out to this many processes by folder; many wait rather than compute. 0 shares nothing.
WORKERS ?= 2

.PHONY: help setup demo test contract installed chaos rehearsal lint types gates bench build docs clean

help:
	@grep -E '^[a-z]+:.*## ' Makefile | sed -E 's/^([a-z]+):.*## /\1\t/' | expand -t 12

setup: ## uv, the locked environment and a Chromium
	@.ci/setup

demo: setup ## the whole laptop system, end to end
	$(BIN)/webrl train --config laptop $(ARGS)

test: setup ## all tests that this machine can run
	$(BIN)/python -m pytest -q -m "$(MARKS)" --durations=15 -n $(WORKERS) \
		--dist loadscope --no-loadscope-reorder $(ARGS)

contract: ## the server contract against a real SGLang too (4 GB more), on its CPU engine without a GPU
	@.ci/setup sglang
	$(BIN)/python -m pytest -q apps/webrl/tests/embedded/contract apps/webrl/tests/sglang $(ARGS)

installed: ## wheels in an empty environment: doctor and two updates; ARGS="lowest-direct 3.13"
	@.ci/installed $(ARGS)

chaos: setup ## five minutes of training in which processes of every kind are killed
	PYTHONPATH=apps/webrl/tests/support $(BIN)/python -m chaos $(ARGS)

rehearsal: setup ## a quarter of the published layout on one machine, every kind of failure; half an hour
	$(BIN)/webrl rehearse --config webgym_48_16 --divisor 4 --kill all $(ARGS)

lint: ## ruff: rules and format
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: ## pyright, strict
	$(BIN)/pyright --pythonpath $(BIN)/python

gates: ## the rules of this repository, as tests
	$(BIN)/python -m pytest -q tests -m "$(MARKS)" $(ARGS)

bench: ## all benchmarks; ARGS=--benchmark-disable runs each once, small
	$(BIN)/python -m pytest -q benchmarks $(ARGS)

build: ## wheels and source archives of every distribution, in dist
	$(UV) build --all-packages --out-dir dist

docs: ## docs/configuration.md from the field docstrings
	$(BIN)/webrl configs --keys > docs/configuration.md

clean: ## what builds and tests leave behind
	rm -rf dist .pytest_cache .ruff_cache .hypothesis .benchmarks
