# make demo   the whole path on this machine: cluster, image, a network trained on two nodes
# make test   all tests, with the real cluster and image
# Both set up what they need on a fresh Debian 12, as root.

SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: demo test test-cluster test-others test-python39 check unit down clean machine

demo: machine .venv
	tests/cluster/demo

# Two at once: there is one cluster, and a core beside it. What each says comes when it has ended.
test: machine .venv check
	$(MAKE) --no-print-directory --jobs 2 --output-sync=target test-cluster test-others test-python39

test-cluster:
	.venv/bin/pytest -m cluster

test-others:
	.venv/bin/pytest -m 'not cluster'

test-python39:
	.venv/bin/python tests/python39/run

# Formatting, types and scripts: seconds, no cluster.
check: .venv
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	shellcheck --external-sources --source-path=SCRIPTDIR $$(git ls-files ':!tests/golden' | xargs awk 'FNR == 1 && /^#!.*sh/ {print FILENAME}')

# What runs on any machine, without root.
unit: .venv
	.venv/bin/pytest tests/unit tests/property tests/golden

machine:
	tests/cluster/install

# HASHES=yes: only packages with the hashes of .ci/requirements.txt, and none of those for tests.
.venv: pyproject.toml
	python3 -m venv .venv
ifdef HASHES
	.venv/bin/pip install --quiet --require-hashes --only-binary :all: --requirement .ci/requirements.txt
	.venv/bin/pip install --quiet --no-deps --no-index --no-build-isolation --editable .
else
	.venv/bin/pip install --quiet --editable '.[build,dev]'
endif
	touch .venv

down:
	tests/cluster/cluster down

clean:
	rm -rf .venv build *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
