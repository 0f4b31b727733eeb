# Everything runs through here; `make help` lists it. A fresh machine needs python3.11 or newer, make and a network.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory

VENV := .venv
BIN := $(VENV)/bin
# Written when the environment matches uv.lock; removed with it.
READY := $(VENV)/.ready
# How many tests run at once.
JOBS ?= 2
# What goes to the tool behind a command: make unit ARGS="-k swap"
ARGS ?=
TIMES ?= 20
# The commit that `make bench-versions` measures beside.
EARLIER ?= f321ba5
# The releases of pyspark that `make spark-versions` takes: versions, patterns, or newest.
SPARK_VERSIONS ?= 4.0.* newest

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-z-]+:.*## / {printf "  \033[36m%-8s\033[0m %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## Make the Python environment in .venv, exactly as uv.lock says
	@.ci/java-check || true

$(READY): pyproject.toml verification/pyproject.toml uv.lock .ci/setup
	@.ci/setup
	@touch $@

.PHONY: demo
demo: $(READY) ## Run a pipeline of PySpark jobs on one table and check it row by row (needs Java 17+)
	@$(BIN)/frazil demo $(ARGS)

.PHONY: test
test: $(READY) check unit races spark ## Lint, types, import rules, then the tests (those of Spark where there is a Java)

.PHONY: check
check: $(READY) ## Only the static checks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell src verification benchmarks docs README.md CONTRIBUTING.md CHANGELOG.md Makefile
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

.PHONY: unit
unit: $(READY) ## Only the unit, contract and surface tests
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m "not interop and not slow" tests/unit tests/contract tests/surface tests/properties tests/simulation $(ARGS)

.PHONY: races
races: $(READY) ## Only the races of real processes, one at a time, as each takes the whole machine; also beside an earlier version
	$(BIN)/pytest -m "not interop and not slow" tests/concurrency tests/wire tests/chaos $(ARGS)

.PHONY: spark
spark: $(READY) ## Only the tests of Spark (needs Java 17+): on this machine, and some on real executors and Spark Connect
	@if .ci/java-check; then \
	  $(BIN)/pytest -n $(JOBS) --dist loadfile -m "not slow" tests/spark $(ARGS); \
	  FRAZIL_TEST_SPARK=cluster $(BIN)/pytest -m "everywhere and not slow" tests/spark $(ARGS); \
	  FRAZIL_TEST_SPARK=connect $(BIN)/pytest -m "everywhere and not slow" tests/spark $(ARGS); \
	else echo "The tests of Spark were left out."; fi

.PHONY: spark-versions
spark-versions: $(READY) ## The tests of Spark with other releases of pyspark (SPARK_VERSIONS="4.0.* newest")
	@.ci/java-check
	@set -f; unset SPARK_HOME; failed=""; \
	for version in $(SPARK_VERSIONS); do \
	  bin="$$(.ci/spark-version "$$version")" && \
	  "$$bin/python" -c "import pyspark; print('pyspark', pyspark.__version__)" && \
	  $(MAKE) spark BIN="$$bin" || failed="$$failed $$version"; \
	done; \
	if [ -n "$$failed" ]; then echo "Failed with pyspark$$failed" >&2; exit 1; fi

.PHONY: interop
interop: $(READY) ## Read, write and race the same tables with Iceberg Java (needs a JDK 17+ and Maven)
	@.ci/java-check
	$(BIN)/python tests/interop/jars.py
	$(BIN)/pytest -n $(JOBS) --dist loadfile -m interop tests/interop $(ARGS)

.PHONY: bench
bench: $(READY) ## Measure beside PyIceberg in one run; prints ratios, writes JSON
	for script in benchmarks/commits.py benchmarks/bulk.py benchmarks/checks.py; do $(BIN)/python $$script $(ARGS); done

.PHONY: bench-spark
bench-spark: $(READY) ## Measure on Spark beside Iceberg's own runtime (needs a JDK 17+ and Maven); prints ratios, writes JSON
	@.ci/java-check
	$(BIN)/python benchmarks/on_spark.py $(ARGS)

.PHONY: bench-contention
bench-contention: $(READY) ## Measure 1 to 100 writers on one table beside Iceberg Java, PyIceberg, delta-rs and DuckLake; draws build/contention.png
	@.ci/java-check
	PATH="$(CURDIR)/.tools/bin:$$PATH" UV_PROJECT_ENVIRONMENT=$(VENV) uv run --frozen --group bench python benchmarks/contention.py $(ARGS)

.PHONY: bench-redo
bench-redo: $(READY) ## Measure statements that are redone: a delete beside Iceberg's own runtime (needs a JDK 17+ and Maven), a merge beside appends
	@.ci/java-check
	$(BIN)/python benchmarks/redo.py $(ARGS)

.PHONY: bench-transactions
bench-transactions: $(READY) ## Measure transactions over three tables: one beside a commit to one table, 8 processes beside DuckLake
	PATH="$(CURDIR)/.tools/bin:$$PATH" UV_PROJECT_ENVIRONMENT=$(VENV) uv run --frozen --group bench python benchmarks/transactions.py $(ARGS)

.PHONY: bench-groups
bench-groups: $(READY) ## Measure 30 writers that commit together: mixed operations beside a model, and a table that grows old
	$(BIN)/python benchmarks/groups.py $(ARGS)

.PHONY: bench-clustering
bench-clustering: $(READY) ## Measure what filters read before and after clustering; draws build/clustering.png (ARGS=--quick)
	$(BIN)/python benchmarks/clustering.py $(ARGS)

.PHONY: bench-versions
bench-versions: $(READY) ## Measure a lone writer and 30 processes beside an earlier version (EARLIER=f321ba5)
	$(BIN)/python benchmarks/versions.py --earlier "$$(.ci/earlier-version $(EARLIER))" $(ARGS)

.PHONY: isolation
isolation: $(READY) ## One workload on Frazil, PyIceberg, Iceberg Java, delta-rs and DuckLake, under the history checker (ARGS="--show pyiceberg-upsert")
	@.ci/java-check
	PATH="$(CURDIR)/.tools/bin:$$PATH" UV_PROJECT_ENVIRONMENT=$(VENV) uv run --frozen --group bench python benchmarks/isolation.py $(ARGS)

.PHONY: histories
histories: $(READY) ## Thousands of random commits, also by 8 processes on SQLite and Postgres, beside a sequential model
	$(BIN)/python -m tests.concurrency.histories --seeds 20 --sessions 150 $(ARGS)
	for uri in sqlite postgres; do $(BIN)/python -m tests.concurrency.histories --processes --uri $$uri --sessions 300 --every 5 $(ARGS); done

.PHONY: leaders combiners
leaders: $(READY) ## Group leaders killed and frozen 2,000 times, on SQLite and Postgres (ARGS="--rounds 100 --database sqlite")
	$(BIN)/python -m tests.concurrency.leaders $(ARGS)

combiners: leaders

.PHONY: redo
redo: $(READY) ## 200 statements of each verb beside 1 and 8 appenders of matching rows, on SQLite and Postgres (ARGS="--others --engine spark")
	$(BIN)/python -m tests.concurrency.redo $(ARGS)

.PHONY: bank
bank: $(READY) ## Ten minutes of transfers between tables with kills, and 1,000 crashes, on SQLite and Postgres (ARGS="--seconds 60")
	$(BIN)/python -m tests.concurrency.bank $(ARGS)

.PHONY: many-tables
many-tables: $(READY) ## A thousand tables created, changed and dropped in one transaction each, on each database (about 5 minutes)
	FRAZIL_MANY_TABLES=1000 $(BIN)/pytest -q tests/surface/test_many_tables_bad_input.py -k many_tables_are --durations 3 $(ARGS)

.PHONY: simulate
simulate: $(READY) ## The commit core on a virtual clock with faults, 300 seeds (ARGS="--seed 300 --seeds 16000")
	$(BIN)/frazil simulate --seed 0 --seeds 300 --jobs 2 --keep build/seeds $(ARGS)

.PHONY: simulate-long
simulate-long: $(READY) ## A million simulated commits in hours; ended, it goes on where it was (ARGS="--commits 100000")
	$(BIN)/python benchmarks/simulated.py $(ARGS)

.PHONY: mutants
mutants: $(READY) ## Take each rule out of the source in turn: its tests must notice (ARGS="--only P1 P9")
	$(BIN)/python -m tests.mutants $(ARGS)

.PHONY: simulate-mutants
simulate-mutants: $(READY) ## The same, noticed by the simulator within 1,000 seeds
	$(BIN)/python -m tests.mutants --by simulator --jobs 2 $(ARGS)

.PHONY: model
model: $(READY) ## Explore the models of the protocol (ARGS="--bounds large", or --off RULE for a counterexample)
	$(BIN)/python -m frazil_verification.model $(ARGS)

.PHONY: chaos
chaos: $(READY) ## Kills, stops, cuts, restarts and bad disks on real SQLite and Postgres (ARGS="--faults 5000")
	$(BIN)/python -m tests.chaos $(ARGS)

.PHONY: services
services: $(READY) ## kill -9 of expiry and orphan removal at every phase, many rounds on each database (ROUNDS=60)
	FRAZIL_TEST_ROUNDS=$(or $(ROUNDS),60) $(BIN)/pytest tests/concurrency/test_killed_services.py --timeout 0 $(ARGS)

.PHONY: soak
soak: $(READY) ## The races and the kill -9 runs again and again (TIMES=20)
	for round in $$(seq $(TIMES)); do echo "round $$round"; $(BIN)/pytest -q tests/concurrency $(ARGS); done

.PHONY: fleet
fleet: $(READY) ## Two minutes of 4 streams, backfill, deletes, merges, compaction, schema changes and readers on one table
	$(BIN)/pytest -q -m slow tests/spark/test_fleet.py $(ARGS)

.PHONY: lab
lab: $(READY) ## Compare ways of waiting after a lost race; prints a table, draws build/lab-backoff.png
	mkdir -p build
	$(BIN)/frazil lab backoff --plot build/lab-backoff.png $(ARGS)

.PHONY: docs
docs: $(READY) ## Write the pages that are made from the code (errors, guarantees, architecture, types)
	FRAZIL_WRITE_DOCS=1 $(BIN)/pytest -q -k generated tests/unit/test_docs.py tests/unit/test_public_api.py tests/unit/test_architecture.py tests/spark/test_types.py

.PHONY: fmt
fmt: $(READY) ## Format the code and repair what ruff can
	$(BIN)/ruff check --fix-only .
	$(BIN)/ruff format .

.PHONY: clean
clean: ## Remove the environment, caches and what the demo left
	rm -rf $(VENV) .venvs .tools .jars demo-lake dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src verification tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
