"""The plan of a build: another build needs an equal one to resume it, or to help."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachelayer.locks import cached_property
from cachelayer.provenance.origin import Origin
from cachelayer.provenance.secrecy import hidden_values, is_hidden

_VALUES = ("arguments", "bound")


@dataclass(frozen=True)
class Plan:
    """What is built, and how.

    Args:
        decides: what decides the shards besides the source; JSON values, stored in clear.
        identity: what distinguishes the source, besides its elements; JSON values, whose texts are hidden.
        origin: the code and the values that make the source.
    """

    decides: Mapping[str, Any]
    identity: Mapping[str, Any]
    origin: Origin

    @cached_property
    def stored(self) -> dict[str, Any]:
        """What a note holds of the plan."""
        return {**self._with(self.origin.salt), "salt": self.origin.salt}

    @property
    def stored_identity(self) -> dict[str, Any]:
        """What provenance holds of the source's identity; texts are hidden."""
        found: dict[str, Any] = hidden_values(self.identity, self.origin.salt)
        return found

    def beside(self, noted: Mapping[str, Any]) -> dict[str, Any]:
        """Return it as a note with the salt of another plan, so that equal values are stored equally."""
        salt = noted.get("salt")
        return {**self._with(salt), "salt": salt} if isinstance(salt, str) else self.stored

    def _with(self, salt: str) -> dict[str, Any]:
        identity = hidden_values(self.identity, salt)
        found: dict[str, Any] = json.loads(
            json.dumps({**self.decides, "identity": identity, **self.origin.identity(salt)})
        )
        return found

    def changes(self, noted: Mapping[str, Any]) -> list[str]:
        """Return how this plan differs from a noted one, a phrase each; empty if it is the same build."""
        salt = noted.get("salt") if isinstance(noted, Mapping) else None
        if not isinstance(salt, str):
            return ["another release began it"]
        now = self._with(salt)
        found = [
            phrase
            for name in (*now, *(name for name in noted if name not in now))
            if name not in _VALUES and name != "salt" and now.get(name) != noted.get(name)
            for phrase in self._phrases(name, noted, now)
        ]
        names = [name for key in _VALUES for name in (now.get(key) or {}).keys() ^ (noted.get(key) or {}).keys()]
        return [
            *found,
            *self.origin.argument_changes(noted),
            *self.origin.value_changes(noted),
            *(f"argument {name} was or is not there" for name in sorted(names)),
        ]

    def _phrases(self, name: str, noted: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
        if name == "code":
            return self.origin.code_changes(noted) or ["the code of the source has changed, or is unknown"]
        before, after = noted.get(name), now.get(name)
        if isinstance(before, Mapping) and isinstance(after, Mapping):
            return differences(before, after)
        return differences({name: before}, {name: after})


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """Return how stored values differ, a phrase each."""
    return [
        _phrase(_SPOKEN.get(name, name), before.get(name), after.get(name))
        for name in {**before, **after}
        if before.get(name) != after.get(name)
    ]


def _phrase(name: str, before: Any, after: Any) -> str:
    if is_hidden(before) or is_hidden(after):
        return f"{name} changed"
    return f"{name} was {before!r} and is {after!r}"


_SPOKEN = {
    "source": "the kind of the source",
    "base": "the version that is appended to",
    "division": "the division into parts",
    "function": "the function",
    "files": "the number of files",
    "files_nbytes": "the size of the files",
    "files_names": "the list of the files",
    "files_modified": "the time when the files were written",
    "query": "the query",
    "dataset": "the code of the loader's dataset",
}
