from __future__ import annotations

from pathlib import Path

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.model import Mount
from samples.plans import a_plan


def test_a_mount_as_engines_take_it() -> None:
    assert str(Mount("/data/a b", "/data", read_only=True)) == "/data/a b:/data:ro"
    assert str(Mount("/data", "/data", read_only=False)) == "/data:/data:rw"


@pytest.mark.parametrize(
    ("source", "target", "complaint"),
    [
        ("/a:b", "/b", "cannot mount '/a:b': engines read ':' and ',' as separators. Use another path"),
        ("/a", "/b,c", "cannot mount '/b,c': engines read"),
        ("/a\nb", "/b", r"cannot mount '/a\\nb': engines read"),
        ("a", "/b", "cannot mount 'a': not an absolute path"),
        ("/a", "", "cannot mount '': not an absolute path"),
    ],
)
def test_paths_that_engines_would_misread(source: str, target: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        Mount(source, target, read_only=False)
    assert str(caught.value).startswith(complaint.replace(r"\\", "\\"))


def test_the_key_of_a_run_is_that_of_its_directory() -> None:
    keys = {a_plan(run_directory=Path(path)).run_key for path in ("/a/run", "/b/run", "/b/\udcff")}
    assert len(keys) == 3
    assert all(len(key) == 12 and int(key, 16) >= 0 for key in keys)
    assert a_plan().run_key == a_plan(nodes=2).run_key
