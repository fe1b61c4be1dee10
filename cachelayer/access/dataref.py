"""DataRef: a published version, as users see it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Generic, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.mirror import Mirrored, mirror
from cachelayer.access.stored_view import StoredView
from cachelayer.access.version_records import VersionRecords
from cachelayer.errors import InvalidTypeError
from cachelayer.protocols import T
from cachelayer.records.selection import Selection
from cachelayer.versions.diff import Diff, compare


class DataRef(StoredView[T], Generic[T]):
    """A published version, or a view of some of its records: random access, and streams over it.

    :class:`cachelayer.Storage` makes it. Picklable, thread-safe and fork-safe.
    """

    _base: VersionRecords

    def __init__(self, base: VersionRecords, selection: Selection | None = None) -> None:
        super().__init__(base, selection)

    def _with_selection(self, selection: Selection) -> Self:
        return type(self)(self._base, selection)

    @property
    def dataset_id(self) -> str:
        """The id of the dataset."""
        return self._base.version.dataset_id

    @property
    def dataset_version(self) -> str:
        """The name of the version."""
        return self._base.version.info.version

    @property
    def reference(self) -> str:
        """A text for :func:`cachelayer.open`: the version, pinned by its digest. It holds no credentials."""
        return self._base.version.reference

    @property
    def _source_metadata(self) -> dict[str, Any]:
        return self.metadata

    @property
    def provenance(self) -> dict[str, Any]:
        """How the version was built."""
        return dict(self._base.version.manifest.provenance)

    @property
    def nbytes(self) -> int:
        """Bytes of the version's shards."""
        return self._base.version.info.nbytes

    def stored_nbytes(self, indices: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """Return the bytes that records take in their shards. It reads the shards' indices only, no record.

        Args:
            indices: integers; negative ones count from the end.

        Returns:
            int64 of shape ``[len(indices)]``.

        Raises:
            RecordIndexError: if there is no such record.
        """
        return self._base.shards.stored_nbytes(self._selection.take(indices))

    def diff(self, other: DataRef[Any]) -> Diff:
        """Return how this version differs from another, of any dataset and storage. A view counts as its whole version.

        Raises:
            InvalidTypeError: if the other is not a DataRef.
        """
        if not isinstance(other, DataRef):
            raise InvalidTypeError(f"diff takes a DataRef, not a {type(other).__name__}")
        return compare(self._base.version, other._base.version)

    def mirror(self, *, progress: bool | None = None) -> Mirrored:
        """Make local copies of all shards of the version and wait for them, for example before training starts.

        Args:
            progress: None shows a bar in a terminal or a notebook, elsewhere a line every half minute; True shows it
                from the start; False shows nothing.

        Returns:
            How many shards are here: all of them if the storage is local, fewer if the local cache is too small.

        Raises:
            InvalidArgumentError: if the storage keeps no local copies.
            CacheLayerError: if a copy could not be made.
        """
        return mirror(self._base, progress)

    def raw(self) -> DataRef[Any]:
        """Return the same records undecoded: images and audio as the bytes of their files."""
        return DataRef(self._base.stored(), self._selection)

    def _stored(self) -> DataRef[Any]:
        return self.raw()

    def _repr_html_(self) -> str:
        """Return a table with the element spec and the first records, which notebooks show."""
        from cachelayer.drawing.class_names import class_names
        from cachelayer.drawing.ref_html import ref_html

        facts = [("records", f"{len(self):,}"), ("bytes", f"{self.nbytes:,}"), ("digest", f"sha256:{self.digest}")]
        # A look at four records is no reason to make local copies of shards.
        stored = DataRef[Any](replace(self._base.stored(), copies=None), self._selection)
        title, names = f"{self.dataset_id}@{self.dataset_version}", class_names(self.metadata)
        return ref_html(title, facts, stored, len(self), names)

    def __repr__(self) -> str:
        name = f"{self.dataset_id}@{self.dataset_version}"
        return f"DataRef({name!r}, records={len(self)}, digest='sha256:{self.digest}')"
