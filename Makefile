# Every target sets up .venv by itself; nothing else than Python 3.11+ and make is needed.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := speech,synth,viz
.PHONY: demo test test-all processors matrix cluster-check fuzz fuzz-runs check bench soak peers results dist wheel-check docs clean

# torch goes in alone and first, so that nothing else may choose another build of it.
.venv/installed: pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS),deploy,mpi,dev]"
	touch $@

demo: .venv/installed
	$(BIN)/murmur demo

test: .venv/installed-dev
	$(BIN)/pytest -n 2

# With the long campaigns too, and the tests that compute as on other processors; hours.
test-all: .venv/installed-dev
	$(BIN)/pytest -n 2 -m "not gpu and not cluster"
	$(BIN)/python tests/processors/campaign.py

# The tests that compute with the instructions of other processors and with 1, 2 and 4 threads; an hour and more.
processors: .venv/installed-dev
	$(BIN)/python tests/processors/campaign.py

# The tests of the core on other versions of Python and PyTorch, each in an environment of its own; several GB.
matrix:
	$(PYTHON) tests/packaging/matrix.py

# Runs under a real Slurm of four nodes on this host, and figures in results/bench; as root, with Slurm and munge installed.
cluster-check: .venv/installed-dev
	$(BIN)/pytest -v -m cluster -rs tests/cluster

# 600 hostile cases for every reader; make fuzz FIRST=600 goes on where that ended.
FIRST ?= 0
fuzz: .venv/installed-dev
	$(BIN)/python tests/fuzz/campaign.py --first $(FIRST) --count 600

# 100,000 simulated runs of random strategies with random faults; it goes on where it ended.
fuzz-runs: .venv/installed-dev
	$(BIN)/python benchmarks/fuzz_runs.py

check: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

bench: .venv/installed-dev
	@for script in $(filter-out $(addprefix benchmarks/,adaptation_speed.py device_gradients.py folds.py fuzz_cases.py fuzz_oracle.py fuzz_processes.py fuzz_runs.py sequence_step.py export_agreement.py word_times.py measure.py results.py namespaces.py paced.py equal_samples.py natural_gradient_samples.py noise_perturbation.py graph_memory.py kills.py learning_curves.py pronunciations.py soak.py trouble.py studies.py studies_cells.py studies_page.py studies_pictures.py two_processes.py),$(wildcard benchmarks/*.py)); do $(BIN)/python $$script || exit 1; done

# An hour of faults; as root on hosts of their own (network namespaces), else kills and stops only.
soak: .venv/installed-dev
	$(BIN)/python benchmarks/soak.py --keep

# Other systems for side-by-side benchmarks, in an environment of their own.
peers:
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	.venv-peers/bin/pip install --quiet --disable-pip-version-check -c constraints.txt accelerate==1.15.0 torchft-nightly==2026.10.26

results: .venv/installed-dev
	$(BIN)/python benchmarks/results.py

# The documentation as a site in site/; a broken link or a page that is nowhere ends it.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.venv/installed-docs: .venv/installed-dev
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

# Wheel and source archive in dist/, built in environments of their own from pinned versions.
dist:
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/pip install --quiet --disable-pip-version-check -c constraints.txt build
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt .venv-dist/bin/python -m build

# The wheel in clean environments, the core alone and with each extra; minutes, and 2 GB in a temporary folder.
wheel-check: dist
	$(PYTHON) tests/packaging/wheel_check.py dist/*.whl

clean:
	rm -rf .venv .venv-matrix .venv-dist .venv-peers site runs dist .mypy_cache .ruff_cache .pytest_cache .hypothesis
