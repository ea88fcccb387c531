# The commands of a developer. Each sets up what it needs; the second time that costs nothing.

PYTHON ?=
SPARK40 := 4.0.5
PYTEST_ARGS ?=
# Processes that run the tests; each holds a JVM and, where it needs them, servers of its own.
JOBS ?= 2
# In the order of their names: in xdist's own, by the number of tests, the files with few and long ones would come last.
SHARED := -n $(JOBS) --dist loadfile --no-loadscope-reorder
export PYTHON

.DEFAULT_GOAL := help
.PHONY: help demo test test-all test-exhaustive test-spark40 test-mysql lint format docs bench bench-scale bench-routing bench-schema bench-storage bench-isolation clean java servers

help: ## Show this list
	@sed -n 's/^\([a-z0-9-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 16

demo: .venv/.installed java ## Watch real statements fail, be killed and recover, beside stock Spark (under two minutes)
	@.venv/bin/python -m demo

test: .venv/spark.jsa servers ## Prove each promise once (under ten minutes)
	@.venv/bin/python -m pytest $(SHARED) -m quick $(PYTEST_ARGS)

test-all: .venv/spark.jsa servers ## Run the tests, but what repeats others (over an hour)
	@.venv/bin/python -m pytest $(SHARED) -m "not exhaustive" $(PYTEST_ARGS)

test-exhaustive: .venv/spark.jsa servers ## Run what repeats others (over an hour)
	@.venv/bin/python -m pytest $(SHARED) -m exhaustive $(PYTEST_ARGS)

test-spark40: .venv-spark40/.installed java servers ## Run the subset that guards PySpark 4.0
	@.venv-spark40/bin/python -m pytest $(SHARED) -m "spark40 and not exhaustive" $(PYTEST_ARGS)

# What the tests have for MariaDB, with MySQL in its place, and what only MySQL has. Left out: other databases, a setting
# of Galera clusters, and databases that a block creates or drops.
MYSQLD ?=
MYSQL_TESTS := tests/jdbc tests/jdbc/mysql_only.py tests/schema/test_schema_history.py tests/crash/test_jdbc_matrix.py
test-mysql: .venv/.installed java servers ## Run the JDBC tests on a MySQL server (20 minutes; MYSQLD=PROGRAM, else Debian's)
	@program=$$(MYSQLD="$(MYSQLD)" scripts/mysqld .mysql) && TWOPHASE_MYSQLD=$$program .venv/bin/python -m pytest $(SHARED) \
	  $(MYSQL_TESTS) -m "not exhaustive" -k "not sqlite and not postgres and not duckdb and not wsrep and not mariadb-databases" $(PYTEST_ARGS)

lint: .venv/.installed ## Run ruff and mypy
	@.venv/bin/python -m ruff check
	@scripts/typecheck .venv/bin/python

format: .venv/.installed ## Let ruff format the code
	@.venv/bin/python -m ruff format

# mkdocstrings reads files: it is shown the packages as they are installed.
docs: .venv/.docs ## Make the tables of the pages from the code, and build the site into build/site
	@.venv/bin/python -m scripts.generate_docs
	@rm -rf build/api && .venv/bin/python setup.py --quiet build_py --build-lib build/api
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs --quiet build --strict
	@echo "Built build/site/index.html"

bench: .venv/.installed java ## Measure CTAS against stock Spark; options: make bench ARGS="--rows 1,1000000"
	@.venv/bin/python -m benchmarks.hive_ctas $(ARGS)

bench-scale: .venv/.installed java servers ## Measure what a statement costs beside what it does not touch (an hour; ARGS="--small" for a look)
	@.venv/bin/python -m benchmarks.scale $(ARGS)

bench-isolation: .venv/.installed java servers ## Measure what isolation costs (some minutes; ARGS="--only begin,reads")
	@.venv/bin/python -m benchmarks.isolation $(ARGS)

bench-routing: .venv/.installed java ## Measure what routing adds to each kind of statement (some minutes; ARGS="--only select,insert")
	@.venv/bin/python -m benchmarks.routing $(ARGS)

bench-schema: .venv/.installed java ## Measure ALTER TABLE by the files of a table, and reading an evolved one (some minutes; ARGS="--files 10,1000")
	@.venv/bin/python -m benchmarks.schema_tables $(ARGS)

bench-storage: .venv/.installed java ## Count the requests that each kind of write makes to an object store (some minutes; ARGS="--files 10,1000")
	@.venv/bin/python -m benchmarks.storage $(ARGS)

clean: ## Remove the environments and everything built
	rm -rf .venv .venv-spark40 build dist .demo .mysql .pytest_cache .mypy_cache .ruff_cache .hypothesis

java:
	@scripts/check-java

servers:
	@scripts/check-servers

.venv/.installed: setup.cfg setup.py pyproject.toml constraints.txt scripts/venv
	@scripts/venv .venv
	@touch $@

# A fifth of the tests' time would go into loading Spark's classes. Made once for an environment; takes half a minute.
.venv/spark.jsa: .venv/.installed tests/class_archive.py | java
	@echo "Archiving Spark's classes, from which the tests start ..."
	@.venv/bin/python -m tests.class_archive $@ 2>$@.log || echo "That failed, see $@.log: the tests run without it, and slower."

.venv/.docs: .venv/.installed
	@.venv/bin/python -m pip install -qq --disable-pip-version-check --constraint constraints.txt --editable ".[docs]"
	@touch $@

.venv-spark40/.installed: setup.cfg setup.py pyproject.toml constraints.txt scripts/venv
	@scripts/venv .venv-spark40 $(SPARK40)
	@touch $@
