# make run    set up, and plan BLOOM on 48 nodes            make test   set up, and run every test that is not slow
# make check  lint, types, layers, documents, predictions   make test-all  run every test, but for those that take minutes
# make test-long  run those: whole catalogues and thousands of hostile inputs
# make bench  what is timed
# make docs   put the real output into README and docs      make clean  remove what make made
# make fuzz   feed every parser 10,000 mutated inputs       make torture  kill, damage and cut real runs, write docs/reports/reliability.md
# make referees     install other programs and run their own parsers on exported files; make referees ONLY=slurm: one of them
# make screenshots  take the pictures of docs/use/ui.md in a browser (Chromium)
# make site   the documentation as a site in build/site     make score   predictions beside those of other tools, docs/reports/score.md
# make predictions  renew the golden file of predictions, where they moved on purpose

PYTHON ?= python3
# Where bytecode is forbidden, each of the thousand processes that tests start would compile what it imports.
export PYTHONDONTWRITEBYTECODE :=
BIN := .venv/bin
PAGES := README.md docs/*.md docs/*/*.md src/meshwise/data/measurements/README.md src/meshwise/data/skill.md

.PHONY: run test test-all test-long check lint types layers documents gate bench docs screenshots predictions fuzz torture referees site score release clean

run: .venv/installed
	$(BIN)/meshwise plan bloom-176b --on jean-zay:48 --batch 2048x2048 --framework megatron-deepspeed --tokens 366B

# A file's tests stay together, on one of as many workers as there are cores.
PYTEST := $(BIN)/pytest --numprocesses auto --dist loadscope --no-loadscope-reorder

test: .venv/tested
	$(PYTEST) -m "not slow and not long"

test-all: .venv/tested
	$(PYTEST) -m "not long"

# Catalogues and hostile inputs as a whole, of which test-all tries a part.
test-long: .venv/tested
	$(PYTEST) -m long

# Types, documents and predictions take longest, and can be checked side by side: make -j2 check
check: types documents gate lint layers

lint: .venv/tested
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: .venv/tested
	$(BIN)/pyright

layers: .venv/tested
	$(BIN)/lint-imports --no-logo

documents: .venv/tested
	$(BIN)/cog --check -P -I tools $(PAGES)

gate: .venv/tested
	$(BIN)/python tools/predictions.py --check

bench: .venv/installed
	$(BIN)/python benchmarks/planner/startup.py
	$(BIN)/python benchmarks/planner/search.py
	$(BIN)/python benchmarks/planner/vary.py
	$(BIN)/python benchmarks/planner/shapes.py
	$(BIN)/python benchmarks/planner/schedules.py
	$(BIN)/python benchmarks/accuracy/accuracy.py
	$(BIN)/python benchmarks/accuracy/serve_memory.py
	$(BIN)/python benchmarks/accuracy/serve.py
	$(BIN)/python benchmarks/planner/page_load.py

# Minutes on two cores; inputs that fail are kept in build/fuzz.
fuzz: .venv/tested
	$(BIN)/python tools/fuzz.py --inputs 10000

# About half an hour. Network namespaces need root: without it the faults of several hosts are left out.
torture: .venv/tested
	$(BIN)/python tools/torture.py --kills 100

docs: .venv/tested
	$(BIN)/cog -r -P -I tools $(PAGES)

screenshots: .venv/tested
	$(BIN)/python tools/screenshots.py

predictions: .venv/tested
	$(BIN)/python tools/predictions.py --write

referees: .venv/tested
	$(BIN)/python tools/referees.py $(ONLY)

site: .venv/site
	$(BIN)/python tools/site_builder.py

score: .venv/scored
	$(BIN)/python tools/score.py

release: .venv/site
	$(BIN)/python tools/site_builder.py
	$(BIN)/python tools/release.py --check

clean:
	rm -rf .venv .referees build src/*.egg-info .pytest_cache .hypothesis .ruff_cache

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("meshwise needs Python 3.11 or newer, not " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv

# What is imported is compiled when it is: compiling all of numpy first lengthens the time of `make run`.
.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --no-compile --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

.venv/tested: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

# A tool that the score runs as it is; its dependencies are ours.
.venv/scored: .venv/tested
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps fitcheck-llm==0.3.1
	touch $@

.venv/site: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[site]'
	touch $@
