# Two commands do everything: `make demo` and `make test`. Both install what they need into .venv, once.
# For PyTorch's CPU-only build, where the default one brings CUDA: make demo TORCH_INDEX=<address of PyTorch's CPU index>
PYTHON ?= python3
INSTALL = .venv/bin/pip install --quiet --constraint constraints.txt

.PHONY: help demo test test-slow format lint coverage docs reference golden kill kill-many fuzz clean

help:                            ## this list
	@echo '`make demo` and `make test` do everything, and install what they need into .venv, once.'
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-11s %s\n", $$1, $$2 }' Makefile

demo: .venv/installed            ## train a ViT on handwritten digits, in about a minute
	.venv/bin/vitral train digits

test: lint                       ## lint, types, fast tests
	.venv/bin/pytest -n 2

test-slow: .venv/installed-for-tests  ## the tests that take minutes
	.venv/bin/pytest -m slow -n 2 --dist worksteal

format: .venv/installed-for-tests  ## put the code into the one form, and mend what can be mended by itself
	.venv/bin/ruff check --fix .
	.venv/bin/ruff format .

lint: .venv/installed-for-tests  ## what `make test` says of the code before it runs: ruff, mypy
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy

coverage: .venv/installed-for-tests  ## which lines no fast test runs
	.venv/bin/coverage run -m pytest
	.venv/bin/coverage report

docs: .venv/installed-for-tests  ## the documentation, as pages in docs/_build
	.venv/bin/python -m sphinx -W -q -b html docs docs/_build

reference: .venv/installed-for-tests  ## docs/reference.md anew, and the line numbers of links into the code
	.venv/bin/python docs/make_reference.py
	.venv/bin/python docs/make_lines.py

golden: .venv/installed-for-tests  ## the golden losses anew, after a change that is meant to move them
	.venv/bin/python tests/golden/make.py

N ?= 100
kill: .venv/installed-for-tests  ## kill a training N times at random moments, and compare: make kill N=100
	.venv/bin/python tests/kill.py $(N)

kill-many: .venv/installed-for-tests  ## the same with two processes and their launcher: make kill-many N=20
	.venv/bin/python tests/kill_many.py $(N)

fuzz: .venv/installed-for-tests  ## damage N files at random, and read them: make fuzz N=20000
	.venv/bin/python tests/fuzz.py $(N)

clean:                           ## take away what was installed, built and cached
	rm -rf .venv build dist docs/_build .mypy_cache .pytest_cache .ruff_cache .hypothesis

.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info < (3, 11) and sys.exit("Python 3.11 or later is needed: make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(if $(TORCH_INDEX),$(INSTALL) --index-url $(TORCH_INDEX) torch)
	$(INSTALL) --editable .
	touch $@

.venv/installed-for-tests: .venv/installed
	$(INSTALL) --editable '.[test,docs]'
	touch $@
