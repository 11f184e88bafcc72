# pwgrid. On a fresh machine with Python 3.11+ and make: `make up` runs the grid, `make test` passes the tests.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=

.PHONY: help up test check format bench soak chaos clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

.venv/.pwgrid: pyproject.toml tools/bootstrap.py
	@$(PYTHON) tools/bootstrap.py

.venv/.pwgrid-dev: pyproject.toml tools/bootstrap.py
	@$(PYTHON) tools/bootstrap.py --dev

up: .venv/.pwgrid  ## all set-up, then the grid in the foreground (make up ARGS="--port 9000 --chromium 2")
	@exec $(BIN)/pwgrid serve --setup $(ARGS)

test: .venv/.pwgrid-dev  ## all set-up, then the tests (make test ARGS="tests/unit")
	@$(BIN)/pwgrid setup --chromium 1
	@$(BIN)/python -m pytest $(ARGS)

check: .venv/.pwgrid-dev  ## format, lint, types, layers, tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(MAKE) --no-print-directory test

format: .venv/.pwgrid-dev  ## formats the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: .venv/.pwgrid-dev  ## measures against a direct connection and writes bench/RESULTS.md
	@$(BIN)/pwgrid setup --chromium 1
	@$(BIN)/python -m bench $(ARGS)

soak: .venv/.pwgrid-dev  ## random clients that close, vanish and freeze; then looks for leaks (make soak ARGS="--minutes 60")
	@$(BIN)/python -m bench.soak $(ARGS)

chaos: .venv/.pwgrid-dev  ## kills and stops processes at random under load (make chaos ARGS="--minutes 10 --seed 1")
	@$(BIN)/python -m bench.chaos $(ARGS)

clean:  ## removes what make has made
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
