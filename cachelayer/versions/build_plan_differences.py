"""Say in words how two plans of a build differ."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cachelayer.provenance.secrecy import hashed, is_hidden, is_secret

_GROUPS = {
    "functions": "the code of {}",
    "constants": "the constant {}",
    "arguments": "the argument {}",
    "bound": "the bound argument {}",
}
_SPOKEN = {
    "source": "the kind of the source",
    "base": "the version that is appended to",
    "division": "the division into parts",
    "division.parts": "the number of parts",
    "division.records": "the number of records in a part",
    "division.block": "the number of records in a block",
    "division.run": "the number of records in a run",
    "division.base": "the digest of the base",
    "division.shuffle_seed": "shuffle_seed",
    "division.fields": "fields",
    "function": "the function",
    "files": "the number of files",
    "files_nbytes": "the size of the files",
    "files_names": "the list of the files",
    "files_modified": "the time when the files were written",
    "query": "the query",
    "dataset": "the code of the loader's dataset",
}
# The digest of code is computed from the values beside it: a difference would be named twice.
_DERIVED = ("code", "digest")
_LONGEST_VALUE = 60
_HASH_LENGTH = 19
_ABSENT = object()


@dataclass(frozen=True)
class Wording:
    """How a difference is put in words.

    Args:
        values: the phrase if both values may be shown.
        hidden: the phrase if one of them is hidden, or tells the user nothing.
    """

    values: str
    hidden: str


WAS_AND_IS = Wording("{name} was {one} and is {other}", "{name} changed")
HERE_AND_THERE = Wording("{name} is {one} here and {other} there", "{name} differs")


def differences(one: Any, other: Any, wording: Wording) -> list[str]:
    """Return a phrase for each difference between two plans, or parts of plans.

    Args:
        one, other: the plans, as JSON, in the order in which the wording names them.
        wording: how a difference is put in words.
    """
    return list(_phrases(one, other, wording, ()))


def _phrases(one: Any, other: Any, wording: Wording, path: tuple[str, ...]) -> Iterator[str]:
    if one == other or path[-2:] == _DERIVED:
        return
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in {**one, **other}:
            yield from _phrases(one.get(name, _ABSENT), other.get(name, _ABSENT), wording, (*path, str(name)))
        return
    group, name = path[-2:] if len(path) > 1 else ("", "".join(path))
    is_code = group == "functions" and _ABSENT not in (one, other)
    phrase = wording.hidden if is_code or is_secret(name) or is_hidden(one) or is_hidden(other) else wording.values
    yield phrase.format(name=_name(path), one=_shown(one), other=_shown(other))


def _name(path: tuple[str, ...]) -> str:
    """Return the name of a value in a phrase."""
    if len(path) > 1 and path[-2] in _GROUPS:
        return _GROUPS[path[-2]].format(path[-1])
    name = ".".join(path).removeprefix("identity.")
    return _SPOKEN.get(name, name) or "the plan"


def _shown(value: Any) -> str:
    if value is _ABSENT:
        return "absent"
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}... ({hashed(text)[:_HASH_LENGTH]})"
