from __future__ import annotations

import importlib.util
import os
import py_compile
import struct
import sys
from pathlib import Path, PurePosixPath

import pytest

from ctrain_builder.files.tree import Tree
from ctrain_builder.layers import bytecode

CUT = 1_600_000_000  # the time at which the layer's times are cut off
BY_TIME, BY_CHECKSUM = py_compile.PycInvalidationMode.TIMESTAMP, py_compile.PycInvalidationMode.CHECKED_HASH


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(sys, "pycache_prefix", None)  # byte code lies beside its source, as in an image
    path = tmp_path / "module.py"
    path.write_text("x = 1\n")
    return path


def _compile(source: Path, mode: py_compile.PycInvalidationMode) -> Path:
    return Path(py_compile.compile(str(source), invalidation_mode=mode, doraise=True) or "")


def _settle(*paths: Path) -> None:
    root = paths[-1].parent.parent
    bytecode.set_source_times(Tree(root), [PurePosixPath(path.relative_to(root)) for path in paths], CUT)


def _header(path: Path) -> tuple[int, ...]:
    """Flags, time, size."""
    return struct.unpack("<III", path.read_bytes()[4:16])


@pytest.mark.parametrize("mode", [BY_TIME, BY_CHECKSUM])
def test_it_is_valid_with_the_time_that_the_source_has_in_the_layer(
    source: Path, mode: py_compile.PycInvalidationMode
) -> None:
    compiled = _compile(source, mode)
    compiled.chmod(0o444)
    _settle(source, compiled)
    assert _header(compiled) == (0, CUT, 6)
    assert compiled.stat().st_mode & 0o777 == 0o444
    os.utime(source, (CUT, CUT))
    loader = importlib.util.spec_from_file_location("module", source)
    assert loader and loader.loader
    before = compiled.read_bytes()
    loader.loader.exec_module(importlib.util.module_from_spec(loader))
    assert compiled.read_bytes() == before  # Python found it valid


def test_a_source_that_is_older_keeps_its_time(source: Path) -> None:
    os.utime(source, (CUT - 5, CUT - 5))
    compiled = _compile(source, BY_TIME)
    _settle(compiled)
    assert _header(compiled) == (0, CUT - 5, 6)


def test_what_is_stale_already_stays_so(source: Path) -> None:
    by_time = _compile(source, BY_TIME)
    source.write_text("x = 12\n")
    before = by_time.read_bytes()
    _settle(by_time)
    assert by_time.read_bytes() == before


def test_a_checksum_stays_when_the_source_was_changed_later(source: Path) -> None:
    compiled = _compile(source, BY_CHECKSUM)
    os.utime(compiled, (CUT, CUT))  # older than the source
    before = compiled.read_bytes()
    _settle(compiled)
    assert compiled.read_bytes() == before


@pytest.mark.parametrize("content", [b"", b"\x03\xf3\r\n" + bytes(20), b"text that is long enough"])
def test_other_files_are_left_alone(source: Path, content: bytes) -> None:
    cache = source.parent / "__pycache__"
    cache.mkdir()
    for path in (cache / "module.cpython-311.pyc", cache / "nosource.cpython-311.pyc", source.with_suffix(".pyc")):
        path.write_bytes(content)
        _settle(path)
        assert path.read_bytes() == content
