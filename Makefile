# make run    set up, and plan BLOOM on 48 nodes            make test   set up, and run every test that is not slow
# make check  lint, types, layers, documents, predictions   make test-all  run every test
# make bench  what is timed
# make docs   put the real output into README and docs      make clean  remove what make made
# make fuzz   feed every parser 10,000 mutated inputs       make torture  kill, damage and cut real runs, write docs/reports/reliability.md
# make referees     install other programs and run their own parsers on exported files; make referees ONLY=slurm: one of them
# make screenshots  take the pictures of docs/use/ui.md in a browser (Chromium)
# make predictions  renew the golden file of predictions, where they moved on purpose

PYTHON ?= python3
BIN := .venv/bin
PAGES := README.md docs/*.md docs/*/*.md src/meshwise/data/measurements/README.md

.PHONY: run test test-all check lint types layers documents gate bench docs screenshots predictions fuzz torture referees clean

run: .venv/installed
	$(BIN)/meshwise plan bloom-176b --on jean-zay:48 --batch 2048x2048 --framework megatron-deepspeed --tokens 366B

# A file's tests stay together, on one of as many workers as there are cores.
PYTEST := $(BIN)/pytest --numprocesses auto --dist loadscope --no-loadscope-reorder

test: .venv/tested
	$(PYTEST) -m "not slow"

test-all: .venv/tested
	$(PYTEST)

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

clean:
	rm -rf .venv .referees build src/*.egg-info .pytest_cache .hypothesis .ruff_cache

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit("meshwise needs Python 3.11 or newer, not " + sys.version.split()[0]) if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

.venv/tested: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@
