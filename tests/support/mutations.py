"""Stored JSON as a careless, an unlucky and a hostile hand would leave it: one value of a document changed."""

import copy
import json
from collections.abc import Iterator
from typing import Any

PATHS = ("../../../../home/thesis", "/etc/passwd", "..", "", "a\0b", "shards/../../../victim/kept.i64")
DEEP: Any = json.loads("[" * 400 + "]" * 400)
VALUES: tuple[Any, ...] = (
    *PATHS,
    None,
    True,
    -1,
    0,
    10_000_000,
    2**62,
    2**63,
    10**400,
    0.5,
    float("nan"),
    float("inf"),
    "\ud800",
    "latest",
    [],
    {},
    [2**62] * 3,
    ["a", "a"],
    DEEP,
)


def places(document: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each value in a document, beginning with the document itself."""
    yield at
    steps = document if isinstance(document, dict) else range(len(document)) if isinstance(document, list) else ()
    for step in steps:
        yield from places(document[step], (*at, step))


def mutated(document: Any) -> Iterator[tuple[str, Any]]:
    """Yield each document with one value gone, twice there, or another, and what was done to it."""
    for at in places(document):
        for value in VALUES:
            yield f"{at} is {str(value)[:40]!a}" if value is not DEEP else f"{at} is deep", _with(document, at, value)
        if at:
            yield f"{at} is gone", _without(document, at)
            yield f"{at} is named otherwise", _renamed(document, at)
            if isinstance(at[-1], int):
                yield f"{at} is twice there", _doubled(document, at)


def _parent(document: Any, at: tuple[Any, ...]) -> tuple[Any, Any]:
    made = parent = copy.deepcopy(document)
    for step in at[:-1]:
        parent = parent[step]
    return made, parent


def _with(document: Any, at: tuple[Any, ...], value: Any) -> Any:
    if not at:
        return value
    made, parent = _parent(document, at)
    parent[at[-1]] = value
    return made


def _without(document: Any, at: tuple[Any, ...]) -> Any:
    made, parent = _parent(document, at)
    del parent[at[-1]]
    return made


def _renamed(document: Any, at: tuple[Any, ...]) -> Any:
    made, parent = _parent(document, at)
    if isinstance(parent, dict):
        parent["../" + at[-1]] = parent.pop(at[-1])
    return made


def _doubled(document: Any, at: tuple[Any, ...]) -> Any:
    made, parent = _parent(document, at)
    parent.insert(at[-1], copy.deepcopy(parent[at[-1]]))
    return made
