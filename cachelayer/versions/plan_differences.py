"""What differs between two plans of a build, told to the user by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from cachelayer.provenance.secrecy import hashed, is_secret

_CALLED = {
    "functions": "the code of {}",
    "constants": "the constant {}",
    "arguments": "the argument {}",
    "bound": "the bound argument {}",
}
# They follow from what stands beside them.
_FOLLOWS = frozenset({"digest"})
_LONGEST = 60
_HASH = 19
_ABSENT = object()


def differences(ours: Any, theirs: Any) -> list[str]:
    """Return what differs between two plans, a phrase each.

    Args:
        ours, theirs: the plans, as JSON.
    """
    return list(_found(ours, theirs, ()))


def _found(ours: Any, theirs: Any, path: tuple[str, ...]) -> Iterator[str]:
    if ours == theirs:
        return
    if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
        for name in sorted({*ours, *theirs}, key=str):
            if name not in _FOLLOWS:
                yield from _found(ours.get(name, _ABSENT), theirs.get(name, _ABSENT), (*path, str(name)))
        return
    if len(path) > 1 and path[-2] == "functions" and _ABSENT not in (ours, theirs):
        # The hashes of code say nothing to anybody.
        yield f"{_name(path)} differs"
        return
    name = path[-1] if path else ""
    yield f"{_name(path)} is {_shown(name, ours)} here and {_shown(name, theirs)} there"


def _name(path: tuple[str, ...]) -> str:
    if len(path) > 1 and path[-2] in _CALLED:
        return _CALLED[path[-2]].format(path[-1])
    return ".".join(path) or "the plan"


def _shown(name: str, value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    text = json.dumps(value, sort_keys=True)
    if is_secret(name):
        return hashed(text)[:_HASH]
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}... ({hashed(text)[:_HASH]})"
