# Two commands from a fresh clone: `make demo` and `make test`. Each installs what it needs into .venv first.
PYTHON ?= python3
BIN := .venv/bin
PIP = $(BIN)/python -m pip install --disable-pip-version-check --quiet -c constraints.txt $(INSTALL_FLAGS)

# Where PyTorch comes from, if not from your package index (PyPI's for Linux brings gigabytes of CUDA).
TORCH_INDEX ?=

.PHONY: help demo docs docs-serve test test-slow test-flower test-flower-short test-flower-version test-nvflare test-zoo coverage mutants fuzz chaos lint types types-windows format package speed clean

help:  ## what can be made here
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

# One stamp per set of packages, so that a second call installs nothing; the larger set holds the smaller one.
TORCH := $(if $(TORCH_INDEX),--no-deps --index-url $(TORCH_INDEX) torch)
INSTALL = { test -x $(BIN)/python || $(PYTHON) -m venv .venv; } $(if $(TORCH),&& $(PIP) $(TORCH)) && $(PIP) -e

.venv/core.stamp: pyproject.toml constraints.txt
	@echo "Installing unfed and what it needs (once; a minute or two) ..."
	@$(INSTALL) .
	@touch $@

.venv/dev.stamp: pyproject.toml constraints.txt
	@echo "Installing unfed, what it needs, and the tools for tests and checks (once; a minute or two) ..."
	@$(INSTALL) '.[dev,flower,simulation,serve]'
	@touch .venv/core.stamp $@

demo: .venv/core.stamp  ## ten clients, one backdoor, three ways to forget; ends with a table and an HTML report
	@$(BIN)/unfed demo

# One process per core, eight at most: each imports PyTorch and computes on one thread. What Python compiles is kept, for
# the processes that tests start.
KEPT := PYTHONDONTWRITEBYTECODE= $(BIN)/python
ON_ALL_CORES := -m pytest -n auto --maxprocesses 8 --dist worksteal
PYTEST := OMP_NUM_THREADS=1 $(KEPT) $(ON_ALL_CORES)
EVERYTHING := -m 'not flower_processes and not nvflare and not zoo'

test: .venv/dev.stamp  ## the test suite, without what takes long; SLOW=1 with it, in one go, as CI runs it
	$(PYTEST) $(if $(SLOW),$(EVERYTHING))

test-slow: .venv/dev.stamp  ## the claims that take long
	$(PYTEST) -m slow

test-flower: .venv/dev.stamp  ## a real deployment on this machine: SuperLink, four SuperNodes, TLS, faults (minutes)
	$(KEPT) -m pytest -m flower_processes tests/flower/test_flower_processes.py tests/flower/test_flower_quickstarts.py tests/flower/test_flower_simulation.py tests/docs/test_notebooks.py

test-flower-short: .venv/dev.stamp  ## of these, one app on a SuperLink with four SuperNodes, and the notebook
	$(KEPT) -m pytest -m flower_processes -k "sklearn or simulator_is" tests/flower/test_flower_quickstarts.py tests/docs/test_notebooks.py

test-flower-version: .venv/dev.stamp  ## the Flower tests under another version, which is then in .venv: FLOWER=1.42.0
	@$(BIN)/python -m pip install --quiet flwr==$(FLOWER)
	$(PYTEST) -m 'not flower_processes' tests/flower tests/remote

# An environment of its own: what these libraries bring must not change what the other tests are run with.
.venv-zoo/stamp: .venv/dev.stamp
	@echo "Installing transformers, timm, peft and Lightning into .venv-zoo (once; minutes) ..."
	@test -x .venv-zoo/bin/python || $(PYTHON) -m venv .venv-zoo
	@.venv-zoo/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[dev,zoo]'
	@touch $@

test-zoo: .venv-zoo/stamp  ## real architectures of transformers, timm, peft and Lightning, built from a config (minutes)
	OMP_NUM_THREADS=1 .venv-zoo/bin/python -m pytest -m zoo tests/central/test_zoo.py

# An environment of its own: what NVFlare asks of protobuf and Flask is not what the other tests are run with.
.venv-nvflare/stamp: pyproject.toml constraints.txt
	@echo "Installing unfed and NVFlare into .venv-nvflare (once; minutes) ..."
	@test -x .venv-nvflare/bin/python || $(PYTHON) -m venv .venv-nvflare
	@$(if $(TORCH),.venv-nvflare/bin/python -m pip install --quiet -c constraints.txt $(TORCH))
	@.venv-nvflare/bin/python -m pip install --disable-pip-version-check --quiet -c constraints.txt -e '.[nvflare,trust]' pytest hypothesis
	@touch $@

test-nvflare: .venv-nvflare/stamp  ## NVFlare's tasks, its simulator, and one server with three sites as processes (minutes)
	OMP_NUM_THREADS=1 .venv-nvflare/bin/python -m pytest -m nvflare tests/remote/test_transports.py tests/nvflare

coverage: .venv/dev.stamp  ## what no test runs, as a page: build/coverage/uncovered.md (long; TESTS=tests/runs/test_run.py for less)
	$(BIN)/coverage erase
	OMP_NUM_THREADS=1 $(BIN)/coverage run $(ON_ALL_CORES) $(EVERYTHING) $(TESTS)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage json --quiet
	$(BIN)/python tools/uncovered.py

mutants: .venv/dev.stamp  ## bends one line of a method, an attack or a measure at a time and sees that a test fails (minutes)
	$(BIN)/python tools/mutants.py $(ONLY)

fuzz: .venv/dev.stamp  ## inputs nobody would write, two minutes of them (FUZZ_MINUTES=60 for more); prints counts
	$(BIN)/python tests/campaigns/fuzz.py

chaos: .venv/dev.stamp  ## kills commands at every disk operation, fills the disk; prints counts (CHAOS_STEP=10: a tenth of them)
	$(BIN)/python tests/campaigns/chaos.py

lint: .venv/dev.stamp  ## ruff, mypy on package and tests (the package also as if on Windows) and who may import whom, as CI runs them
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports --no-logo
	@$(MAKE) --no-print-directory -j2 types types-windows

types: .venv/dev.stamp  # the two take a minute each, and a core each
	$(BIN)/mypy

types-windows: .venv/dev.stamp
	$(BIN)/mypy --platform win32 --cache-dir .mypy_cache/win32 src/unfed

format: .venv/dev.stamp  ## let ruff put the code in order
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/dev.stamp  ## the documentation as pages in build/docs
	$(BIN)/python tools/reference.py
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: docs  ## the same pages on http://127.0.0.1:8000, with search
	$(BIN)/python -m http.server 8000 --bind 127.0.0.1 --directory build/docs

package: .venv/dev.stamp  ## sdist and wheel into dist/, looked into, and a small demo from the wheel
	$(BIN)/python tools/package.py

speed: .venv/dev.stamp  ## speed, as ratios in one run; writes benchmarks/records/
	$(BIN)/python benchmarks/engines.py

clean:  ## remove the environment, caches and demo runs
	rm -rf .venv .venv-nvflare .venv-zoo build dist runs .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
