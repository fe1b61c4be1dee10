"""How values are stored in a provenance, and how two of them are compared in words.

Nobody can tell a secret by its name: it may be the second positional argument, a URL with a password in it, or a header
in a dict. So only numbers, bools, None and lists of them are stored as they are. Of every other value a short hash is
stored, which shows that it changed. Many values share one, so a guess cannot be confirmed.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from cachelayer import json_values
from cachelayer.credentials_in_urls import without_credentials

MARK = "hash:"
_GROUPS = re.compile(r"(identity|options|(code\.)?(functions|constants|state))\.")
_MOST_TEXT = 60
_DIGITS = 6
"""Hexadecimal digits of the hash that is stored: one change in 16 million goes unnoticed."""
_MOST_IN_CLEAR = 100


class Wording(Enum):
    """How a difference is put in words: if both values may be shown, if not, and if one of them is absent."""

    OVER_TIME = ("{name} was {one} and is {other}", "{name} changed", "{name} is new", "{name} is no longer used")
    IN_BOTH = ("{name} was {one} and is {other}", "{name} changed", "", "")
    AMONG_HOSTS = (
        "{name} is {one} here and {other} there", "{name} differs", "{name} is only there", "{name} is only here"
    )  # fmt: skip


def hashed(content: bytes) -> str:
    """Return the hash of some content."""
    return MARK + hashlib.blake2b(content, digest_size=16).hexdigest()


def stored(value: Any) -> Any:
    """Return a described value as it is stored: numbers as they are, of a hash the beginning."""
    if isinstance(value, Mapping):
        return {name: stored(item) for name, item in value.items()}
    return value[: len(MARK) + _DIGITS] if isinstance(value, str) else value


def is_number(value: Any) -> bool:
    """Return whether a value is a number that JSON can hold, a bool, None or a list of a few of these."""
    if type(value) in (list, tuple):
        return len(value) <= _MOST_IN_CLEAR and all(map(is_number, value))
    if type(value) is int:
        return value.bit_length() < 64
    return value is None or type(value) is bool or (type(value) is float and math.isfinite(value))


def differences(one: Mapping[str, Any], other: Mapping[str, Any], wording: Wording = Wording.OVER_TIME) -> list[str]:
    """Return a phrase for each difference between two dicts of stored values; dicts in them are compared by name."""
    before, after = (
        {name: repr(value) for name, value in json_values.flattened(values) if value != {}} for values in (one, other)
    )
    phrases = []
    both, hidden, new, gone = wording.value
    for name in (name for name in {**before, **after} if before.get(name) != after.get(name)):
        texts = before.get(name, ""), after.get(name, "")
        is_hidden = any(text.startswith(f"'{MARK}") for text in texts)
        phrase = new if not texts[0] else gone if not texts[1] else hidden if is_hidden else both
        short, other_short = (text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..." for text in texts)
        phrases.append(phrase.format(name=_GROUPS.sub("", name, count=1), one=short, other=other_short))
    return list(filter(None, phrases))


def shown(value: Any) -> Any:
    """Return the stored form of a value that the user wants in clear: URLs lose their user, password and query."""
    if isinstance(value, dict):
        return {key: shown(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shown(item) for item in value]
    return without_credentials(value) if isinstance(value, str) else value
