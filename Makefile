# Two commands do everything on a fresh machine with git, Python 3.11 and make:
#   make fuzz   fuzz the torch engine in lockstep with the model, draw the life of a block
#   make test   run the tests
SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

PYTHON ?= python3.11
VENV ?= .venv
PIP_ARGS ?=
export PIP_ARGS
SECONDS ?= 30
SEED ?= 1
JOBS ?= 2

BIN := $(VENV)/bin
READY := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK = 1

.PHONY: help fuzz test lint faults hits tours test-vllm test-mooncake test-browser explore coverage bench docs clean

help:
	@grep -E '^#  ' Makefile
	@echo "  make lint | faults | hits | tours | test-vllm | test-mooncake | test-browser | explore | coverage | bench | docs | clean"

$(READY): pyproject.toml constraints.txt
	@echo "creating $(VENV) (about a minute, once)"
	@command -v $(PYTHON) >/dev/null || \
		{ echo "$(PYTHON) is not here: install it, or name another, as in make PYTHON=python3.12"; exit 2; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "$(PYTHON) is too old: cowtail needs Python 3.11 or newer; set PYTHON=..."; exit 2; }
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install $(PIP_ARGS) --progress-bar on -c constraints.txt -e '.[dev]' 2>&1 | \
		grep --line-buffered -E '^(Collecting|Downloading|Installing|Successfully|ERROR)' | cut -c1-120
	@$(BIN)/python -c 'import cowtail'
	@touch $@

fuzz: $(READY)
	$(BIN)/cowtail fuzz --target torch --seconds $(SECONDS) --seed $(SEED) --out out

test: $(READY)
	$(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests models spec cowtail/harness

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -p cowtail
	$(BIN)/lint-imports

# Longer than a test should be, so a target of its own, which CI runs as well.
faults: $(READY)
	$(BIN)/cowtail faults --out out

# What the model finds in every small world, and the engine in some, against `cowtail hit`.
hits: $(READY)
	$(BIN)/python -m cowtail.harness.hits --jobs $(JOBS)
	$(BIN)/python -m cowtail.harness.hits --jobs $(JOBS) --target torch --every 150

# Every edge of every named scope, on the torch engine: for the night (not measured whole).
tours: $(READY)
	COWTAIL_SLOW=1 $(BIN)/python -m pytest -n $(JOBS) tests/lockstep

# Real vLLM lives in an environment of its own: see impl/vllm_engine/.
test-vllm:
	PYTHON=$(PYTHON) scripts/vllm-env.sh .venv-vllm
	.venv-vllm/bin/python -m pytest -m vllm tests/vllm

# A real Mooncake store, in an environment of its own: see docs/how-to/run-against-mooncake.md.
test-mooncake:
	PYTHON=$(PYTHON) scripts/mooncake-env.sh .venv-mooncake
	PYTHON=$(PYTHON) scripts/loopback.sh .venv-mooncake/bin/python -m pytest -rs tests/mooncake

# The page that `cowtail draw --format html` writes, in headless Chromium.
test-browser:
	PYTHON=$(PYTHON) scripts/browser-env.sh .venv-browser
	.venv-browser/bin/python -m pytest -rs -m browser tests/browser

# Every scope and every broken rule, against the committed figures: some minutes.
explore: $(READY)
	COWTAIL_SLOW=1 $(BIN)/python -m pytest -n $(JOBS) --dist worksteal tests/unit/test_spec.py

# Which branches of the rules exploring takes; fails if one that it never takes has no reason.
coverage: $(READY)
	$(BIN)/python -m cowtail.spec.rule_coverage

bench: $(READY)
	$(BIN)/python benchmarks/explorer_speed.py
	$(BIN)/python benchmarks/lockstep_speed.py

docs: $(READY)
	$(BIN)/python -m cowtail.spec.diagrams docs/diagrams
	$(BIN)/python -m cowtail.spec.reference docs/reference
	$(BIN)/python -m cowtail.spec.monitor.reference docs/reference
	$(BIN)/python -m cowtail.spec.embedded docs/explanation
	$(BIN)/python -m cowtail.spec.requirements docs/reference

clean:
	rm -rf $(VENV) .venv-vllm .venv-mooncake .venv-browser out .pytest_cache .mypy_cache .ruff_cache .hypothesis build dist
