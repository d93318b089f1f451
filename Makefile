# One word per task; `make` alone lists them. Needs a Python 3.11 or newer and nothing else.
#
#   make setup PYTHON=/path/to/python    choose the Python
#   make test ARGS="-k barrier -x"       hand arguments to pytest
#   make test WORKERS=2                  with fewer workers, for a machine with less memory
#   make chaos KILLS=200 SEED=7          a long run of faults, which this seed decides
#   make lock UPGRADE=1                  take the newest versions that pyproject.toml allows

SHELL := /bin/sh
.DEFAULT_GOAL := help
.PHONY: help setup test demo services chaos lint bench lock clean
.DELETE_ON_ERROR:

PYTHON ?=
ARGS ?=
WORKERS ?= 4
UPGRADE ?=
KILLS ?= 20
SEED ?=

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --quiet
STAMP := $(VENV)/.laid-out
UV := uv==0.13.7

# Sets $$python to the first Python that fits, or stops with a sentence.
define find_python
python=; \
for one in $(if $(PYTHON),"$(PYTHON)",python3 python3.14 python3.13 python3.12 python3.11 python); do \
  if "$$one" -c 'import ensurepip, sys, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
    python=$$one; break; \
  fi; \
done; \
if [ -z "$$python" ]; then \
  echo "No Python 3.11 or newer with venv was found (tried: $(if $(PYTHON),$(PYTHON),python3, python3.11 to 3.14, python))." >&2; \
  echo "Install one (on Debian: python3 and python3-venv), or name it: make setup PYTHON=/path/to/python" >&2; \
  exit 1; \
fi
endef

help: ## list these commands
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

setup: $(STAMP) ## lay out .venv from the lock files, with the strobe command in it; fast when nothing changed
	@$(PY) -P src/strobe/hosts/spark/jvm/java.py >/dev/null 2>&1 || { \
	  echo "No Java 17 or newer here: installing a Java runtime into $(VENV)."; \
	  $(PIP) install --require-hashes --only-binary :all: -r requirements-java.lock && \
	  $(PY) -P src/strobe/hosts/spark/jvm/java.py >/dev/null; \
	} || { echo "Spark has no Java. Install Java 17 or newer, then: make setup" >&2; exit 1; }
	@$(PY) -P src/strobe/hosts/spark/job/record_classes.py
	@$(PY) -m compileall -q src  # .ci/run writes no bytecode: each of the commands that tests start would compile its own

# Every download is checked against a hash. pyspark is published as source only: it is built with the locked setuptools,
# never with one fetched on the side, hence no build isolation; everything else must come as a wheel.
$(STAMP): pyproject.toml requirements.lock requirements-build.lock
	@if ! $(PY) -c 'import pip, sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	  $(find_python); \
	  echo "Laying out $(VENV) with $$("$$python" --version). The first time this fetches about 700 MB."; \
	  "$$python" -m venv --clear $(VENV); \
	fi
	@$(PIP) install --require-hashes --only-binary :all: -r requirements-build.lock
	@$(PIP) install --require-hashes --only-binary :all: --no-binary pyspark --no-build-isolation -r requirements.lock
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(PIP) check
	@touch $@

test: setup ## run every test that runs without servers; the others say what they miss
	$(PY) -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(ARGS)

demo: setup ## a ledger on Spark, killed in the middle of a checkpoint, resumed, and checked by DuckDB (out/demo)
	$(VENV)/bin/strobe demo --dir out/demo

services: setup ## start Kafka, Postgres and an S3 API on loopback and say where they are, until Ctrl-C
	@$(PY) -m tests.services

chaos: setup ## kill and break everything under a ledger on Kafka, Postgres and Delta, then look for lost and doubled rows
	@$(PY) -m chaos --kills $(KILLS) $(if $(SEED),--seed $(SEED)) $(ARGS)

lint: setup ## ruff (rules and format) and mypy (strict)
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/mypy src tests chaos $(sort $(dir $(wildcard bench/*.py examples/*.py)))

bench: setup ## run every benchmark in bench/ with quick settings, then one table; each file says how to run it in full
	@report=$$(mktemp); trap 'rm -f "$$report"' EXIT; trap 'exit 1' INT TERM; export STROBE_BENCH_REPORT="$$report"; \
	failed=; for file in $(sort $(filter-out bench/_%,$(wildcard bench/*.py))); do \
	  echo "── $$file"; $(PY) "$$file" $(or $(ARGS),--quick) || failed="$$failed $$file"; \
	done; \
	echo; echo "Figures and targets$(if $(ARGS),, (quick settings: that it works, not how fast it is))"; \
	$(PY) bench/_report.py "$$report"; \
	if [ -n "$$failed" ]; then echo "These did not run to their end:$$failed" >&2; exit 1; fi

lock: ## resolve pyproject.toml into the lock files again (with a throw-away uv)
	@set -e; $(find_python); \
	dir=$$(mktemp -d); trap 'rm -rf "$$dir"' EXIT; trap 'exit 1' INT TERM; \
	"$$python" -m venv "$$dir/venv"; "$$dir/venv/bin/pip" --disable-pip-version-check --quiet install $(UV); \
	"$$python" -c 'import tomllib; p = tomllib.load(open("pyproject.toml", "rb")); \
	print(*p["build-system"]["requires"], sep="\n", file=open("'"$$dir"'/build.in", "w")); \
	print(*p["project"]["optional-dependencies"]["java"], sep="\n", file=open("'"$$dir"'/java.in", "w"))'; \
	compile() { \
	  "$$dir/venv/bin/uv" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
	    $(if $(UPGRADE),--upgrade) "$$@"; \
	}; \
	compile --extra spark --extra s3 --extra postgres --extra kafka --extra sql --extra ui --extra metrics --extra otel --extra sign --extra debug --extra dev pyproject.toml -o requirements.lock; \
	compile --no-annotate "$$dir/build.in" -o requirements-build.lock; \
	compile --no-annotate "$$dir/java.in" -o requirements-java.lock

clean: ## remove caches and what runs left behind; .venv and .strobe stay
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis build dist out spark-warehouse metastore_db derby.log
	find src tests chaos bench examples -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true
