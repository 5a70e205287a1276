# Each target sets itself up: .venv from the lock file, on any machine with Python >= 3.11.
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

$(STAMP): locks/dev.txt locks/install pyproject.toml
	@sh locks/install $(VENV) locks/dev.txt

setup: $(STAMP)  ## make .venv from the lock file

demo: $(STAMP)  ## a real run on two local targets, ready to migrate; HEADLESS=1 moves it without a terminal
	@$(BIN)/midstream --demo $(if $(HEADLESS),--headless --json)

lab: $(STAMP)  ## a shell with a Cloud TPU service, a bucket and hosts on loopback; ARGS="COMMAND" runs one in it
	@$(BIN)/python tests/simulators/play.py $(ARGS)

test: $(STAMP)  ## the test suite without the long campaigns
	@$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal $(ARGS)

test-slow: $(STAMP)  ## the long fault campaigns
	@$(BIN)/python -m pytest -m slow $(ARGS)

lint: $(STAMP)  ## ruff, pyright, import-linter
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/pyright

bench: $(STAMP)  ## the benchmarks: ratios beside public tools, each in one run
	@for each in benchmarks/*.py; do $(BIN)/python $$each || exit 1; done

format: $(STAMP)  ## mend what ruff can mend
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: $(STAMP)  ## resolve the lock files anew (needs uv)
	@sh locks/resolve

clean:  ## remove .venv and caches
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache

.PHONY: help setup demo lab test test-slow lint bench format lock clean
