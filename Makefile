# Every target sets up .venv by itself; nothing else than Python 3.11+ and make is needed.
PYTHON ?= python3
BIN := .venv/bin
EXTRAS := speech,synth,viz
# The frameworks whose integrations are tested, in an environment of their own.
FRAMEWORKS := lightning==2.6.6 transformers==5.24.0 accelerate==1.15.0 lhotse==1.33.0 hydra-core==1.3.8 \
  wandb==0.31.0 trackio==0.43.0 mlflow-skinny==3.17.2
.PHONY: demo test test-all processors matrix cluster-check gpu-check fuzz fuzz-runs check bench bench-all soak peers integrations results dist wheel-check release-check docs clean

# torch goes in alone and first, so that nothing else may choose another build of it.
.venv/installed: pyproject.toml papers/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS)]"
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps -e papers
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[$(EXTRAS),deploy,mpi,cluster,remote,dev]"
	touch $@

demo: .venv/installed
	$(BIN)/murmur demo

# The tests of a file share their set-up, so that one process runs them all.
test: .venv/installed-dev
	$(BIN)/pytest -n 2 --dist loadfile

# With the long campaigns too, the frameworks, and the tests that compute as on other processors; hours.
test-all: .venv/installed-dev .venv-integrations/installed
	$(BIN)/pytest -n 2 --dist loadfile -m "not gpu and not cluster"
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

# Tests and measurements on a machine with a GPU, in ten minutes, and a report in results/gpu_check; status 77 without one.
gpu-check: .venv/installed-dev
	$(BIN)/python benchmarks/gpu_check.py

# 600 hostile cases for every reader; make fuzz FIRST=600 goes on where that ended.
FIRST ?= 0
fuzz: .venv/installed-dev
	$(BIN)/python -m tests.fuzz.campaign --first $(FIRST) --count 600

# 100,000 simulated runs of random strategies with random faults; it goes on where it ended.
fuzz-runs: .venv/installed-dev
	$(BIN)/python benchmarks/fuzz_runs.py

check: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy

# The benchmarks that scripts mark as bars; an interrupted call continues.
bench: .venv/installed-dev
	$(BIN)/python benchmarks/bench.py bar

# All benchmarks, hours; make bench-all FOLDERS="--folder task.corpus=PATH" names data that records call FOLDER.
FOLDERS ?=
bench-all: .venv/installed-dev
	$(BIN)/python benchmarks/bench.py $(FOLDERS)

# An hour of faults; as root on hosts of their own (network namespaces), else kills and stops only.
soak: .venv/installed-dev
	$(BIN)/python benchmarks/soak.py --keep

# Other systems for side-by-side benchmarks, in an environment of their own.
peers:
	$(PYTHON) -m venv .venv-peers
	.venv-peers/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch numpy
	.venv-peers/bin/pip install --quiet --disable-pip-version-check -c constraints.txt accelerate==1.15.0 torchft-nightly==2026.10.26

# Lightning, transformers, accelerate, SpeechBrain, lhotse and hydra, for tests/integrations and the examples; 2 GB.
integrations: .venv-integrations/installed

# torch first, as above. SpeechBrain comes without what it requires: torchaudio does not import beside this torch.
.venv-integrations/installed: pyproject.toml constraints.txt Makefile
	$(PYTHON) -m venv .venv-integrations
	.venv-integrations/bin/pip install --quiet --disable-pip-version-check -c constraints.txt torch
	.venv-integrations/bin/pip install --quiet --disable-pip-version-check -c constraints.txt -e . $(FRAMEWORKS) \
	  soundfile pytest pytest-timeout
	.venv-integrations/bin/pip install --quiet --disable-pip-version-check --no-deps speechbrain==1.1.2 \
	  hyperpyyaml==1.2.3 ruamel.yaml==0.19.1 ruamel.yaml.clib==0.2.15 scipy==1.17.1 joblib==1.6.0 requests==2.34.2
	touch $@

results: .venv/installed-dev
	$(BIN)/python benchmarks/results.py

# The documentation as a site in site/; a broken link or a page that is nowhere ends it.
docs: .venv/installed-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

.venv/installed-docs: .venv/installed-dev
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e ".[docs]"
	touch $@

# Wheel and source archive in dist/, built in environments of their own from pinned versions, with the commit's date.
DATED = SOURCE_DATE_EPOCH=$(shell git log -1 --format=%ct) PIP_CONSTRAINT=$(CURDIR)/constraints.txt
dist:
	$(PYTHON) -m venv .venv-dist
	.venv-dist/bin/pip install --quiet --disable-pip-version-check -c constraints.txt build
	rm -rf dist
	$(DATED) .venv-dist/bin/python -m build

# The wheel in clean environments, the core alone and with each extra; minutes, and 2 GB in a temporary folder.
wheel-check: dist
	$(PYTHON) tests/packaging/wheel_check.py dist/*.whl

# What a release needs: the same bytes from a second build, the wheel with each extra, the demo, the package page, and
# licences and bill of materials in release/; an hour. Status 3: all hold, and something is left to set at publication.
release-check: dist
	.venv-dist/bin/pip install --quiet --disable-pip-version-check -c constraints.txt twine 'readme_renderer[md]' cyclonedx-bom
	$(DATED) .venv-dist/bin/python -m tests.packaging.release_check

clean:
	rm -rf .venv .venv-matrix .venv-dist .venv-peers .venv-integrations site runs dist release .mypy_cache .ruff_cache .pytest_cache .hypothesis
