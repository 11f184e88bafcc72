# pwgrid. On a fresh machine with Python 3.11+ and make: `make up` runs the grid, `make test` passes the tests.
.DEFAULT_GOAL := help
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
LINK ?=
# Test processes at once: two that begin with whole grids and real browsers, which keep more than one core busy each, and
# others that begin with files that mostly wait (tests/support/xdist_lanes.py). With 3 a third of the time of two cores was idle.
JOBS ?= 4
# What has the longest files comes first, so that no process is left alone with one at the end.
TESTS ?= tests/faults tests/e2e tests/process tests/hostile tests/lua tests/unit
# Python's caches are written, whatever a container says: else each process of each grid compiles all of the code again.
test bench soak chaos faults: export PYTHONDONTWRITEBYTECODE =

.PHONY: help set-up set-up-dev up link test check format lock bench soak chaos faults container-check clean

help:  ## says what there is
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 12

set-up:  ## makes .venv and installs pwgrid into it, no browsers (for a service: systemd/pwgrid.service)
	@$(PYTHON) tools/bootstrap.py

set-up-dev:
	@$(PYTHON) tools/bootstrap.py --dev

up: set-up  ## sets everything up, then runs the grid in the foreground (make up ARGS="--port 9000 --chromium 2")
	@$(BIN)/pwgrid setup $(ARGS)
	@$(BIN)/python tools/link_command.py $(LINK) || true
	@exec $(BIN)/pwgrid serve $(ARGS)

link: set-up  ## puts a link to the command into ~/.local/bin or ~/bin, or where you say (make link LINK=/usr/local/bin)
	@$(BIN)/python tools/link_command.py $(LINK)

test: set-up-dev  ## sets everything up, then runs the tests (make test ARGS="tests/unit")
	@$(BIN)/pwgrid setup --chromium 1
	@$(BIN)/pwgrid setup --chromium 1 --headed --prefer system || echo "pwgrid: what needs windows is skipped"
	@$(BIN)/pwgrid setup --chromium 0 --firefox 1 --video || echo "pwgrid: what needs it is skipped, and the last lines say so"
	@$(BIN)/python tools/promtool.py
	@$(BIN)/python tools/reverse_proxies.py
ifeq ($(ARGS),)
	@$(BIN)/python -m pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder $(TESTS) || { \
	echo "pwgrid: what failed runs once more, with nothing beside it" && \
	$(BIN)/python -m pytest --last-failed --last-failed-no-failures none $(TESTS) && \
	echo "pwgrid: it failed on a busy machine only: see the report above, this is a fault of the test or of the grid"; }
else
	@$(BIN)/python -m pytest $(ARGS)
endif

check: set-up-dev  ## checks format, lint, types and layers, then runs the tests
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports
	@$(MAKE) --no-print-directory test

format: set-up-dev  ## formats the code
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

LOCK := pip compile --quiet --universal --generate-hashes --only-binary :all: --no-strip-extras --group build \
	--custom-compile-command "make lock" pyproject.toml
lock:  ## pins the newest allowed version of each package in requirements.txt and requirements-dev.txt
	@directory=$$(mktemp -d) && trap 'rm -rf $$directory' EXIT && \
	$(PYTHON) -m venv $$directory && $$directory/bin/pip install --quiet uv && \
	$$directory/bin/uv $(LOCK) --extra dev --upgrade --output-file requirements-dev.txt >/dev/null && \
	cp requirements-dev.txt requirements.txt && \
	$$directory/bin/uv $(LOCK) --output-file requirements.txt >/dev/null  # keeps the versions that it finds there

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

# The first build, within the first test, fetches packages for minutes.
container-check: set-up-dev  ## builds Containerfile with podman or docker and runs it as docs/container.md says
	@$(BIN)/python -m pytest --timeout 1500 tests/container $(ARGS)

clean:  ## removes .venv, the link to its command (make clean LINK=/usr/local/bin), and the caches of the tools
	@$(PYTHON) tools/link_command.py --remove $(LINK)
	rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis
