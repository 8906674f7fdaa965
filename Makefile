# `make demo` and `make test` set up everything they need in .venv; nothing else on the machine is touched.
#
#   make test PYTEST_ARGS="-k ring -x"     arguments for pytest
#   make demo DEMO_ARGS="--help"           arguments for tricoll demo
#   make PYTHON=/path/to/python3.12 ...    another interpreter (3.11 or newer)
#   make PIP_FLAGS="..." ...               arguments for pip, such as --extra-index-url for PyTorch's CPU builds

VENV      := .venv
PY        := $(VENV)/bin/python
T36       := $(VENV)/triton-3.6
READY     := $(VENV)/.ready
READY_T36 := $(VENV)/.ready-triton-3.6
PIP       := $(PY) -m pip --disable-pip-version-check --no-input

PIP_FLAGS   ?=
PYTEST_ARGS ?=
DEMO_ARGS   ?=

# First what needs one core, two files at a time: tests of a file share what they compile and count. Then what starts processes of its own. Pytest exits with 5 if nothing was
# selected, which is an error only when both did.
define two_phases
@phase=1; $(PY) -m pytest -n 2 --dist loadfile -m one_core $(1) $(PYTEST_ARGS); first=$$?; \
phase=2; $(PY) -m pytest -m "not one_core" $(1) $(PYTEST_ARGS); second=$$?; \
case "$$first $$second" in "0 5" | "5 0") exit 0 ;; "0 "*) exit $$second ;; *) exit $$first ;; esac
endef

.DEFAULT_GOAL := help
.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help setup demo test lint format typecheck pytest pytest-triton36 docs pages status clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(READY) ## train a classifier on 4 CPU ranks, tricoll's BF16 hook next to Gloo in FP32 (1 to 2 minutes)
	$(VENV)/bin/tricoll demo $(DEMO_ARGS)

test: lint typecheck pytest pytest-triton36 ## everything that CI runs

lint: $(READY) ## ruff: lint and formatting
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .

format: $(READY) ## let ruff fix and format the code
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

typecheck: $(READY) ## mypy
	$(PY) -m mypy

pytest: $(READY) ## the tests, with the newest Triton
	$(call two_phases,)

pytest-triton36: $(READY) $(READY_T36) ## the kernel tests, with the oldest Triton
	@PYTHONPATH="$(CURDIR)/$(T36)" $(PY) -c 'import numpy, triton; print("Kernel tests with Triton", triton.__version__, "and NumPy", numpy.__version__); assert triton.__version__ == "3.6.0"'
	@# What is run by Python and PyTorch alone does not depend on Triton: only what is interpreted or compiled does.
	HYPOTHESIS_PROFILE=quick PYTHONPATH="$(CURDIR)/$(T36)" $(PY) -m pytest -n 2 --dist loadfile tests/kernels \
	    -k "triton or interpreted or implementations" $(PYTEST_ARGS)

docs: $(READY) ## build the documentation's site in build/site, every warning an error (a test does, too)
	NO_MKDOCS_2_WARNING=1 $(PY) -m mkdocs build --strict
	@echo 'open build/site/index.html; to search it, $(PY) -m http.server -d build/site'

pages: $(READY) ## write again what commands write of docs/doctor.md, docs/pictures and docs/plots (seconds; not what is measured)
	$(VENV)/bin/tricoll doctor --markdown docs/doctor.md
	$(VENV)/bin/tricoll trace --pictures docs/pictures
	$(VENV)/bin/tricoll explain all_reduce --bytes 1M --ranks 512 --node-size 8 --plot docs/plots/crossovers.png
	$(VENV)/bin/tricoll plan --params 8e9 --gpus 64 --backward 4s --plot docs/plots/lanes.png

status: $(READY) ## run the tests with the newest Triton, and write docs/status.md from what they did
	@rm -f build/seen-1.json build/seen-2.json
	-$(call two_phases,--seen=build/seen-$$phase.json)
	$(PY) tests/support/status.py build/seen-1.json build/seen-2.json docs/status.md

setup: $(READY) $(READY_T36) ## only make the environment in .venv

clean: ## remove .venv, build outputs and caches
	rm -rf $(VENV) build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find bench kernels tricoll tests -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

# An interpreter is good if it starts and is new enough: Triton 3.9 has no build for Python 3.10.
$(READY): pyproject.toml constraints.txt
	@python=''; \
	for candidate in $(if $(PYTHON),'$(PYTHON)',python3.11 python3); do \
	    if "$$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; then \
	        python=$$candidate; break; \
	    fi; \
	done; \
	if [ -z "$$python" ]; then \
	    echo 'tricoll: development needs Python 3.11 or newer with venv and ensurepip; looked for: $(or $(PYTHON),python3.11 python3).' >&2; \
	    echo 'Install it, or name it: make PYTHON=/path/to/python3.12' >&2; \
	    exit 1; \
	fi; \
	echo "Setting up $(VENV) with $$("$$python" --version): PyTorch, Triton, NVSHMEM bitcode, test tools (1 to 4 minutes, 3 GB)"; \
	"$$python" -m venv $(VENV)
	@$(PIP) install -qq $(PIP_FLAGS) --no-deps -r constraints.txt
	@$(PIP) install -qq --no-deps --no-build-isolation --editable .
	@$(PIP) check >$(VENV)/pip-check.txt 2>&1 || { \
	    cat $(VENV)/pip-check.txt >&2; \
	    echo 'tricoll: the packages above do not fit together. If the reason is a CUDA build of PyTorch, let pip find a CPU' >&2; \
	    echo 'build: make PIP_FLAGS="--extra-index-url <address of the CPU wheels, see the PyTorch installation page>"' >&2; \
	    exit 1; \
	}
	@touch $@

$(READY_T36): constraints-triton36.txt | $(READY)
	@echo 'Adding Triton 3.6.0 for the second run of the kernel tests (about 10 seconds, 1 GB)'
	@rm -rf $(T36)
	@$(PIP) install -qq $(PIP_FLAGS) --no-deps --target $(T36) -r constraints-triton36.txt
	@touch $@
