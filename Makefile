# Two environments, each made by the first target that needs it, and again when the
# list it is made from changes:
#   .venv       light, no torch: transpile, check, diff, explain, lint, format
#   .venv-test  vLLM's CPU build: test, test-fast, verify, bench, compat

PYTHON ?= python3
MODEL =
LIGHT := .venv/bin/python
FULL := .venv-test/bin/python
FAST := -m "not engine and not slow" --numprocesses auto
PIP := -m pip install -qq --disable-pip-version-check
TORCH_INDEX := https://download.pytorch.org/whl/cpu

.DEFAULT_GOAL := help
.PHONY: help transpile check coverage diff explain verify conditions fuzz \
	operations bench compat test test-fast lint format clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

transpile: .venv/.ready ## write generated/MODEL.py; without MODEL= every checked-in file
	@$(LIGHT) -m transpiler $(MODEL)

check: .venv/.ready ## regenerate elsewhere and compare with the checked-in files
	@$(LIGHT) -m transpiler check $(or $(MODEL),--coverage)

coverage: .venv/.ready ## try every modeling file of transformers, write COVERAGE.md
	@$(LIGHT) -m transpiler coverage

diff: .venv/.ready ## upstream against generated, each changed statement with its rule
	@$(LIGHT) -m transpiler diff $(MODEL)

explain: .venv/.ready ## what was fused in MODEL=, what was refused and why
	@$(LIGHT) -m transpiler explain $(MODEL)

verify: .venv-test/.ready ## prove MODEL= equal to Transformers in a real vLLM engine
	@$(FULL) -m transpiler.verify $(MODEL)

conditions: .venv-test/.ready ## MODEL= under each way of running an engine
	@$(FULL) -m transpiler.verify.conditions $(MODEL)

N = 1000
SEED = 0
fuzz: .venv-test/.ready ## N= mutants of modeling files against what is made of them
	@$(FULL) -m transpiler.verify.fuzz $(MODEL) --number $(N) --seed $(SEED)

operations: .venv-test/.ready ## operations of a decode step beside vLLM's own and the backend
	@$(FULL) -m transpiler.verify.counts $(MODEL)

bench: .venv-test/.ready ## generated, vLLM's own class and the Transformers backend timed
	@$(FULL) -m transpiler.verify.bench $(MODEL)

compat: .venv-test/.ready ## every generated module against vLLM 0.33's Python part
	@$(FULL) tests/compat.py

test: .venv-test/.ready ## every test
	@$(FULL) -m pytest $(FAST)
	@$(FULL) -m pytest -m "engine or slow"

test-fast: .venv-test/.ready ## the tests that start no engine
	@$(FULL) -m pytest $(FAST)

lint: .venv/.ready-dev ## ruff, black and mypy
	@$(LIGHT) -m ruff check .
	@$(LIGHT) -m black --quiet --check --diff .
	@$(LIGHT) -m mypy

format: .venv/.ready-dev ## sort imports, fix what ruff can fix, black
	@$(LIGHT) -m ruff check --fix-only --quiet .
	@$(LIGHT) -m black --quiet .

clean: ## remove the environments, downloads and caches
	@rm -rf .venv .venv-test .compat build *.egg-info .mypy_cache .ruff_cache \
		.pytest_cache .hypothesis
	@find . -name __pycache__ -prune -exec rm -rf {} +

# transformers comes without its dependencies: only its text is read.
.venv/.ready: pyproject.toml tests/requirements.txt
	@$(call new_venv,.venv,some seconds)
	@$(LIGHT) $(PIP) -c tests/requirements.txt -e .
	@$(LIGHT) $(PIP) -c tests/requirements.txt --no-deps transformers
	@touch $@

.venv/.ready-dev: .venv/.ready
	@$(LIGHT) $(PIP) -c tests/requirements.txt -e '.[dev]'
	@touch $@

# torch==…+cpu is on PyTorch's own index; the first try serves machines that have it
# at hand, the second adds that index.
.venv-test/.ready: tests/requirements.txt
	@$(call new_venv,.venv-test,3.6 GB and some minutes)
	@$(FULL) $(PIP) --no-deps -r $< || { \
		echo "trying again with $(TORCH_INDEX)"; \
		$(FULL) $(PIP) --no-deps -r $< --extra-index-url $(TORCH_INDEX); }
	@touch $@

define new_venv
$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("Python 3.11 or \
newer is needed; $(PYTHON) is " + sys.version.split()[0] + ": say make PYTHON=...")' \
&& echo "setting up $(1): $(2)" && $(PYTHON) -m venv --clear $(1)
endef
