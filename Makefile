# Each target makes .venv first (once, and again when the lock or the project file changes).
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: help venv test lint bench demo

help:
	@echo "make demo   an embedded broker, trained models, live events, the worker and a live view (ARGS='--seconds 30')"
	@echo "make test   ruff, mypy and all tests; those on a real Kafka need Java 17 and Maven"
	@echo "make bench  measurements, printed as ratios"
	@echo "make lint   ruff and mypy only"
	@echo "make venv   the virtual environment only"

venv: $(STAMP)

$(STAMP): requirements.lock pyproject.toml scripts/venv
	@scripts/venv $(VENV)

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint
	@{ command -v java && command -v mvn; } >/dev/null || \
		echo "NOTE: tests on a real Kafka are skipped: they need Java 17 and Maven (java and mvn on PATH)"
	$(BIN)/python -m pytest -m "not bench" $(ARGS)

bench: $(STAMP)
	$(BIN)/python -m tests.bench $(ARGS)

demo: $(STAMP)
	$(BIN)/scorelane demo $(ARGS)
