"""What a builder's cache has of an image: its manifest so far, which changes with each test. What is published is made
of it once, and never changes."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from ctrain_runtime.base import config
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.store.manifest import Manifest, TestResult, parse_keys


@dataclass(frozen=True)
class RecordedTest(TestResult):
    """`fingerprint`: of the test; `engine`: with which it ran. By them planned_tests tells which results hold."""

    fingerprint: str = ""
    engine: str = ""


@dataclass(frozen=True)
class BuildRecord(Manifest):
    """`release` is 0, and `digest` that of the image's regions."""

    tests: tuple[RecordedTest, ...]

    def manifest(self) -> Manifest:
        """What a store has of it: results, not how they are told to hold."""
        facts = {field.name: getattr(self, field.name) for field in fields(Manifest)}
        tests = tuple(TestResult(one.name, one.passed, one.seconds, one.skipped) for one in self.tests)
        return Manifest(**{**facts, "tests": tests})


def read(path: Path) -> BuildRecord:
    """The record beside an image in the cache. Raises ConfigError; FileNotFoundError without one."""
    try:
        return config.load(BuildRecord, parse_keys(path.read_bytes(), str(path)), str(path))
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
