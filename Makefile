# Foredraft: everything from a fresh clone. `make` alone lists the targets.
#
# The environment is .venv in this folder; versions are pinned in constraints.txt alone.
#
#   PYTHON=python3.12     the interpreter .venv is made with (3.11 or newer)
#   ARGS=...              what `make bench` passes to `foredraft bench run`
#   TORCH_INDEX=URL       one more package index to take PyTorch from. On Linux the ordinary index
#                         serves the CUDA build, which is a download of several gigabytes; the URL
#                         of PyTorch's index of CPU builds gives a small one. A build that pip
#                         already knows locally (its `find-links` setting) needs no index.

SHELL := bash
PYTHON ?= python3
TORCH_INDEX ?=
WORKERS ?= 2
ARGS ?= --out bench-results

BIN := .venv/bin
INSTALLED := .venv/.installed

# An answer that takes its wording from the text is what drafting from the context feeds on.
DEMO_PROMPT := Extract every name and year from this text as a list. The lighthouse at Carrow Point was \
  built in 1871, after the wreck of the Meridian. Anna Dell, the last keeper, trimmed the lamp every \
  evening. In 1962 the lamp was replaced by an electric light, and the Dell family moved to the village.

.DEFAULT_GOAL := help
.PHONY: help setup model demo test check bench docs clean

help: ## List the targets
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' Makefile | expand -t 10

setup: $(INSTALLED) ## Create .venv and install Foredraft with its development tools

$(INSTALLED): pyproject.toml constraints.txt
	@test -x $(BIN)/python || { \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	    echo "Foredraft needs Python 3.11 or newer: make setup PYTHON=/path/to/python3.11" >&2; \
	    exit 1; }; \
	  echo "Creating .venv"; $(PYTHON) -m venv .venv; }
	@echo "Installing (PyTorch is the large part; a few minutes on a slow line)"
	@set -o pipefail; $(BIN)/python -m pip install --disable-pip-version-check \
	  $(if $(TORCH_INDEX),--extra-index-url "$(TORCH_INDEX)") -c constraints.txt -e '.[dev]' \
	  | awk '/^Collecting/ { print "  " $$2 } /Downloading .*[MG]B/ || /^Installing/ { print substr($$0, 1, 90) } \
	      { fflush() }'
	@touch $(INSTALLED)

model: setup ## Fetch the embedded model into the user's cache (once)
	@$(BIN)/python -c 'from foredraft import zoo; print("smollm2:", zoo.path("smollm2", report=print))'

demo: setup ## Answer a prompt with plain and with speculative decoding, side by side
	@$(BIN)/foredraft generate --model smollm2 --compare --max-new-tokens 160 --prompt '$(DEMO_PROMPT)'

test: model ## Run the tests
	$(BIN)/pytest -n $(WORKERS)

check: setup ## Format, lint, strict types, import direction
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -q tests/test_architecture.py

bench: model ## Run the benchmark; ARGS='--methods ngram,hf --out DIR' asks for another one
	$(BIN)/foredraft bench run $(ARGS)

docs: setup ## Build the documentation as a site in build/site; warnings are errors
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

clean: ## Remove .venv and what the tools left here; the model cache stays
	rm -rf .venv build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis src/*.egg-info
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
