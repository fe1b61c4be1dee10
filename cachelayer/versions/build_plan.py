"""The plan of a build: another build resumes it, or helps, only with an equal plan. How two plans differ, in words."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachelayer import json_values
from cachelayer.locks import cached_property
from cachelayer.provenance.contents import described, is_hash, stored
from cachelayer.provenance.origin import Origin

WAS_AND_IS = "{name} was {one} and is {other}", "{name} changed"
HERE_AND_THERE = "{name} is {one} here and {other} there", "{name} differs"
"""How a difference is put in words if both values may be shown, and if one of them is a hash."""
_GROUPS = re.compile(r"(identity|code\.functions|code\.constants)\.")
_LONGEST_VALUE = 60


@dataclass(frozen=True)
class BuildPlan:
    """What is built, and how.

    Args:
        decides: what decides the shards besides the source; JSON values, stored in clear.
        identity: what distinguishes the source, besides its elements; JSON values, of which texts are stored as hashes.
        origin: the code and the values that make the source.
    """

    decides: Mapping[str, Any]
    identity: Mapping[str, Any]
    origin: Origin

    @cached_property
    def stored(self) -> dict[str, Any]:
        """The plan as a note stores it."""
        found: dict[str, Any] = json.loads(
            json.dumps({**self.decides, "identity": self.stored_identity, **self.origin.identity()})
        )
        return found

    @property
    def stored_identity(self) -> dict[str, Any]:
        """The source's identity as provenance stores it."""
        return stored_values(self.identity)

    def changes(self, noted: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each difference from a noted plan; empty if it is the same build."""
        return differences(noted, self.stored, WAS_AND_IS)


def stored_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values as they are stored: numbers as they are, and others as hashes."""
    return {name: stored(described(value)) for name, value in values.items()}


def differences(one: Mapping[str, Any], other: Mapping[str, Any], wording: tuple[str, str]) -> list[str]:
    """Return a phrase for each difference between two plans, or parts of plans, as JSON.

    Args:
        one, other: the plans, in the order in which the wording names them.
        wording: how a difference is put in words.
    """
    before, after = (dict(json_values.flattened(plan)) for plan in (one, other))
    pairs = {name: (before.get(name, {}), after.get(name, {})) for name in {**before, **after}}
    return [_phrase(name, *pair, wording) for name, pair in pairs.items() if pair[0] != pair[1]]


def _phrase(name: str, one: Any, other: Any, wording: tuple[str, str]) -> str:
    is_code = name.startswith("code.functions.") and {} not in (one, other)
    text = wording[1] if is_code or is_hash(one) or is_hash(other) else wording[0]
    return text.format(name=_GROUPS.sub("", name, count=1), one=_shown(one), other=_shown(other))


def _shown(value: Any) -> str:
    text = "absent" if value == {} else repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[:_LONGEST_VALUE]}... ({stored(described(text))})"
