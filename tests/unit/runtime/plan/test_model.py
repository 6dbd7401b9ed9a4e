from __future__ import annotations

import pytest

from ctrain_runtime.errors import UsageError
from ctrain_runtime.plan.model import Mount


def test_a_mount_as_engines_take_it() -> None:
    assert str(Mount("/data/a b", "/data", read_only=True)) == "/data/a b:/data:ro"
    assert str(Mount("/data", "/data", read_only=False)) == "/data:/data:rw"


@pytest.mark.parametrize(
    ("source", "target", "complaint"),
    [
        ("/a:b", "/b", "can't mount '/a:b': engines read ':' and ',' as separators. Use another path"),
        ("/a", "/b,c", "can't mount '/b,c': engines read"),
        ("/a\nb", "/b", r"can't mount '/a\\nb': engines read"),
        ("a", "/b", "can't mount 'a': it is not an absolute path"),
        ("/a", "", "can't mount '': it is not an absolute path"),
    ],
)
def test_paths_that_engines_would_misread(source: str, target: str, complaint: str) -> None:
    with pytest.raises(UsageError) as caught:
        Mount(source, target, read_only=False)
    assert str(caught.value).startswith(complaint.replace(r"\\", "\\"))
