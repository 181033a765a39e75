# `make demo` shows the loop, `make lab` opens it, `make test` checks it. `make help` lists the rest.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help

VENV := .venv
BIN := $(VENV)/bin
RUNS := runs
ARGS ?=
# processes that the tests run in; a file's tests stay together, and so does what they share
WORKERS ?= 2

# the first of these that works and can make an environment; the lock was resolved for 3.11
PYTHON ?= $(firstword $(foreach p,python3.11 python3.12 python3.13 python3,\
  $(shell $(p) -c 'import ensurepip, venv; print("$(p)")' 2>/dev/null)))

export PIP_DISABLE_PIP_VERSION_CHECK := 1
# what is meant to need no download says so if it ever asks for one
demo real real-pipeline test: export HF_HUB_OFFLINE := 1
# the tests' tensors are tiny: a second thread gains little, and waits long where the machine is busy
test: export OMP_NUM_THREADS := $(or $(OMP_NUM_THREADS),1)

##@ See it
.PHONY: demo
demo: setup ## Set up where missing, run the first notebook headless, say what came out
	$(BIN)/python -m nbrl.notebook.cli run notebooks/01_first_step.ipynb --out $(RUNS)/demo --once $(ARGS)

.PHONY: lab
lab: setup ## Open JupyterLab on the notebooks (ARGS="--no-browser --port 8899" are passed on)
	$(BIN)/jupyter lab --ServerApp.root_dir=. \
	  --LabApp.default_url=/lab/tree/notebooks/01_first_step.ipynb \
	  --LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate \
	  $(if $(filter 0,$(shell id -u)),--allow-root) $(ARGS)

.PHONY: real
real: setup ## A few steps on a real pretrained model, through the same notebook
	$(BIN)/python -m nbrl.notebook.cli run notebooks/01_first_step.ipynb --out $(RUNS)/real --once \
	  $(REAL) $(ARGS)

REAL := -p model=smollm2-135m-instruct -p prompts=reasoning-gym:letter_counting -p chat=true \
  -p reward=../reward_fns/near_number.py -p num_prompts=3 \
  -p n=4 -p max_new_tokens=24 -p lr=1e-5 -p steps=2 -p held_out=4

.PHONY: real-pipeline
real-pipeline: setup ## SFT, reward model and PPO on a real pretrained model, through notebook 12
	$(BIN)/python -m nbrl.notebook.cli run notebooks/12_sft_rm_ppo.ipynb --out $(RUNS)/real-pipeline \
	  --once $(REAL_PIPELINE) $(ARGS)

REAL_PIPELINE := -p model=smollm2-135m-instruct -p reward=../reward_fns/near_number.py \
  -p num_examples=192 -p held_out=32 -p lr=1e-4 -p ppo_lr=3e-6 -p steps=4 -p num_prompts=8

##@ Check it
.PHONY: test
test: setup ## Set up where missing, then the whole suite (ARGS="tests/types -x" narrows it)
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(if $(CI),--durations=25) $(ARGS)

.PHONY: gpu-check
gpu-check: setup ## On a machine with a GPU: sampler and trainers on the device, in bfloat16 too
	$(BIN)/python -m pytest -m gpu -rs $(ARGS) tests

.PHONY: check
check: lint test ## Format, lint, types, imports, tests

.PHONY: lint
lint: setup ## Format, lint, types and imports, without the tests
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright
	$(BIN)/lint-imports --no-logo

.PHONY: format
format: setup ## Rewrite the code in the house's format and strip the notebooks
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/nbstripout --keep-id --extra-keys="metadata.papermill cell.metadata.papermill" notebooks/*.ipynb

.PHONY: bench
bench: setup ## Time the estimators against a row-by-row loop
	$(BIN)/python -m benchmarks.estimators

##@ Set it up
# Each stage leaves a stamp, so that a call does only what an edit of its inputs asks for.
.PHONY: setup
setup: $(VENV)/.nbrl ## Make .venv from the pinned lock

$(BIN)/python:
	@if [ -z "$(PYTHON)" ]; then \
	  echo "nbrl needs Python 3.11 to 3.13 with venv; none was found." \
	    "Install it (Debian: apt-get install python3-venv), or name one: make PYTHON=/path/to/python3.11" >&2; \
	  exit 1; \
	fi
	@"$(PYTHON)" -c 'import sys; v = sys.version_info; sys.exit(None if (3, 11) <= v < (3, 14) else \
	  "nbrl needs Python 3.11 to 3.13; %s is %d.%d. Name another: make PYTHON=/path/to/python3.11" \
	  % (sys.executable, v[0], v[1]))'
	@echo "== 1/4 environment in $(VENV), from $(PYTHON)"
	"$(PYTHON)" -m venv $(VENV)

$(VENV)/.uv: requirements/cpu.txt | $(BIN)/python
	@echo "== 2/4 the installer"
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip
	$(BIN)/python -m pip install --quiet "$$(grep '^uv==' requirements/cpu.txt)"
	@touch $@

$(VENV)/.torch: $(VENV)/.uv
	@echo "== 3/4 torch, the CPU build (about 200 MB)"
	@torch="$$(grep '^torch==' requirements/cpu.txt)"; \
	$(BIN)/python -m pip install --no-deps "$$torch" \
	  || { echo "pip finds no $$torch; asking uv, which knows where CPU builds are"; \
	       $(BIN)/uv pip install --python $(BIN)/python --torch-backend cpu --no-deps "$${torch%+cpu}"; }
	@touch $@

$(VENV)/.lock: $(VENV)/.torch
	@echo "== 4/4 the rest of the lock (about 290 packages; minutes the first time)"
	grep -v '^torch==' requirements/cpu.txt > $(VENV)/rest.txt
	DS_BUILD_OPS=0 $(BIN)/uv pip install --python $(BIN)/python --no-deps -r $(VENV)/rest.txt
	@touch $@

$(VENV)/.nbrl: pyproject.toml $(VENV)/.lock
	$(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps --no-build-isolation -e .
	@touch $@

.PHONY: lock
lock: setup ## Resolve requirements/cpu.in into requirements/cpu.txt, keeping pins that still fit
	$(BIN)/uv pip compile requirements/cpu.in --override requirements/overrides.txt \
	  --no-header --no-annotate --no-emit-index-url --no-emit-find-links --python-version 3.11 \
	  $(if $(PIP_FIND_LINKS),--find-links "$(PIP_FIND_LINKS)",--torch-backend cpu) \
	  --output-file requirements/cpu.txt

.PHONY: clean
clean: ## Remove caches and build leftovers; .venv and runs stay
	rm -rf build dist *.egg-info .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find nbrl tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

.PHONY: help
help: ## This list
	@awk 'BEGIN {FS = ":.*## "} /^##@ / {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' Makefile
