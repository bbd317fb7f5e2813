# On a fresh machine run `make demo` or `make test`; the first one installs everything into .venv.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.PHONY: demo test test-slow strain chaos chaos-cluster check format install clean

install: $(INSTALLED)

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[test]"
	touch $@

demo: $(INSTALLED)
	$(BIN)/tutti demo

# One test process per core, so each gets a single thread.
PARALLEL := OMP_NUM_THREADS=1 $(BIN)/pytest -n logical --maxprocesses 8 --dist worksteal

test: $(INSTALLED)
	$(PARALLEL)

test-slow: $(INSTALLED)
	$(PARALLEL) -m "slow and not ray and not strain"
	# Ray tests also wait: run three at a time, each with its own Ray
	$(BIN)/pytest -n 3 --dist worksteal -m "slow and ray and not strain"

strain: $(INSTALLED)
	$(BIN)/pytest -m strain

chaos: $(INSTALLED)
	CHAOS_MOMENTS=20 $(BIN)/pytest -m slow -s tests/chaos/test_chaos.py

chaos-cluster: $(INSTALLED)
	CHAOS_MOMENTS=20 $(BIN)/pytest -m slow -s tests/chaos/test_cluster_chaos.py

check: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) build *.egg-info platform/*.egg-info .mypy_cache .ruff_cache .pytest_cache
