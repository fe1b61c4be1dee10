"""The records behind a view, as they are stored: what an append, a rewrite or a copy of some records is made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from cachelayer.datasets.dataset import Shards
from cachelayer.datasets.table import Table
from cachelayer.datasets.version_records import VersionRecords
from cachelayer.errors import InvalidTypeError
from cachelayer.protocols import takes_requests
from cachelayer.records.codec import codec_for
from cachelayer.records.frames import Frames
from cachelayer.records.selection import Selection
from cachelayer.specs.leaf_names import leaf_numbers
from cachelayer.specs.tree import Tree
from cachelayer.support.memory import Ints
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.views.joined import JoinedRecords, shards_of
from cachelayer.views.view import View


@dataclass(frozen=True)
class StoredRecords:
    """The records of a version, of a view of one, or of several versions. Thread-safe and picklable."""

    elements: Table
    """All elements of the versions, undecoded, with the leaves that the records keep."""
    selection: Selection
    """The numbers of the elements that are meant, in order."""
    digest: str
    """The digest of the view."""

    @classmethod
    def of(cls, view: Any, fields: Sequence[str] | None, *, reads_copies: bool) -> Self:
        """Return the stored records of a view.

        The view is a DataRef, a concatenation of DataRefs, or some fields of these. Local copies are read only if all
        are there.
        """
        elements: Any = view._records.base if isinstance(view, View) else None
        if not isinstance(elements, Table):
            cure = "cache it first, with storage.cache()"
            if not isinstance(view, View):
                cure = "pass the name of a version, or a DataRef or a view of one"
            raise InvalidTypeError(f"a {type(view).__name__} has no stored records: {cure}")
        shown = elements.origins.digests.elements
        elements = elements.undecoded()
        if elements.origins.digests.elements != shown:
            raise InvalidTypeError(
                f"{view!r} has images of one size, and stored records have their files: cache it first, with "
                "storage.cache()"
            )
        if fields is not None:
            elements = elements.with_fields(leaf_numbers(elements.codec.spec, fields))
        elements = elements.with_shards(partial(_without_new_copies, reads_copies=reads_copies))
        return cls(elements, view._records.selection, view.digest)

    def __len__(self) -> int:
        return len(self.selection)

    @property
    def versions(self) -> list[StoredVersion]:
        return [records.version for records in _versions(self.elements.shards)]

    @property
    def provenance(self) -> dict[str, Any]:
        """The provenance of the version; empty if the records come from several."""
        shards = self.elements.shards
        return dict(shards.version.manifest.provenance) if isinstance(shards, VersionRecords) else {}

    @property
    def is_local(self) -> bool:
        """True if every record can be read without a request."""
        return not takes_requests(self.elements)

    @property
    def compressions(self) -> list[str]:
        """The compression of each shard of the first version that has records: ``none`` or ``zstd``."""
        first = next((records for records in _versions(self.elements.shards) if len(records)), None)
        return [] if first is None else first.version.manifest.shards.compressions

    @property
    def element_spec(self) -> Tree:
        """The spec of the records that :meth:`frames` returns."""
        return self.elements.codec.spec

    @property
    def record_nbytes(self) -> int:
        """About how many bytes a record has."""
        return max(1, self.elements.info.record_nbytes)

    def frames(self, rows: Ints) -> Frames:
        """Return some records as bytes. Records that keep all their leaves are not decoded."""
        numbers = self.selection.take(rows)
        shards = self.elements.shards
        if self.elements.is_whole:
            return Frames.of(shards.records(numbers))
        return codec_for(self.element_spec).encode(self.elements.columns(numbers))


def _versions(shards: Shards) -> list[VersionRecords]:
    if isinstance(shards, JoinedRecords):
        return [each for member in shards.members for each in _versions(shards_of(member))]
    return [shards] if isinstance(shards, VersionRecords) else []


def _without_new_copies(shards: Shards, *, reads_copies: bool) -> Shards:
    """Return the same records, of which no local copies are made, since they are read once.

    Copies are read if all are there already.
    """
    if isinstance(shards, VersionRecords):
        copies = shards.copies if reads_copies and not shards.takes_requests else None
        # A damaged record must not get a checksum of its own.
        return replace(shards, copies=copies, verify="always")
    return shards
