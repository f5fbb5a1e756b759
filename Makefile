# Each target sets up what it needs. PYTHON is any Python ≥ 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test check bench slurm-up slurm-down clean

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

slurm-up: $(READY)
	bash scripts/packages.sh
	@$(BIN)/python scripts/slurm_dev.py up

slurm-down:
	@$(BIN)/python scripts/slurm_dev.py down

clean:
	rm -rf $(VENV) build
