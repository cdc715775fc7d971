# Two commands matter: `make demo` and `make test`. Both make .venv and install what is pinned; both may be run again at any time.
PYTHON ?= python3.11
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test setup lint types architecture unit schema clean

setup: $(STAMP)

$(STAMP): pyproject.toml requirements/pinned.txt requirements/compiler.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 -r requirements/pinned.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps -r requirements/compiler.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(STAMP)

demo: setup
	mkdir -p build/demo
	$(BIN)/leadline optimize examples/head_norm.py -o build/demo/head_norm_best.py
	$(BIN)/leadline report last --format html > build/demo/report.html
	@echo "report: build/demo/report.html"

lint: setup
	$(BIN)/ruff check src tests benchmarks

types: setup
	$(BIN)/pyright -p pyproject.toml

architecture: setup
	$(BIN)/lint-imports

unit: setup
	$(BIN)/pytest

test: lint types architecture unit

clean:
	rm -rf build .pytest_cache .ruff_cache
