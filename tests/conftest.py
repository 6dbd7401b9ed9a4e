"""Fixtures of all tests."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path, PurePosixPath

import pytest
from hypothesis import HealthCheck, settings

from samples.long_mode import often

# A machine that is busy building images is slow; that is no bug of what is tested.
settings.register_profile(
    "patient", deadline=None, max_examples=often(100, 25), suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("patient")

# Shells start jobs in the background with SIGINT ignored, and nohup ignores SIGHUP, which programs inherit: tests of
# Ctrl-C and of closed terminals would wait for nothing.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--one-case-each",
        action="store_true",
        help="run only the first case of a parametrised test, and the first whole run (-m whole_run) of a file",
    )


@pytest.hookimpl(trylast=True)  # when tests/unit/conftest.py has marked whole runs
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--one-case-each"):
        first: dict[str, pytest.Item] = {}
        for item in items:
            whole_run = item.get_closest_marker("whole_run")
            first.setdefault(item.nodeid.partition("::" if whole_run else "[")[0], item)
        kept = set(first.values())
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = first.values()


@pytest.fixture(scope="session")
def checkout() -> Path:
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def project_files(checkout: Path) -> list[PurePosixPath]:
    """Every file that is in the repository or about to be, relative to its top."""
    ask = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(ask, cwd=checkout, capture_output=True, text=True, check=True).stdout.split("\0")
    return [PurePosixPath(name) for name in names if name and (checkout / name).is_file()]
