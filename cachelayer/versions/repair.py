"""Repair a version: find what is missing or damaged of it, and mend that from another version with its digest."""

from __future__ import annotations

import uuid
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from typing import Any

from cachelayer.logs import logger_of
from cachelayer.objects import paths
from cachelayer.progress import Progress
from cachelayer.versions.claims import CLAIM, Claims
from cachelayer.versions.damage import DamagedObject, damage_of
from cachelayer.versions.mend import mend
from cachelayer.versions.stored_version import StoredVersion

_log = logger_of("stores")


@dataclass(frozen=True)
class RepairReport:
    """What a repair found, and what it did.

    Args:
        reference: the version.
        damaged: its objects that were missing or damaged; empty if all is well.
        repaired: whether they are as they were published now; False after a dry run.
        source: the version that they were fetched from; None if none was needed.
        local_copies: local copies of its shards on this host that were damaged; they are made again when they are read.
    """

    reference: str
    damaged: tuple[DamagedObject, ...]
    repaired: bool
    source: str | None = None
    local_copies: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """True if nothing of the version is damaged now."""
        return self.repaired or not self.damaged

    def __bool__(self) -> bool:
        return self.ok

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values."""
        return {"ok": self.ok, **asdict(self)}


def repair(
    version: StoredVersion,
    opened: AbstractContextManager[StoredVersion] | None,
    *,
    local_copies: tuple[str, ...] = (),
    progress: bool | None = None,
) -> RepairReport:
    """Find what is missing or damaged of a version, and mend it.

    Args:
        version: the version.
        opened: opens a version with the same records, or builds one; it is entered only if something is damaged. None
            mends nothing.
        local_copies: the damaged local copies that were removed.
        progress: as in :meth:`cachelayer.Storage.submit`.
    """
    claims = Claims(version.folder.folder(paths.builds(version.info.version)))
    with Progress(f"repair {version.name}", None, progress) as shown:
        damage = damage_of(version, shown)
        for each in damage:
            _log.warning("damage in %s: %s is %s", version.name, each.name, each.problem)
        if not damage or opened is None:
            return RepairReport(version.name, tuple(damage), False, None, local_copies)
        # The claim shows gc that the repair is at work.
        with opened as source, claims.hold(f"{uuid.uuid4().hex}.{CLAIM}"):
            damage = mend(version, source, damage, shown)[1]
            _log.info("%s: %d objects were put again from %s", version.name, len(damage), source.reference)
            return RepairReport(version.name, tuple(damage), True, source.reference, local_copies)
