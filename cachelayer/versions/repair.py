"""Repair a version: find its missing or damaged objects, and put them again from a version with the same digest."""

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

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "numbers", "v1")
        >>> next((folder / "numbers" / "shards").glob("*.index")).unlink()
        >>> report = storage.repair("numbers@v1", source=range(3))
        >>> len(report.damaged), report.repaired, storage.verify("numbers@v1").ok
        (1, True, True)
    """

    reference: str
    """The version."""
    damaged: tuple[DamagedObject, ...]
    """The objects that were missing or damaged; empty if all is well."""
    repaired: bool
    """Whether these objects are as they were published now; False after a dry run."""
    source: str | None = None
    """The version that the objects came from; None if none was needed."""
    local_copies: tuple[str, ...] = ()
    """Damaged local copies of shards on this host, which were removed: they are made again when they are read."""

    @property
    def ok(self) -> bool:
        """True if nothing of the version is damaged now.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.cache(range(3), "numbers", "v1")
            >>> storage.repair("numbers@v1", dry_run=True).ok
            True
        """
        return self.repaired or not self.damaged

    def __bool__(self) -> bool:
        return self.ok

    def to_json(self) -> dict[str, Any]:
        """Return the report as JSON values.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.cache(range(3), "numbers", "v1")
            >>> report = storage.repair("numbers@v1", dry_run=True).to_json()
            >>> report["reference"], report["ok"], report["damaged"]
            ('numbers@v1', True, ())
        """
        return {"ok": self.ok, **asdict(self)}


def repair(
    version: StoredVersion,
    opened: AbstractContextManager[StoredVersion] | None,
    *,
    local_copies: tuple[str, ...] = (),
    progress: bool | None = None,
) -> RepairReport:
    """Find the missing or damaged objects of a version, and put them again.

    Args:
        version: the version.
        opened: opens a version with the same records, or builds it; entered only if something is damaged. None for a
            dry run.
        local_copies: the damaged local copies that were removed.
        progress: as in :meth:`cachelayer.Storage.submit`.
    """
    claims = Claims(version.folder.folder(paths.builds(version.info.version)))
    with Progress(f"repair {version.name}", None, progress) as shown:
        damage = damage_of(version, shown)
        for damaged in damage:
            _log.warning("damage in %s: %s is %s", version.name, damaged.name, damaged.problem)
        if not damage or opened is None:
            return RepairReport(version.name, tuple(damage), False, None, local_copies)
        # The claim shows gc that the repair is at work.
        with opened as source, claims.hold(f"{uuid.uuid4().hex}.{CLAIM}"):
            damage = mend(version, source, damage, shown)[1]
            _log.info("%s: %d objects were put again from %s", version.name, len(damage), source.reference)
            return RepairReport(version.name, tuple(damage), True, source.reference, local_copies)
