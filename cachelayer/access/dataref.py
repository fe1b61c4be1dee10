"""DataRef: what users hold of a version."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Generic, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.mirror import Mirrored, mirror
from cachelayer.access.version_records import VersionRecords
from cachelayer.access.view import View
from cachelayer.errors import InvalidTypeError
from cachelayer.protocols import T
from cachelayer.records.selection import Selection
from cachelayer.versions.diff import Diff, compare


class DataRef(View[T], Generic[T]):
    """A published version, or a view of a part of one: random access, and streams over it.

    Made by :class:`cachelayer.Storage`. Picklable, and safe to use from threads and after a fork.
    """

    _base: VersionRecords

    def __init__(self, base: VersionRecords, selection: Selection | None = None) -> None:
        super().__init__(base, selection)

    def _with_selection(self, selection: Selection) -> Self:
        return type(self)(self._base, selection)

    @property
    def dataset_id(self) -> str:
        """The dataset."""
        return self._base.version.dataset_id

    @property
    def dataset_version(self) -> str:
        """The version."""
        return self._base.version.info.version

    @property
    def reference(self) -> str:
        """The version pinned by its digest: opening it gives these bytes or an error. Holds no credentials."""
        return self._base.version.reference

    @property
    def metadata(self) -> dict[str, Any]:
        """What the user gave as metadata, and what the source said of itself."""
        return dict(self._base.version.manifest.provenance.get("metadata") or {})

    @property
    def provenance(self) -> dict[str, Any]:
        """How the version came to be."""
        return dict(self._base.version.manifest.provenance)

    @property
    def nbytes(self) -> int:
        """Bytes of the version's shards."""
        return self._base.version.info.nbytes

    def stored_nbytes(self, indices: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """The bytes that records take in their shards, from the indices of these: no record is read.

        Args:
            indices: integers; negative ones count from the end.

        Returns:
            int64 of shape ``[len(indices)]``.

        Raises:
            RecordIndexError: where there is no such record.
        """
        return self._base.shards.stored_nbytes(self._selection.take(indices))

    def diff(self, other: DataRef[Any]) -> Diff:
        """How this version differs from another, of any dataset and storage; of views, the whole versions.

        Raises:
            InvalidTypeError: where the other is no version.
        """
        if not isinstance(other, DataRef):
            raise InvalidTypeError(f"a version is compared with a DataRef, not with a {type(other).__name__}")
        return compare(self._base.version, other._base.version)

    def mirror(self, *, progress: bool | None = None) -> Mirrored:
        """Have local copies of all shards of the version made, and wait for them: before training starts.

        Args:
            progress: None shows a bar in a terminal or a notebook, elsewhere a line every half minute; True does
                so from the start; False shows nothing.

        Returns:
            How many are here: all of them at once where the storage is local, fewer where there is no room for more.

        Raises:
            InvalidArgumentError: where the storage keeps no local copies.
            CacheLayerError: where a copy could not be made.
        """
        return mirror(self._base, progress)

    def raw(self) -> DataRef[Any]:
        """Return the same records without decode hints: encoded images and sounds as their bytes."""
        return DataRef(self._base.stored(), self._selection)

    def _stored(self) -> DataRef[Any]:
        return self.raw()

    def __repr__(self) -> str:
        name = f"{self.dataset_id}@{self.dataset_version}"
        return f"DataRef({name!r}, records={len(self)}, digest='sha256:{self.digest}')"
