from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Optional, Union

import pytest

from ctrain_runtime import config
from ctrain_runtime.errors import ConfigError


@dataclass(frozen=True)
class Inner:
    path: str
    mount: str = "/data"


@dataclass(frozen=True)
class Outer:
    name: str
    nodes: int = 1
    live: bool = False
    count: Union[int, str] = "auto"
    kind: Literal["mpi", "env"] = "mpi"
    words: tuple[str, ...] = ()
    env: dict[str, Union[str, int, float]] = field(default_factory=dict)
    inner: Optional[Inner] = None
    inners: tuple[Inner, ...] = ()


def load(**data: Any) -> Outer:
    return config.load(Outer, {"name": "x", **data}, "job.yaml")


def test_defaults_and_every_type() -> None:
    assert load() == Outer("x")
    assert load(nodes=2, live=True, count=3, kind="env", words=["a"], env={"A": "b", "C": 1, "D": 0.1}) == Outer(
        "x", 2, True, 3, "env", ("a",), {"A": "b", "C": 1, "D": 0.1}
    )
    assert load(inner={"path": "/a"}, inners=[{"path": "/b", "mount": "/c"}]) == Outer(
        "x", inner=Inner("/a"), inners=(Inner("/b", "/c"),)
    )
    assert load(inner=None) == Outer("x")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"nodse": 2}, "job.yaml: unknown key 'nodse'. Did you mean 'nodes'?"),
        (
            {"zzz": 2},
            "job.yaml: unknown key 'zzz'. Known keys: count, env, inner, inners, kind, live, name, nodes, words",
        ),
        ({1: 2}, "job.yaml: unknown key 1. Known keys: "),
        ({"nodes": "2"}, "job.yaml: nodes should be a number, not text ('2')"),
        ({"nodes": True}, "job.yaml: nodes should be a number, not true or false (True)"),
        ({"nodes": 2.5}, "job.yaml: nodes should be a number, not a number (2.5)"),
        ({"nodes": None}, "job.yaml: nodes should be a number, not nothing (None)"),
        ({"live": 1}, "job.yaml: live should be true or false, not a number (1)"),
        ({"name": 24.12}, "job.yaml: name should be text, not a number (24.12). If it is text, put it in quotes"),
        ({"count": True}, "job.yaml: count should be a number or text, not true or false (True)"),
        ({"kind": "mpl"}, "job.yaml: kind is 'mpl'. It can be mpi, env"),
        ({"words": "a"}, "job.yaml: words should be a list, not text ('a')"),
        ({"words": ["a", 1]}, "job.yaml: words should be text, not a number (1)"),
        ({"env": ["A=b"]}, "job.yaml: env should be keys and values, not a list (['A=b'])"),
        (
            {"env": {"A": True}},
            "job.yaml: env.A should be text or a number, not true or false (True). If it is text, put it in quotes",
        ),
        ({"inner": "/a"}, "job.yaml: inner should be keys and values or nothing, not text ('/a')"),
        ({"inner": {}}, "job.yaml: inner: key 'path' is missing"),
        ({"inner": {"path": "/a", "mout": "/b"}}, "job.yaml: inner: unknown key 'mout'. Did you mean 'mount'?"),
        ({"inners": [{"path": 1}]}, "job.yaml: inners: path should be text, not a number (1)"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(data: dict[Any, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(Outer, {"name": "x", **data}, "job.yaml")
    assert str(caught.value).startswith(complaint)


def test_a_missing_key() -> None:
    with pytest.raises(ConfigError, match=r"^job.yaml: key 'name' is missing$"):
        config.load(Outer, {}, "job.yaml")
