"""Values as a provenance stores them, and the comparison of stored values in words.

A secret cannot be told by its name: it may be the second positional argument, a URL with a password, or a header in a
dict. So only numbers, bools, None and short lists of these are stored as they are. Of any other value a short hash is
stored, which shows whether the value changed. Many values share a hash, so a guess of the value cannot be confirmed.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping
from enum import Enum
from typing import Any

from cachelayer.support import json_values

MARK = "hash:"
"""The beginning of a hash where values may stand too."""
_GROUPS = re.compile(r"(identity|options|(code\.)?(functions|values))\.")
_MOST_TEXT = 60
_DIGITS = 6
"""The hexadecimal digits of a hash that are stored: one change in 16 million goes unnoticed."""
_MOST_IN_CLEAR = 100


class Wording(Enum):
    """Phrases for a difference: of two values in clear, of two hashes, of a new name, and of a name that is gone.

    Without a phrase, such a difference is not told.
    """

    OVER_TIME = ("{name} was {one} and is {other}", "{name} changed", "{name} is new", "{name} is no longer used")
    IN_BOTH = ("{name} was {one} and is {other}", "{name} changed", "", "")
    AMONG_HOSTS = (
        "{name} is {one} here and {other} there", "{name} differs", "{name} is only there", "{name} is only here"
    )  # fmt: skip


def hashed(content: bytes) -> str:
    """Return the hash of bytes that tell what a value holds."""
    return MARK + hashlib.blake2b(content, digest_size=16).hexdigest()


def stored(value: Any) -> Any:
    """Return the content of a value, or of several by name, as it is stored: hashes are shortened."""
    if isinstance(value, Mapping):
        return {name: stored(item) for name, item in value.items()}
    return value[: len(MARK) + _DIGITS] if isinstance(value, str) and value.startswith(MARK) else value


def is_number(value: Any, levels: int = 2) -> bool:
    """Return whether a value is stored as it is: a number that JSON can hold, a bool, None or a short list of these."""
    if type(value) is list:
        return levels > 0 and len(value) <= _MOST_IN_CLEAR and all(is_number(item, levels - 1) for item in value)
    if type(value) is int:
        return value.bit_length() < 64
    return value is None or type(value) is bool or (type(value) is float and math.isfinite(value))


def differences(one: Mapping[str, Any], other: Mapping[str, Any], wording: Wording = Wording.OVER_TIME) -> list[str]:
    """Return a phrase for each difference between two dicts of stored values.

    Dicts within them are compared name by name.
    """
    before = _texts(one)
    after = _texts(other)
    both, hidden, new, gone = wording.value
    phrases = []
    for name in {**before, **after}:
        if before.get(name) == after.get(name):
            continue
        if name not in before:
            phrase = new
        elif name not in after:
            phrase = gone
        elif before[name].startswith(f"'{MARK}") or after[name].startswith(f"'{MARK}"):
            phrase = hidden
        else:
            phrase = both
        if phrase:
            short_name = _GROUPS.sub("", name, count=1)
            one_text = _shortened(before.get(name, ""))
            phrases.append(phrase.format(name=short_name, one=one_text, other=_shortened(after.get(name, ""))))
    return phrases


def _texts(values: Mapping[str, Any]) -> dict[str, str]:
    """Return the values of a dict and of the dicts within it as texts, by dotted names."""
    # A tuple of numbers is stored as it is written.
    return {
        name: value if isinstance(value, str) and value.startswith("(") else repr(value)
        for name, value in json_values.flattened(values)
        if value != {}
    }


def _shortened(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."
