"""The records of views as they are stored, for versions that are made of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np

from cachelayer.access.joined import JoinedRecords, source_of
from cachelayer.access.record_elements import RecordElements, RecordSource, refuse_erased
from cachelayer.access.remote_shards import RemoteShards
from cachelayer.access.version_records import VersionRecords
from cachelayer.access.view import View
from cachelayer.arrayrecord import index
from cachelayer.errors import CorruptionError, InvalidTypeError
from cachelayer.locks import cached_property
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.leaf_names import chosen_spec, leaf_numbers
from cachelayer.records.memory import Ints, distinct
from cachelayer.records.record_buffers import Frames
from cachelayer.records.selection import Selection
from cachelayer.records.tree import Tree
from cachelayer.versions.stored_version import StoredVersion

_SAMPLED = 64
_LARGE_SHARD = 4 << 20
"""From this size on, the padding of a shard says little about the size of its records."""
_RECORD_OVERHEAD = 53
"""About the bytes that a record takes in an ArrayRecord file besides its own."""


class StoredRecords:
    """The records of a version, a view of one, or of several that were concatenated. Thread-safe and picklable.

    Args:
        source: where they come from.
        selection: which of them, in order.
        digest: the digest of them.
        chosen: the numbers of the leaves that they keep, ascending; None to copy them as they are.
        reads_copies: whether to read local copies of remote shards, if all of them are there.
    """

    def __init__(
        self,
        source: RecordSource,
        selection: Selection,
        digest: str,
        chosen: Sequence[int] | None,
        *,
        reads_copies: bool,
    ) -> None:
        self._source = source
        self._selection = selection
        self.digest = digest
        self._chosen = chosen
        self._reads_copies = reads_copies

    @classmethod
    def of(cls, view: Any, fields: Sequence[str] | None, *, reads_copies: bool) -> Self:
        """Return the stored records of a view.

        Args:
            view: a DataRef, a concatenation of DataRefs, or some fields of these.
            fields: the fields that they keep; None for all of the view.
            reads_copies: see the class.
        """
        elements: Any = view._records.base if isinstance(view, View) else None
        if not isinstance(elements, RecordElements):
            cure = "cache it first, with storage.cache()"
            if not isinstance(view, View):
                cure = "pass the name of a version, or a DataRef or a view of one"
            raise InvalidTypeError(f"a {type(view).__name__} has no stored records: {cure}")
        elements = elements.stored()
        if fields is not None:
            elements = elements.with_fields(leaf_numbers(elements.codec.spec, fields))
        source = elements.source
        chosen = None if elements.codec.spec == source.codec.spec else elements.chosen
        source = _without_copies(source, reads_copies=reads_copies)
        return cls(source, view._records.selection, view.digest, chosen, reads_copies=reads_copies)

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self._source, self._selection, self.digest, self._chosen, self._reads_copies)

    def __len__(self) -> int:
        return len(self._selection)

    @property
    def versions(self) -> list[StoredVersion]:
        return [source.version for source in _versions(self._source)]

    @property
    def provenance(self) -> dict[str, Any]:
        """How the version was built that they come from; empty if they come from several."""
        return dict(self._source.version.manifest.provenance) if isinstance(self._source, VersionRecords) else {}

    @cached_property
    def is_local(self) -> bool:
        """Whether records at any place can be read without a request."""
        return all(_is_local(source, reads_copies=self._reads_copies) for source in _versions(self._source))

    @cached_property
    def compression(self) -> str:
        """How the first shard is compressed: ``none`` or ``zstd``."""
        return next((found for version in self.versions if (found := _compression(version)) is not None), "none")

    @cached_property
    def _codec(self) -> Codec | None:
        """The codec of the records if they keep only some fields."""
        return None if self._chosen is None else codec_for(self.element_spec)

    @cached_property
    def element_spec(self) -> Tree:
        """The spec of the records that :meth:`frames` returns."""
        spec = self._source.codec.spec
        return spec if self._chosen is None else chosen_spec(spec, self._chosen)

    @cached_property
    def fixed_nbytes(self) -> int | None:
        """The bytes of every record if their spec gives them one size, else None."""
        codec = codec_for(self.element_spec)
        return None if codec.layout.varying_count else codec.layout.fixed_nbytes

    def mean_nbytes(self) -> float:
        """Return the mean bytes of a record: of some of them, if it takes reading to know."""
        if self.fixed_nbytes is not None:
            return self.fixed_nbytes
        tables = [version.manifest.shards for version in self.versions]
        shards, stored = sum(map(len, tables)), sum(table.nbytes for table in tables)
        are_large = stored >= shards * _LARGE_SHARD > 0
        if self._chosen is None and are_large and all(_compression(version) == "none" for version in self.versions):
            records = sum(int(table.records.sum()) for table in tables)
            return max(1.0, stored / records - _RECORD_OVERHEAD)
        rows = distinct(np.linspace(0, len(self) - 1, min(_SAMPLED, len(self))).astype(np.int64))
        return float(self.frames(rows).lengths.mean()) if len(rows) else 1.0

    def frames(self, rows: Ints) -> Frames:
        numbers = self._selection.take(rows)
        refuse_erased(self._source, numbers)
        records = self._source.records(numbers)
        if self._chosen is None or self._codec is None:
            return Frames.of(records)
        try:
            columns = self._source.codec.chosen(self._chosen).decode(records)
        except ValueError as error:
            raise CorruptionError(f"{self._source.facts.name}: a record does not decode: {error}") from error
        return self._codec.encode(columns, len(records))


def _unpickled(
    source: RecordSource, selection: Selection, digest: str, chosen: Sequence[int] | None, reads_copies: bool
) -> StoredRecords:
    return StoredRecords(source, selection, digest, chosen, reads_copies=reads_copies)


def _versions(source: RecordSource) -> list[VersionRecords]:
    if isinstance(source, JoinedRecords):
        return [each for member in source.parts.members for each in _versions(source_of(member))]
    return [source] if isinstance(source, VersionRecords) else []


def _without_copies(source: RecordSource, *, reads_copies: bool) -> RecordSource:
    """Return records that read no local copies, unless all are there: nobody needs new ones of what is read once."""
    if isinstance(source, JoinedRecords):
        return source.with_sources(lambda each: _without_copies(each, reads_copies=reads_copies))
    if isinstance(source, VersionRecords):
        copies = source.copies if _is_local(source, reads_copies=reads_copies) else None
        # A damaged record must not get a checksum of its own.
        return replace(source, copies=copies, verify="always")
    return source


def _is_local(source: VersionRecords, *, reads_copies: bool) -> bool:
    if isinstance(source.version.store, LocalStore):
        return True
    shards = source.shards
    return reads_copies and source.copies is not None and isinstance(shards, RemoteShards) and shards.has_all_copies()


def _compression(version: StoredVersion) -> str | None:
    """Return how the first shard of a version is compressed; None if it has none."""
    shards = version.manifest.shards
    if not len(shards):
        return None
    first = shards[0]
    if first.stats.record_nbytes is not None:
        return "none"
    name = paths.index_of(f"{version.dataset_id}/{first.name}")
    with version.reporting_deletion():
        (raw,) = map(bytes, version.store.read_ranges([(name, 0, index.HEADER_NBYTES)]))
    stats, place = first.stats, f"{version.store.url}/{name}"
    return index.decode_published(raw, stats.index_nbytes, stats.index_crc32c, stats.records, place).compression
