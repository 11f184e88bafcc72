# pwgrid. On a fresh machine with Python 3.11+ and make: `make up` runs the grid, `make test` passes the tests.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
# Test processes at once, but for the tests of whole grids with real browsers: those have the machine to themselves.
JOBS ?= 2

.PHONY: help set-up set-up-dev up test check format bench soak chaos faults clean

help:  ## what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

set-up:  ## all set-up, and nothing else (a service's: systemd/pwgrid.service)
	@$(PYTHON) tools/bootstrap.py

set-up-dev:
	@$(PYTHON) tools/bootstrap.py --dev

up: set-up  ## all set-up, then the grid in the foreground (make up ARGS="--port 9000 --chromium 2")
	@exec $(BIN)/pwgrid serve --setup $(ARGS)

test: set-up-dev  ## all set-up, then the tests (make test ARGS="tests/unit")
	@$(BIN)/pwgrid setup --chromium 1
ifeq ($(ARGS),)
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile tests/unit tests/lua tests/process
	@$(BIN)/python -m pytest tests/e2e tests/faults
else
	@$(BIN)/python -m pytest $(ARGS)
endif

check: set-up-dev  ## format, lint, types, layers, tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(MAKE) --no-print-directory test

format: set-up-dev  ## formats the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

bench: set-up-dev  ## measures against a direct connection and writes bench/RESULTS.md
	@$(BIN)/pwgrid setup --chromium 1
	@$(BIN)/python -m bench $(ARGS)

soak: set-up-dev  ## random clients that close, vanish and freeze; then looks for leaks (make soak ARGS="--minutes 60")
	@$(BIN)/pwgrid setup --chromium 1
	@$(BIN)/python -m bench.soak $(ARGS)

chaos: set-up-dev  ## kills and stops processes at random under load (make chaos ARGS="--minutes 10 --seed 1")
	@$(BIN)/pwgrid setup --chromium 1
	@$(BIN)/python -m bench.chaos $(ARGS)

faults: set-up-dev  ## the kill table of docs/faults.md in figures (make faults ARGS="--rounds 5 proxy master")
	@$(BIN)/pwgrid setup --chromium 1
	@$(BIN)/python -m bench.faults $(ARGS)

clean:  ## removes what make has made
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
