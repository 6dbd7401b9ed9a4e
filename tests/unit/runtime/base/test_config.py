from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, Optional, Union

import pytest

from ctrain_runtime.base import config
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
    times: Union[int, Literal["for ever"]] = 0
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
        "x", 2, True, 3, 0, "env", ("a",), {"A": "b", "C": 1, "D": 0.1}
    )
    assert load(inner={"path": "/a"}, inners=[{"path": "/b", "mount": "/c"}]) == Outer(
        "x", inner=Inner("/a"), inners=(Inner("/b", "/c"),)
    )
    assert load(inner=None) == Outer("x")
    assert (load(times=2).times, load(times="for ever").times) == (2, "for ever")


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        ({"nodse": 2}, "job.yaml: unknown key 'nodse'. Did you mean 'nodes'?"),
        (
            {"zzz": 2},
            "job.yaml: unknown key 'zzz'. Known keys: count, env, inner, inners, kind, live, name, nodes, times, words",
        ),
        ({1: 2}, "job.yaml: unknown key 1. Known keys: "),
        ({"nodes": "2"}, "job.yaml: nodes must be an integer, not a string ('2')"),
        ({"nodes": True}, "job.yaml: nodes must be an integer, not a boolean (True)"),
        ({"nodes": 2.5}, "job.yaml: nodes must be an integer, not a number (2.5)"),
        ({"nodes": None}, "job.yaml: nodes must be an integer, not null (None)"),
        ({"times": "often"}, "job.yaml: times must be an integer or 'for ever', not a string ('often')"),
        ({"live": 1}, "job.yaml: live must be a boolean, not an integer (1)"),
        ({"name": 24.12}, "job.yaml: name must be a string, not a number (24.12). If it is text, put it in quotes"),
        ({"count": True}, "job.yaml: count must be an integer or a string, not a boolean (True)"),
        ({"kind": "mpl"}, "job.yaml: kind must be mpi or env, not 'mpl'"),
        ({"words": "a"}, "job.yaml: words must be a list, not a string ('a')"),
        ({"words": ["a", 1]}, "job.yaml: words must be a string, not an integer (1)"),
        ({"env": ["A=b"]}, "job.yaml: env must be a mapping, not a list (['A=b'])"),
        (
            {"env": {"A": True}},
            "job.yaml: env.A must be a string or a number, not a boolean (True). If it is text, put it in quotes",
        ),
        ({"inner": "/a"}, "job.yaml: inner must be a mapping or null, not a string ('/a')"),
        ({"inner": {}}, "job.yaml: inner: key 'path' is missing"),
        ({"inner": {"path": "/a", "mout": "/b"}}, "job.yaml: inner: unknown key 'mout'. Did you mean 'mount'?"),
        ({"inners": [{"path": 1}]}, "job.yaml: inners: path must be a string, not an integer (1)"),
    ],
)
def test_what_does_not_fit_is_named_with_its_place(data: dict[Any, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config.load(Outer, {"name": "x", **data}, "job.yaml")
    assert str(caught.value).startswith(complaint)


def test_a_missing_key() -> None:
    with pytest.raises(ConfigError, match=r"^job.yaml: key 'name' is missing$"):
        config.load(Outer, {}, "job.yaml")
