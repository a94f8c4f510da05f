# Every target works alone and first, in a fresh clone. It needs Python 3.11+ (with venv) and make; Java 17 or 21 is
# used where it is found.
# Everything that is installed or downloaded stays in .venv and .cache; `make clean` takes it away.

PYTHON ?= python3
SHELL := bash
ARGS ?=
SEED := $(shell expr $$(date +%s) / 86400)

CACHE := $(CURDIR)/.cache
BIN := $(CURDIR)/.venv/bin
UV := $(CACHE)/uv-bootstrap/bin/uv
READY := $(CURDIR)/.venv/.ready

# uv: its cache and environment inside the clone, the interpreter that is here, and no settings of this user.
export UV_CACHE_DIR := $(CACHE)/uv
export UV_PROJECT_ENVIRONMENT := $(CURDIR)/.venv
export UV_PYTHON_DOWNLOADS := never
export UV_NO_CONFIG := 1
unexport VIRTUAL_ENV
unexport PYTHONPATH
unexport PYTHONHOME
# Tests start hundreds of Pythons: each would compile again all that it imports, which takes longer than the rest.
unexport PYTHONDONTWRITEBYTECODE
# Kafka's jars and what Ivy and Maven keep.
export DEDUP_CACHE := $(CACHE)/dedup
# spark-submit starts the first `python3` of the PATH.
export PATH := $(BIN):$(PATH)

# The suite in parts that run side by side: many wait for brokers, leases and processes.
MOCK := test-mock-1 test-mock-2 test-mock-3 test-mock-4
JOBS := test-jobs-1 test-jobs-2
BROKERS := test-brokers-1 test-brokers-2
QUICK := $(MOCK) test-kafka test-rest test-logic test-spark
LONG := test-long $(JOBS) $(BROKERS) test-chaos
# The longest first; parts that compute have beside them parts that wait.
FIRST := test-long test-mock-1 test-jobs-1 test-mock-2 test-brokers-1 test-mock-3 test-jobs-2 test-mock-4
CHAOS := chaos-half-1 chaos-half-2
LOGIC := tests/unit tests/contract tests/property tests/model tests/docs
# "rest" is all that no other part has, so that no folder is forgotten.
APART := tests/spark tests/mock tests/integration/kafka $(LOGIC)
SLOW = $(shell grep -rl 'mark\.slow' tests --include='test_*.py')
# The files of a folder take turns among parts, so that these stay of one length, and no file is forgotten.
share = $(shell find $(1) -name 'test_*.py' | LC_ALL=C sort \
  | awk 'NR % $(words $(2)) == $(lastword $(subst -, ,$@)) % $(words $(2))')
# As many at a time as `make -j` says, else six.
PARTS = $(MAKE) --no-print-directory -k $(if $(filter -j%,$(MAKEFLAGS)),,-j6)
# With one real broker for all of them.
SIDE_BY_SIDE = +@$(BIN)/python -m tests.support.one_broker $(PARTS)
# Make's own variables are not for the commands that tests start.
PYTEST := env -u MAKEFLAGS -u MFLAGS -u MAKELEVEL $(BIN)/pytest

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup packages demo test test-all $(QUICK) $(LONG) smoke check format docs bench chaos chaos-once $(CHAOS)
.PHONY: ci ci-parts ci-begin dist clean

help: ## what can be made
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1	\2/p' Makefile

setup: $(READY) ## the environment in .venv, from uv.lock

$(UV):
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
	  || { echo "make: '$(PYTHON)' is no Python 3.11 or newer; name one: make PYTHON=/path/to/python3.11" >&2; exit 1; }
	@mkdir -p $(CACHE)
	@rm -rf $(CACHE)/uv-bootstrap
	@$(PYTHON) -m venv $(CACHE)/uv-bootstrap >/dev/null \
	  || { rm -rf $(CACHE)/uv-bootstrap; \
	       echo "make: '$(PYTHON) -m venv' failed; on Debian: apt-get install python3-venv" >&2; exit 1; }
	@$(CACHE)/uv-bootstrap/bin/python -m pip --disable-pip-version-check --no-cache-dir --quiet install 'uv>=0.8,<1' \
	  || { rm -rf $(CACHE)/uv-bootstrap; echo "make: uv could not be installed from its package (see above)" >&2; exit 1; }

$(READY): pyproject.toml uv.lock | $(UV)
	@echo "make: installing the environment in .venv, which takes a minute or more the first time" >&2
	@$(UV) sync --quiet --locked --all-extras --python "$$($(PYTHON) -c 'import sys; print(sys.executable)')"
	@touch $@

packages: $(READY) ## other versions of dependencies in .venv (PACKAGES="confluent-kafka==2.13.0", or the newest)
	@$(UV) pip install --quiet --python .venv/bin/python --upgrade $(PACKAGES:%='%')

demo: $(READY) ## the main job on a real Kafka and real data (ARGS="--records 20000 --json")
	@$(BIN)/dedup demo $(ARGS)

ifdef ARGS
test: check ## check, then the tests that are not slow, in parts side by side (ARGS="tests/mock -k commit": any tests)
	@$(PYTEST) $(ARGS)
else
test: check
	$(SIDE_BY_SIDE) $(QUICK)
endif

test-all: $(READY) ## check, then the whole suite
	$(SIDE_BY_SIDE) $(FIRST) $(LONG) $(QUICK) check

test-logic: $(READY)
	@$(PYTEST) -o cache_dir=.pytest_cache/logic -m "not slow" $(LOGIC)

$(MOCK): $(READY)
	@$(PYTEST) -o cache_dir=.pytest_cache/$(@:test-%=%) -m "not slow" $(call share,tests/mock,$(MOCK))

test-kafka: $(READY)
	@$(PYTEST) -o cache_dir=.pytest_cache/kafka -m "not slow" tests/integration/kafka

test-spark: $(READY)
	@$(PYTEST) -o cache_dir=.pytest_cache/spark -m "not slow" tests/spark

test-rest: $(READY)
	@$(PYTEST) -o cache_dir=.pytest_cache/rest -m "not slow" $(APART:%=--ignore=%)

# Mostly those that start a Spark of their own, and wait for it.
$(JOBS): $(READY)
	@$(PYTEST) -o cache_dir=.pytest_cache/$(@:test-%=%) -m slow $(call share,tests/spark,$(JOBS))

smoke: $(READY) ## the Spark job as a guest in the PySpark that is installed
	@$(PYTEST) -o cache_dir=.pytest_cache/smoke tests/spark/test_guest.py tests/spark/test_fold_files.py

test-chaos: $(READY)
	@$(PYTEST) -o cache_dir=.pytest_cache/chaos -m slow tests/chaos

$(BROKERS): $(READY)
	@$(PYTEST) -o cache_dir=.pytest_cache/$(@:test-%=%) -m slow $(call share,tests/integration,$(BROKERS))

# Of all other folders the files alone that have slow tests: to collect the rest takes longer than most of them.
test-long: $(READY)
	@$(PYTEST) -o cache_dir=.pytest_cache/long -m slow \
	  $(filter-out tests/spark/% tests/chaos/% tests/integration/%,$(sort $(SLOW)))

check: $(READY) ## ruff, its formatter, mypy, pyright on users' programs, the workflows and the Compose file
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet || { echo "make: files are not formatted; run: make format" >&2; exit 1; }
	@$(BIN)/mypy --no-error-summary $(wildcard dedup_sdk adapters/dedup_adapters spark_backfill tests benchmarks \
	  examples docs/site hatch_build.py)
	@$(BIN)/basedpyright --level error > .cache/pyright.txt || { cat .cache/pyright.txt; exit 1; }
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@$(BIN)/check-jsonschema --quiet --builtin-schema vendor.compose-spec docker-compose.yml
	@$(BIN)/zizmor --quiet --offline --no-progress .github/workflows
	@echo "check: ruff, mypy, pyright and the linters of workflows and Compose have nothing to say"

format: $(READY) ## formats the code and applies ruff's safe fixes
	@$(BIN)/ruff check --quiet --fix-only
	@$(BIN)/ruff format

docs: $(READY) ## the documentation as a site, in .cache/site; a broken link, or a name without a docstring, is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@! grep -rnoE '<(script|img|iframe)[^>]* src="?https?:[^ >]*|<link[^>]* href="?https?:[^ >]*[^>]*stylesheet' \
	    .cache/site --include='*.html' \
	  || { echo "make: pages load something from elsewhere (see above)" >&2; exit 1; }
	@echo "docs: open .cache/site/index.html"

bench: $(READY) ## throughput against a bare consumer (ARGS="--records 100000 --json")
	@$(BIN)/python benchmarks/throughput.py $(ARGS)

chaos: $(READY) ## consumers under faults, every scenario on every group protocol (ARGS="--scenario kill --minutes 1")
	@$(BIN)/python -m tests.chaos --protocol all $(ARGS)

# What tests would wait for: made while the machine that runs them gets its packages.
ci-begin: $(READY)
	@$(BIN)/python -m tests.support.quick_java

# A test that fails beside the others is repeated alone at the end. Broken variants take turns: a third of them, by SEED.
ci: export DEDUP_TEST_TURN := $(SEED)
ci: $(READY) ## everything that must hold: the suite, the site, every chaos scenario, all at once
	+@$(BIN)/python -m tests.support.repeating $(PARTS) ci-parts

# The longest first.
ci-parts: chaos-once test-all docs

# SEED chooses the protocol of each scenario; then all faults at once are played for three minutes.
chaos-once: $(CHAOS)

# Workers mostly wait: two halves side by side, on a broker each.
$(CHAOS): $(READY)
	@$(BIN)/python -m tests.chaos --protocol rotate --seed $(SEED) --soak-minutes 3 --share $(@:chaos-half-%=%)/2

dist: $(READY) ## the wheel and the source distribution in dist, and a look at their contents
	@rm -rf dist
	@$(UV) build --quiet
	@$(BIN)/python -m zipfile -l dist/*.whl | awk '{print $$1}' | grep / | cut -d/ -f1 | sort -u | grep -v dist-info \
	  | tr '\n' ' ' \
	  | diff - <(printf 'dedup_adapters dedup_sdk spark_backfill ') \
	  || { echo "make: the wheel has other top-level packages" >&2; exit 1; }
	@! git rev-parse --git-dir >/dev/null 2>&1 \
	  || comm -23 <(git ls-files | LC_ALL=C sort) <(tar -tzf dist/*.tar.gz | cut -d/ -f2- | LC_ALL=C sort) | { ! grep .; } \
	  || { echo "make: the source distribution lacks these files" >&2; exit 1; }
	@ls dist

clean: ## removes .venv, .cache and the tools' own caches
	@rm -rf .venv .cache .mypy_cache .ruff_cache .pytest_cache .hypothesis dist
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
	@echo "clean: what make installed is gone"
