"""A DataRef: a published version, as users see it, or some of its records."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Generic, cast

import numpy as np
from numpy.typing import NDArray

from cachelayer.datasets.table import Table
from cachelayer.datasets.version_records import VersionRecords
from cachelayer.errors import InvalidArgumentError
from cachelayer.protocols import T
from cachelayer.support.arguments import explains_options
from cachelayer.views.view import View

if TYPE_CHECKING:
    from cachelayer.datasets.local_copies import Mirrored
    from cachelayer.statistics import Statistics


@explains_options
class DataRef(View[T], Generic[T]):
    """A published version, or a view of some of its records: random access, and streams over it.

    :class:`cachelayer.Storage` makes it. Picklable, thread-safe and fork-safe.

    Examples:
        >>> ref = cachelayer.Storage(folder).submit([{"text": "one"}, {"text": "two"}, {"text": "three"}], "rows@v1")
        >>> len(ref), ref[-1], ref[:2].read([1, 0])["text"].tolist()
        (3, {'text': 'three'}, ['two', 'one'])
        >>> f"{ref.dataset_id}@{ref.dataset_version}", ref.digest == cachelayer.open(ref.reference).digest
        ('rows@v1', True)
        >>> import pickle
        >>> pickle.loads(pickle.dumps(ref))[0]
        {'text': 'one'}
    """

    @property
    def _base(self) -> VersionRecords:
        """The records of the version."""
        table = self._records.base
        assert isinstance(table, Table) and isinstance(table.shards, VersionRecords)  # noqa: S101, PT018 - it is checked
        return table.shards

    def _without_erased(self) -> DataRef[T]:
        """Return the same records, of which streams and reads of ranges leave out those that are erased."""
        return DataRef(self._readable.with_shards(lambda shards: replace(shards, excludes_erased=True)))  # type: ignore[type-var]

    @property
    def dataset_id(self) -> str:
        """The id of the dataset."""
        return self._readable.info.name.partition("@")[0]

    @property
    def dataset_version(self) -> str:
        """The name of the version."""
        return self._readable.info.name.partition("@")[2]

    @property
    def provenance(self) -> dict[str, Any]:
        """The origin of the version: the source, options, code, time and host of its build.

        Examples:
            >>> ref = cachelayer.Storage(folder).submit(range(3), "numbers@v1", description="the first numbers")
            >>> ref.provenance["description"], ref.provenance["source"]
            ('the first numbers', 'range')
        """
        return dict(self._base.version.manifest.provenance)

    @property
    def nbytes(self) -> int:
        """The bytes of the version's shards; of a view, its share of these bytes by the number of its records.

        Examples:
            >>> import numpy as np
            >>> ref = cachelayer.Storage(folder).submit(np.zeros((8, 1 << 20), np.uint8), "rows@v1")
            >>> ref.nbytes, ref[:2].nbytes
            (8519680, 2129920)
        """
        return self._records.nbytes if self._records.is_view else self._base.version.info.nbytes

    def stored_nbytes(self, indices: Sequence[int] | NDArray[Any]) -> NDArray[np.int64]:
        """Return the bytes that records take in their shards. This reads the indices of the shards, and no record.

        Args:
            indices: integers; negative ones count from the end.

        Returns:
            int64 of shape ``[len(indices)]``.

        Raises:
            RecordIndexError: if there is no such record.

        Examples:
            >>> rows = [{"text": "a"}, {"text": "a" * 100}]
            >>> ref = cachelayer.Storage(folder).submit(rows, "texts@v1", compression="none")
            >>> ref.stored_nbytes([0, 1]).tolist()
            [16, 112]
        """
        from cachelayer.arrayrecord.local_shards import LocalShards
        from cachelayer.datasets.remote_shards import RemoteShards

        shards = cast(LocalShards | RemoteShards, self._base.shards)
        return shards.stored_nbytes(self._records.selection.take(indices))

    def stats(self, *, records: int | None = None, progress: bool | None = None) -> Statistics:
        """Read all records once, and return their statistics: sizes, ranges, lengths, nulls and histograms.

        Erased records are left out, here and by :meth:`count_by`.

        Args:
            records: read only this many records, drawn at random but always the same ones; None for all.
            progress: as in :meth:`mirror`.

        Raises:
            InvalidArgumentError: if ``records`` is less than 1.

        Examples:
            >>> rows = [{"score": 0.5}, {"score": None}, {"score": 2.5}]
            >>> (score,) = cachelayer.Storage(folder).submit(rows, "rows@v1").stats().leaves
            >>> score.nulls, score.numbers.minimum, score.numbers.maximum, score.numbers.mean
            (1, 0.5, 2.5, 1.5)
        """
        from cachelayer.statistics import survey

        return survey(self, records=records, progress=progress)

    def count_by(self, field: str) -> dict[Any, int]:
        """Return how many records have each value of a field, the most common first; None counts those without one.

        Args:
            field: the name of a field that is one number or text, such as ``"label"`` or ``"meta/lang"``.

        Raises:
            InvalidArgumentError: if there is no such field, or it has several values a record.

        Examples:
            >>> rows = [{"lang": "en"}, {"lang": "de"}, {"lang": None}, {"lang": "en"}]
            >>> ref = cachelayer.Storage(folder).submit(rows, "rows@v1")
            >>> ref.count_by("lang"), ref[2:].count_by("lang")
            ({'en': 2, 'de': 1, None: 1}, {'en': 1, None: 1})
        """
        from cachelayer.statistics import count_by

        return count_by(self, field)

    def mirror(self, *, progress: bool | None = None) -> Mirrored:
        """Copy all shards of the version to the local cache and wait for the copies, such as before training starts.

        Args:
            progress: None shows a bar in a terminal or a notebook, elsewhere a line every half minute; True shows it
                from the start; False shows nothing.

        Returns:
            How many shards are on this host: all if the storage is local, fewer if the local cache is too small.

        Raises:
            InvalidArgumentError: if the storage keeps no local copies.
            CacheLayerError: if a copy could not be made.

        Examples:
            >>> storage = cachelayer.Storage(f"memory:/{folder}", local_cache=folder)
            >>> mirrored = storage.submit([3, 1, 2], "numbers@v1").mirror()
            >>> mirrored.local_shards == mirrored.shards
            True
            >>> ref = cachelayer.Storage(folder / "local").submit([3, 1, 2], "numbers@v1")
            >>> ref.mirror().folder == str(folder / "local/numbers")  # the shards themselves are on this host
            True
        """
        from cachelayer.datasets.local_copies import Mirrored
        from cachelayer.support.progress import Progress

        of_version = self._base
        version = of_version.version
        table = version.manifest.shards
        copies = of_version.local_copies
        if version.is_local:
            return Mirrored(len(table), len(table), table.nbytes, table.nbytes, version.folder.url)
        if of_version.copies is None or copies is None:
            raise InvalidArgumentError("this storage keeps no local copies: open it without local_cache_bytes=0")
        with Progress(f"mirror {version.name}", len(of_version), progress) as display:
            here = copies.copy_all(lambda shard: display.update(table[shard].stats.records, table[shard].stats.nbytes))
        nbytes = sum(table[shard].stats.nbytes for shard in here)
        return Mirrored(len(table), len(here), table.nbytes, nbytes, str(of_version.copies.path))

    def raw(self) -> DataRef[Any]:
        """Return the same records undecoded: images and audio as the bytes of their files.

        Examples:
            >>> files = [{"image": b"P6 4 2 255 " + bytes(24)}]  # black, in the format PPM
            >>> spec = {"image": cachelayer.ImageSpec()}
            >>> ref = cachelayer.Storage(folder).submit(files, "images@v1", element_spec=spec)
            >>> ref[0]["image"].shape, ref.raw()[0]["image"][:11]
            ((2, 4, 3), b'P6 4 2 255 ')
        """
        records = self._readable.undecoded()
        assert records is not None  # noqa: S101 - they are stored
        return DataRef(records)

    def _repr_html_(self) -> str:
        """Return a table with the element spec and the first records, which notebooks show."""
        if self._current.published(wait=False) is None:
            return super()._repr_html_()
        from cachelayer.drawing.ref_html import first_records, ref_html
        from cachelayer.drawing.text import class_names

        records = self._records
        title = f"{self.dataset_id}@{self.dataset_version}"
        facts = {"records": f"{len(self):,}", "bytes": f"{self.nbytes:,}", "digest": f"sha256:{self.digest}"}
        if records.is_view:
            title = records.title
            facts = {**records.size_texts, "digest": facts["digest"]}
        stored = self.raw()
        pictures = first_records(stored, class_names(self.metadata))
        return ref_html(title, list(facts.items()), stored.element_spec, pictures)
