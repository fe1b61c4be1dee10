"""The plan of a build: another build resumes it, or helps, only with an equal plan."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachelayer.locks import cached_property
from cachelayer.provenance.contents import described, differences, stored
from cachelayer.provenance.origin import Origin


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
        plan = {**self.decides, "identity": self.stored_identity, **self.origin.identity()}
        return json.loads(json.dumps(plan))  # type: ignore[no-any-return]

    @property
    def stored_identity(self) -> dict[str, Any]:
        """The source's identity as provenance stores it."""
        return stored_values(self.identity)

    def changes(self, noted: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each difference from a noted plan; empty if it is the same build."""
        return differences(noted, self.stored)


def stored_values(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return JSON values as they are stored: numbers as they are, and others as hashes."""
    return {name: stored(described(value)) for name, value in values.items()}
