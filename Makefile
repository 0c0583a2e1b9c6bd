# make demo     set everything up in .venv and train a small model on real data (about five minutes)
# make test     set everything up in .venv and run all tests
# make lint     style and types
# make clean    remove what was built here
#
# PYTHON=python3.12   another interpreter (3.11 or newer)
# TORCH_INDEX=        on Linux take PyPI's own build of torch, which runs on NVIDIA GPUs (several gigabytes)

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
TORCH := torch==2.13.0
TORCH_INDEX ?= https://download.pytorch.org/whl/cpu
JOBS ?= auto
CANDIDATES := python3 python3.13 python3.12 python3.11 python3.14 python
NEW_ENOUGH := import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))

.PHONY: demo test lint bench clean

demo: $(VENV)/.demo
	$(BIN)/malmoi demo --out demo

test: $(VENV)/.dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(JOBS) --dist loadfile

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/train.py --only malmoi plain

clean:
	rm -rf $(VENV) demo build dist .pytest_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -prune -exec rm -rf {} +

# A stamp file stands for a finished set-up, so that it happens once and again only when a version changes.
# The client in argostranslate needs none of the libraries that its package asks for.
$(VENV)/.dev: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[dev]'
	$(PIP) install --no-deps -c constraints.txt argostranslate || echo "No argostranslate: a test of serving is skipped."
	touch $@

$(VENV)/.demo: $(VENV)/.torch pyproject.toml constraints.txt
	$(PIP) install -c constraints.txt -e '.[demo]'
	touch $@

# On Linux PyPI's torch carries CUDA. The CPU build has its own index, which may be out of reach: one short try,
# then PyPI. Its dependencies come with malmoi's, since that index has old ones.
$(VENV)/.torch: $(BIN)/python constraints.txt
	@if [ "$$(uname -s)" = Linux ] && [ -n "$(TORCH_INDEX)" ]; then \
	  $(PIP) install --no-deps --index-url $(TORCH_INDEX) --timeout 10 --retries 0 $(TORCH) || \
	  { echo "The index of CPU builds does not answer; taking torch from PyPI."; \
	    $(PIP) install -c constraints.txt $(TORCH); }; \
	else \
	  $(PIP) install -c constraints.txt $(TORCH); \
	fi
	touch $@

$(BIN)/python:
	@for python in $(PYTHON) $(CANDIDATES); do \
	  if command -v "$$python" >/dev/null && "$$python" -c "$(NEW_ENOUGH)" 2>/dev/null; then \
	    echo "Setting up $(VENV) with $$("$$python" --version)"; \
	    "$$python" -m venv $(VENV) && exit 0; \
	    exit 1; \
	  fi; \
	done; \
	echo "Python 3.11 or newer with venv is needed (on Debian and Ubuntu: apt install python3-venv)." >&2; exit 1
