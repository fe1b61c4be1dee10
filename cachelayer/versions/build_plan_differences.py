"""Say in words how two plans of a build differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cachelayer.provenance.secrecy import hashed, is_secret

_TITLES = {
    "functions": "the code of {}",
    "constants": "the constant {}",
    "arguments": "the argument {}",
    "bound": "the bound argument {}",
}
# Computed from the values beside them: a difference here would be named twice.
_DERIVED = frozenset({"digest"})
_LONGEST_VALUE = 60
_HASH_LENGTH = 19
_ABSENT = object()


def differences(ours: Any, theirs: Any) -> list[str]:
    """Return a phrase for each difference between two plans.

    Args:
        ours, theirs: the plans, as JSON.
    """
    return list(_phrases(ours, theirs, ()))


def _phrases(ours: Any, theirs: Any, path: tuple[str, ...]) -> Iterator[str]:
    if ours == theirs:
        return
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in sorted({*ours, *theirs}, key=str):
            if name not in _DERIVED:
                yield from _phrases(ours.get(name, _ABSENT), theirs.get(name, _ABSENT), (*path, str(name)))
        return
    if len(path) > 1 and path[-2] == "functions" and _ABSENT not in (ours, theirs):
        # A hash of code tells the user nothing.
        yield f"{_name(path)} differs"
        return
    name = path[-1] if path else ""
    yield f"{_name(path)} is {_shown(name, ours)} here and {_shown(name, theirs)} there"


def _name(path: tuple[str, ...]) -> str:
    if len(path) > 1 and path[-2] in _TITLES:
        return _TITLES[path[-2]].format(path[-1])
    return ".".join(path) or "the plan"


def _shown(name: str, value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    text = json.dumps(value, sort_keys=True)
    if is_secret(name):
        return hashed(text)[:_HASH_LENGTH]
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}... ({hashed(text)[:_HASH_LENGTH]})"
