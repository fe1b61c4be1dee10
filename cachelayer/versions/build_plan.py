"""The plan of a build: another build resumes it, or helps, only with an equal plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachelayer.locks import cached_property
from cachelayer.provenance.origin import Origin
from cachelayer.provenance.secrecy import hidden_values
from cachelayer.versions.build_plan_differences import WAS_AND_IS, differences

_VALUES = ("arguments", "bound")
_COMPARED_APART = frozenset({*_VALUES, "code", "salt"})


@dataclass(frozen=True)
class Plan:
    """What is built, and how.

    Args:
        decides: what decides the shards besides the source; JSON values, stored in clear.
        identity: what distinguishes the source, besides its elements; JSON values, stored with hidden texts.
        origin: the code and the values that make the source.
    """

    decides: Mapping[str, Any]
    identity: Mapping[str, Any]
    origin: Origin

    @cached_property
    def stored(self) -> dict[str, Any]:
        """The plan as a note stores it."""
        return {**self._with(self.origin.salt), "salt": self.origin.salt}

    @property
    def stored_identity(self) -> dict[str, Any]:
        """The source's identity as provenance stores it; texts are hidden."""
        found: dict[str, Any] = hidden_values(self.identity, self.origin.salt)
        return found

    def beside(self, noted: Mapping[str, Any]) -> dict[str, Any]:
        """Return the plan as a note with the salt of another note, so that equal values are stored equally."""
        salt = noted.get("salt")
        return {**self._with(salt), "salt": salt} if isinstance(salt, str) else self.stored

    def _with(self, salt: str) -> dict[str, Any]:
        identity = hidden_values(self.identity, salt)
        found: dict[str, Any] = json.loads(
            json.dumps({**self.decides, "identity": identity, **self.origin.identity(salt)})
        )
        return found

    def changes(self, noted: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each difference from a noted plan; empty if it is the same build."""
        salt = noted.get("salt") if isinstance(noted, Mapping) else None
        if not isinstance(salt, str):
            return ["another release of cachelayer began it"]
        now = self._with(salt)
        names = [name for key in _VALUES for name in (now.get(key) or {}).keys() ^ (noted.get(key) or {}).keys()]
        return [
            *differences(_compared(noted), _compared(now), WAS_AND_IS),
            *self._code_changes(noted, now),
            *self.origin.argument_changes(noted),
            *self.origin.value_changes(noted),
            *(f"argument {name} was added or removed" for name in sorted(names)),
        ]

    def _code_changes(self, noted: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
        if now.get("code") == noted.get("code"):
            return []
        return self.origin.code_changes(noted) or ["the code of the source changed, or is unknown"]


def _compared(plan: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values of a plan that are compared one by one, without those that the origin compares."""
    return {name: value for name, value in plan.items() if name not in _COMPARED_APART}
