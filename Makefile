# From a fresh clone only Python 3.11+, make and a package index are needed; everything else is set up here.
# `make test` is all that CI runs. Where tools of the system are missing and cannot be installed, their tests say so.

PYTHON ?= python3
WORKERS ?= 2
VENV := .venv
BIN := $(VENV)/bin
export PATH := $(CURDIR)/$(BIN):$(PATH)

.PHONY: help demo test thorough lint build generated pytest bench gate soak fuzz incidents traces year package sbom lock setup tools clean

help:
	@echo "make demo    a simulated vLLM server that gets into trouble, watched: no GPU, no Docker"
	@echo "make test    set up, lint, check generated files, run every test (what CI runs)"
	@echo "make thorough  what a release adds to that: older tools, other seeds and paces (minutes)"
	@echo "make lint    ruff and mypy"
	@echo "make build   write the generated files: rules, dashboards, Kubernetes objects, reference"
	@echo "make mutants small faults of the core, one at a time: which would no test notice (an hour; ARGS='signals --sample 50')"
	@echo "make incidents  every recording at true speed through real programs: what would have paged (five minutes)"
	@echo "make bench   speed, as ratios against the reference library and Prometheus"
	@echo "make traces  days of real arrivals through the simulator, judged (a few minutes)"
	@echo "make year    a year's operations and incidents through the rules: pages and tickets (ten minutes)"
	@echo "make gate    every dashboard in every world: states, fleets of 1 to 200 engines, 5 minutes to 30 days (minutes)"
	@echo "make soak    everything hostile at once, beside a hundred good targets: SOAK=10 minutes"
	@echo "make fuzz    hostile input for minutes"
	@echo "make package  build wheel and sdist, check them, install and use them in a new environment (needs a package index)"
	@echo "make lock    versions and hashes of all that is installed: requirements/*.txt (ARGS=--upgrade for newer ones)"
	@echo "make sbom    packages and licences of a full installation (CycloneDX)"
	@echo "make clean   remove what make set up here (.venv, .tools, caches)"

# Only what it runs: 90 MB in an environment of its own, unless a whole one is there.
DEMO := $(if $(wildcard $(VENV)/.ready),$(VENV),$(VENV)-demo)
demo: $(DEMO)/.ready
	$(DEMO)/bin/vllm-vitals demo

$(VENV)-demo/.ready: pyproject.toml requirements/runtime.txt requirements/build.txt
	$(PYTHON) -m venv $(VENV)-demo
	$(VENV)-demo/bin/pip install -q --require-hashes -r requirements/runtime.txt -r requirements/build.txt
	$(VENV)-demo/bin/pip install -q --no-deps --no-build-isolation --no-index .
	@touch $@

test: $(VENV)/.ready tools lint generated pytest

lint: $(VENV)/.ready
	ruff check .
	mypy

build: $(VENV)/.ready
	vllm-vitals rules build
	vllm-vitals dashboards build
	vllm-vitals kubernetes build -o deploy/kubernetes
	python tools/reference.py

generated: $(VENV)/.ready
	vllm-vitals rules check
	vllm-vitals dashboards check
	python tools/reference.py --check
	vllm-vitals kubernetes check -o deploy/kubernetes

pytest: $(VENV)/.ready
	pytest -q -n $(WORKERS) --dist loadscope

# Variations of what the suite shows already: older promtool and VictoriaMetrics, other seeds and paces.
thorough: $(VENV)/.ready tools
	pytest -q -n $(WORKERS) --dist loadscope -m thorough

# What no test notices is listed with its reason in tools/mutants/survivors.txt, or is a gap.
mutants: $(VENV)/.ready
	python tools/mutants $(ARGS)

bench: $(VENV)/.ready
	@for script in bench/*.py; do echo "== $$script"; python -m "bench.$$(basename $$script .py)" || exit 1; done

# What dashboards must hold to, in a table: docs/dashboards.md has it.
gate: $(VENV)/.ready tools
	python -m tests.dashboards.gate

# Hostile targets, a crowd at the door and targets that come and go, for minutes: docs/fleet.md has the table.
SOAK ?= 10
soak: $(VENV)/.ready
	python -m bench.soak --minutes $(SOAK)

# Hostile input of every kind for minutes; the suite tries a few hundred of each.
fuzz: $(VENV)/.ready
	FUZZ_EXAMPLES=20000 pytest -q tests/fleet/test_fuzz.py

incidents: $(VENV)/.ready tools
	python -m tests.rules.live

# What each operation of a year pages and files, against a fixed budget: docs/alert-budget.md. The suite plays two worlds.
year: $(VENV)/.ready tools
	python -m tests.rules.year

package:
	tools/package.sh "$(PYTHON)" dist

sbom: package
	tools/sbom.sh "$(PYTHON)" dist sbom

lock:
	tools/lock.sh "$(PYTHON)" $(ARGS)

# Days of the public traces through the simulator and the daemon's judgement; the suite plays an hour of each.
traces: $(VENV)/.ready
	python -m tests.traces

setup: $(VENV)/.ready

$(VENV)/.ready: pyproject.toml requirements/develop.txt tools/venv.sh
	tools/venv.sh "$(PYTHON)" $(VENV)
	@touch $@

# Programs that tests drive: Prometheus, Alertmanager and a browser. Never fails but in CI.
tools:
	tools/system-tools.sh

clean:
	rm -rf $(VENV) $(VENV)-demo .tools .mypy_cache .ruff_cache .pytest_cache .hypothesis dist sbom build
