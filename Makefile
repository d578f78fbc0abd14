# make quickstart   train on the sentences in examples/quickstart, score, show nearest neighbours
# make test         lint and test
# Both make .venv first and install into it; a second call finds it done.

PYTHON ?= python3
PIP := .venv/bin/python -m pip install --disable-pip-version-check --quiet

.PHONY: quickstart test clean

quickstart: .venv/quickstart
	.venv/bin/python examples/quickstart/run.py

test: .venv/test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python -m pytest -n 2

.venv/core: requirements.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv .venv
	$(PIP) -r requirements.txt
	touch $@

.venv/test: .venv/core tests/requirements.txt
	$(PIP) -r tests/requirements.txt
	touch $@

.venv/quickstart: .venv/core examples/quickstart/requirements.txt
	$(PIP) --no-deps --require-hashes -r examples/quickstart/requirements.txt
	touch $@

clean:
	rm -rf .venv
