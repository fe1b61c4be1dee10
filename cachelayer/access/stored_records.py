"""The records of views as they are stored, for versions that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Self

from cachelayer.access.joined import Joined, source_of
from cachelayer.access.record_elements import RecordElements, RecordSource, StoredElements
from cachelayer.access.version_records import VersionRecords
from cachelayer.access.view import View
from cachelayer.errors import InvalidTypeError
from cachelayer.records.codec import codec_for
from cachelayer.records.frames import Frames
from cachelayer.records.leaf_names import leaf_numbers
from cachelayer.records.memory import Ints
from cachelayer.records.selection import Selection
from cachelayer.records.tree import Tree
from cachelayer.versions.stored_version import StoredVersion


@dataclass(frozen=True)
class StoredRecords:
    """The records of a version, a view of one, or of several that were concatenated. Thread-safe and picklable.

    Args:
        elements: the elements, undecoded, with the leaves that the records keep.
        selection: which of them, in order.
        digest: the digest of them.
    """

    elements: StoredElements
    selection: Selection
    digest: str

    @classmethod
    def of(cls, view: Any, fields: Sequence[str] | None, *, reads_copies: bool) -> Self:
        """Return the stored records of a view.

        Args:
            view: a DataRef, a concatenation of DataRefs, or some fields of these.
            fields: the fields that they keep; None for all of the view.
            reads_copies: whether to read local copies of remote shards, if all of them are there.
        """
        elements: Any = view._records.base if isinstance(view, View) else None
        if not isinstance(elements, StoredElements):
            cure = "cache it first, with storage.cache()"
            if not isinstance(view, View):
                cure = "pass the name of a version, or a DataRef or a view of one"
            raise InvalidTypeError(f"a {type(view).__name__} has no stored records: {cure}")
        elements = elements.undecoded()
        if fields is not None:
            elements = elements.with_fields(leaf_numbers(elements.codec.spec, fields))
        elements = elements.with_sources(partial(_read_once, reads_copies=reads_copies))
        return cls(elements, view._records.selection, view.digest)

    def __len__(self) -> int:
        return len(self.selection)

    @property
    def versions(self) -> list[StoredVersion]:
        return [source.version for source in _versions(self.elements.source)]

    @property
    def provenance(self) -> dict[str, Any]:
        """How the version was built that they come from; empty if they come from several."""
        source = self.elements.source
        return dict(source.version.manifest.provenance) if isinstance(source, VersionRecords) else {}

    @property
    def is_local(self) -> bool:
        """Whether records at any place can be read without a request."""
        return not self.elements.takes_requests

    @property
    def compression(self) -> str:
        """How the first shard is compressed: ``none`` or ``zstd``."""
        first = next((source for source in _versions(self.elements.source) if len(source)), None)
        return "none" if first is None else first.version.manifest.shards.compressions[0]

    @property
    def element_spec(self) -> Tree:
        """The spec of the records that :meth:`frames` returns."""
        return self.elements.codec.spec

    @property
    def record_nbytes(self) -> int:
        """Approximate bytes of a record that is read."""
        return max(1, self.elements.info.record_nbytes)

    def frames(self, rows: Ints) -> Frames:
        numbers, source = self.selection.take(rows), self.elements.source
        if isinstance(self.elements, RecordElements) and self.element_spec == source.codec.spec:
            return Frames.of(source.records(numbers))
        return codec_for(self.element_spec).encode(self.elements.columns(numbers), len(numbers))


def _versions(source: RecordSource) -> list[VersionRecords]:
    if isinstance(source, Joined):
        return [each for member in source.members for each in _versions(source_of(member))]
    return [source] if isinstance(source, VersionRecords) else []


def _read_once(source: RecordSource, *, reads_copies: bool) -> RecordSource:
    """Return records that read no local copies, unless all are there: nobody needs new ones of what is read once."""
    if isinstance(source, Joined):
        return source.with_sources(partial(_read_once, reads_copies=reads_copies))
    if isinstance(source, VersionRecords):
        copies = source.copies if reads_copies and not source.takes_requests else None
        # A damaged record must not get a checksum of its own.
        return replace(source, copies=copies, verify="always")
    return source
