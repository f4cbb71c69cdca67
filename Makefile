# Torch Relay: everything a newcomer needs. `make` alone lists the targets.

PYTHON ?= python3
# Which build of torch to install: auto (CUDA where there is an NVIDIA GPU), cpu or cuda.
TORCH ?= auto
# How long to wait for the package index's first answer.
NETWORK_SECONDS ?= 10
# Stacks of software. `make demo` compares strategies of torch itself (torch, the default), or one of every stack (all).
# `make gpu-check` tests those whose environments are made, and makes those that are named.
# `make test` tests all (the default), or torch and those that are named: STACKS=torch, STACKS="lightning horovod".
STACKS ?=
# Further options, as in `make demo SNAKEMAKE_OPTIONS=--dry-run` or `make test-quick PYTEST_OPTIONS=-x`.
SNAKEMAKE_OPTIONS ?=
PYTEST_OPTIONS ?=
# Processes among which the files of tests are divided: one more than two cores, for many tests wait.
PYTEST_PROCESSES ?= 3
LOCK_OPTIONS ?=
CARDS_OPTIONS ?=
BENCHMARK_OPTIONS ?=
# Of a task or a strategy that `make new-task` or `make new-strategy` begins.
NAME ?=

BIN := .venv/bin
# Tests with this mark, while stacks are built; tests of a stack wait for it.
beside_builds = $(BIN)/python tests/support/all_stacks.py $(TESTED) & stacks=$$!; \
	$(BIN)/pytest -m "$(1)" --stacks "$(TESTED)" $(DIVIDED) $(PYTEST_OPTIONS); tests=$$?; wait $$stacks; exit $$tests
DIVIDED = --numprocesses $(PYTEST_PROCESSES) --dist loadfile --no-loadscope-reorder
DEMO_torch := config/demo.yaml
DEMO_all := config/demo.yaml config/stacks.yaml
DEMO = $(DEMO_$(or $(STACKS),torch))
FURTHER := $(filter-out torch driver dev,$(basename $(notdir $(wildcard envs/*.in))))
TESTED := $(or $(STACKS),all)
# Before anything is installed.
ifneq ($(filter demo,$(MAKECMDGOALS)),)
$(if $(DEMO),,$(error STACKS: '$(STACKS)' is not allowed; allowed: torch, all))
endif
ifneq ($(filter gpu-check stacks test test-long test-quick,$(MAKECMDGOALS)),)
$(foreach name,$(filter-out torch all $(FURTHER),$(TESTED)),$(error STACKS: '$(name)' is not allowed; allowed: torch, all, or some of: $(FURTHER)))
endif
SNAKEFILES := $(wildcard Snakefile) workflow

# Some machines tell Python to keep nothing that it has compiled: thousands of short processes would compile it again.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
# The targets build upon one environment: one at a time, whatever -j says.
.NOTPARALLEL:
.PHONY: help install install-dev new-task new-strategy cards demo prove prove-models gpu-check stacks test test-quick test-long benchmark lint format lock schema clean

help:  ## List what can be made
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-12s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

install:  ## Install what running needs into .venv (nothing to do: in an instant)
	@$(PYTHON) scripts/bootstrap.py --torch $(TORCH) --network-seconds $(NETWORK_SECONDS)

install-dev:  ## Install what running and testing need into .venv
	@$(PYTHON) scripts/bootstrap.py --torch $(TORCH) --network-seconds $(NETWORK_SECONDS) --dev

demo: install  ## Compare strategies on a small real dataset: 2 minutes on 2 idle cores, after 2 of installing once (STACKS=all: more)
	$(BIN)/snakemake --profile profiles/local --configfile $(DEMO) $(SNAKEMAKE_OPTIONS)

new-task: install  ## Begin a task of your own: NAME=my_task makes my_task.py and my_task.yaml, which run as they are
	@$(BIN)/python scripts/main.py new task '$(NAME)'

new-strategy: install  ## Begin a strategy of your own: NAME=my_ddp makes own_strategies/my_ddp.py and my_ddp.yaml
	@$(BIN)/python scripts/main.py new strategy '$(NAME)'

prove: install  ## Put every strategy through its equivalence gate, on 2 and 4 processes: results/proof/table.md
	$(BIN)/python scripts/main.py prove config/proof/*.yaml

prove-models: install  ## The same for models of one's own, tests/tasks/*.py: results/proof-models/table.md
	$(BIN)/python scripts/main.py prove tests/tasks/every_strategy.yaml --folder results/proof-models \
	  $(patsubst %,--task tests/tasks/%.py,table lstm vae unet)

gpu-check: install $(if $(filter-out torch,$(STACKS)),stacks)  ## Does all of this work on these GPUs, or CPUs? results/selftest.md (STACKS=all: more of it)
	@$(BIN)/snakemake --profile profiles/local selftest $(SNAKEMAKE_OPTIONS)

stacks: install-dev  ## Make the environments of the stacks that tests use (built once: minutes)
	@$(BIN)/python tests/support/all_stacks.py $(TESTED)

test: lint  ## Check style and types, then run all tests but the long campaigns (STACKS=torch: fewer)
	@$(call beside_builds,not long)

test-quick: install-dev  ## Run the quick tests: the inner loop, about a minute and a half on 2 cores
	$(BIN)/pytest -m "not slow and not long" --stacks "$(TESTED)" $(DIVIDED) $(PYTEST_OPTIONS)

test-long: install-dev  ## Run the long campaigns alone, and the combinations that make test leaves out
	@$(call beside_builds,long)

benchmark: install-dev  ## Measure what the project says of its own speed, on an idle machine: benchmarks/RESULTS.md
	$(BIN)/python benchmarks/run.py $(BENCHMARK_OPTIONS)

lint: install-dev  ## Check style and types, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/snakefmt --check $(SNAKEFILES)
	$(BIN)/mypy

format: install-dev  ## Put all files into the project's style
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .
	$(BIN)/snakefmt $(SNAKEFILES)

lock: install-dev  ## Make the locks in envs/ anew from envs/*.in (LOCK_OPTIONS=--upgrade: newest versions)
	$(BIN)/python scripts/lock.py $(LOCK_OPTIONS)

schema: install  ## Make the configuration's schema and documented defaults anew from its code
	$(BIN)/python scripts/schema.py

cards: install  ## Look at all built-in tasks anew (CARDS_OPTIONS="--root FOLDER": a copy of MNIST and CIFAR-10 lies there)
	$(BIN)/python scripts/main.py cards $(CARDS_OPTIONS)

clean:  ## Remove the environment and caches; results are kept
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find scripts tests workflow benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
