# make demo    the whole path on this machine: cluster, image, a network trained on two nodes
# make test    all tests, with the real cluster and image; at the end the 20 slowest, and which part failed
# make quick   what most changes would break, in minutes: units, a run on two nodes, a build of one layer
# They set up what they need on a fresh Debian 12, as root.

SHELL := /bin/bash
.SHELLFLAGS := -o pipefail -c
.DELETE_ON_ERROR:
unexport MAKEFLAGS MFLAGS MAKEOVERRIDES # tests start make as users do, not as a part of this one
unexport PYTHONDONTWRITEBYTECODE # each worker of pytest would compile all tests anew

RESULTS := build/test
PYTEST := .venv/bin/pytest --durations=20
# On two cores: each more collects all tests, 6 s of a processor, and 18 s if none was compiled before.
SIDE_BY_SIDE := --numprocesses=3 --dist=worksteal
# The cluster's tests come one after the other and take longest: what runs beside them has the cores that they leave.
BESIDE := nice -n 5
UNIT_TESTS := tests/unit tests/property tests/golden
MOST_UNITS := -m 'not whole_run' $(UNIT_TESTS)
PYTHON := python3
SYSTEM := test-cluster test-images
PARTS := $(SYSTEM) test-unit test-python39 test-check
QUICK := quick-run quick-unit
.PHONY: demo test system quick $(PARTS) $(QUICK) check docs dist unit unit-python machine down clean

demo:
	tests/cluster/demo

# Two parts at once: there is one cluster, and a core beside it. One that fails does not keep the others from running.
test: machine .venv
	tests/parts $(PARTS)

# What CI runs beside the units.
system: machine .venv
	tests/parts $(SYSTEM)

quick: machine .venv
	tests/parts $(QUICK)

$(PARTS) $(QUICK): | $(RESULTS)
$(RESULTS):
	@mkdir -p $@

test-cluster:
	$(PYTEST) -m cluster tests/integration 2>&1 | tee $(RESULTS)/cluster.log

test-images:
	$(BESIDE) $(PYTEST) -m 'not cluster' tests/integration 2>&1 | tee $(RESULTS)/images.log

test-unit:
	$(BESIDE) $(PYTEST) $(SIDE_BY_SIDE) $(UNIT_TESTS) 2>&1 | tee $(RESULTS)/unit.log

test-python39:
	$(BESIDE) .venv/bin/python tests/python39/run --durations=20 2>&1 | tee $(RESULTS)/python39.log

test-check:
	@$(BESIDE) $(MAKE) --no-print-directory check 2>&1 | tee $(RESULTS)/check.log

quick-run:
	$(PYTEST) -m quick tests/integration 2>&1 | tee $(RESULTS)/quick-run.log

quick-unit:
	$(BESIDE) $(PYTEST) $(SIDE_BY_SIDE) $(MOST_UNITS) 2>&1 | tee $(RESULTS)/quick-unit.log

# What runs in images, and on nodes, whose Python may be 3.6.
OLD_PYTHON := $(addprefix runtime/ctrain_runtime/payload/,preflight ctrain_program.py rendezvous.py relay.py scan.py watch.py judge.py stacks.py)

# Formatting, types and scripts: seconds, no cluster.
check: .venv
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	.venv/bin/mypy --scripts-are-modules .ci/dist tests/python39/run
	.venv/bin/vermin --quiet --no-tips --eval-annotations --target=3.6- --violations $(OLD_PYTHON)
	.venv/bin/vermin --quiet --no-tips --target=3.9- --violations builder runtime
	shellcheck --external-sources --source-path=SCRIPTDIR $$(git ls-files ':!tests/golden' | xargs awk 'FNR == 1 && /^#!.*sh/ {print FILENAME}')

# The documentation as a site, build/site/index.html: seconds. A link to a page or a heading that does not exist is an error.
docs: build/docs-env
	build/docs-env/bin/sphinx-build --quiet --nitpicky --fail-on-warning --keep-going -c docs/site -d build/doctrees . build/site

build/docs-env: pyproject.toml
	$(PYTHON) -m venv --clear $@
	$@/bin/pip install --quiet --editable '.[docs]'
	touch $@

# What is released, of the last commit: wheel, sdist, what they need, checksums. The same commit is the same bytes.
dist: .venv
	rm -rf build/dist
	.venv/bin/python .ci/dist build/dist

# What runs on any machine, without root. Whole runs on stand-ins, and wheels that pip makes and installs, take more than half
# of the time: make test has them.
unit: .venv
	.venv/bin/pytest $(SIDE_BY_SIDE) $(MOST_UNITS)

# The units that need no development tool, under another Python: make unit-python PYTHON=python3.13
unit-python:
	$(PYTHON) -m venv --clear build/python
	build/python/bin/pip install --quiet --editable '.[build,test]'
	build/python/bin/pytest $(SIDE_BY_SIDE) tests/unit/runtime tests/unit/builder tests/property

machine:
	tests/cluster/install

# HASHES=yes: only packages with the hashes of .ci/requirements.txt, and none of those for tests.
.venv: pyproject.toml
	python3 -m venv .venv
ifdef HASHES
	.venv/bin/pip install --quiet --require-hashes --only-binary :all: --requirement .ci/requirements.txt
	.venv/bin/pip install --quiet --no-deps --no-index --no-build-isolation --editable .
else
	.venv/bin/pip install --quiet --quiet --no-compile --editable '.[build,dev]' # Python compiles what is used
endif
	touch .venv

# The demo's: without development tools, so that its image is begun sooner. Of it pip makes this file last: a directory that is
# half filled would count as made.
build/demo-env/bin/ctrain: pyproject.toml
	python3 -m venv --clear build/demo-env
	build/demo-env/bin/pip install --quiet --quiet --no-compile --editable '.[build]'

down:
	tests/cluster/cluster down

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
