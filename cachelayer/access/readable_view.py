"""Reading of views: elements, batches, streams and lengths, and what a view is known by."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Generic, Self, SupportsIndex, TypeAlias, Unpack, cast, overload

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataset_view import DatasetView
from cachelayer.arguments import boolean, explains_options, integer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import RecordSpan, T, identity_of_records
from cachelayer.records import tree
from cachelayer.records.selection import sliced
from cachelayer.records.tree import Tree
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.stream import BatchStream, Stream, stream_of
from cachelayer.streams.stream_options import StreamArguments, blocks_of, make_options, takes_stream_options

if TYPE_CHECKING:
    from cachelayer.versions.diff import Diff
    from cachelayer.versions.verify import VerifyReport

Indices: TypeAlias = Sequence[int] | NDArray[Any] | slice


@explains_options
class ReadableView(Generic[T]):
    """Elements that are read by number, in batches and as streams, and what they are known by.

    :class:`cachelayer.View` adds the methods that make another view.

    Examples:
        >>> ref = cachelayer.Storage(folder).submit([{"x": 3}, {"x": 1}, {"x": 2}], "rows", "v1")
        >>> ref[0]["x"].item(), ref.read([2, 0])["x"].tolist(), next(iter(ref.stream(2)))["x"].tolist()
        (3, [2, 3], [3, 1])
    """

    def __init__(self, records: DatasetView) -> None:
        self._readable = records
        """The records; of a version that is being built, what can be read of them by number."""

    @property
    def _records(self) -> DatasetView:
        """The records of a published version: if it is being built, this waits for the end of the build."""
        self._readable = cast(DatasetView, self._readable.published())
        return self._readable

    @property
    def _current(self) -> DatasetView:
        """The records as they can be read now, by number: those of the published version once there is one."""
        self._readable = self._readable.published(wait=False) or self._readable
        return self._readable

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._current,)

    def __records__(self) -> DatasetView:
        return self._current

    def __identity__(self) -> Any:
        return identity_of_records(self._records)

    def __len__(self) -> int:
        return len(self._readable)

    @overload
    def __getitem__(self, index: SupportsIndex) -> T: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: Any) -> Any:
        """Return one element, or for a slice a view of its elements.

        Examples:
            >>> letters = cachelayer.wrap("abcdef", identity="letters")
            >>> letters[0], letters[-1], list(letters[::-2]), list(letters[1:][2:])
            ('a', 'f', ['f', 'd', 'b'], ['d', 'e', 'f'])
        """
        records = self._readable
        if isinstance(index, slice):
            rows = sliced(index, len(records))
            name = None if records.name is None else records.name.sliced(rows)
            return type(self)(DatasetView(records.base, records.selection.slice(index), name=name))
        return records.base.element(records.selection.number(index))

    def __getitems__(self, indices: Sequence[int] | NDArray[Any]) -> list[T]:
        """Return a list of the elements of these indices. The caller may change the elements.

        Args:
            indices: integers, of which negative ones count from the end; or a mask with one bool for each record.

        Examples:
            >>> import numpy as np
            >>> letters = cachelayer.wrap("abcdef", identity="letters")
            >>> letters.__getitems__([5, 0, -2]), letters.__getitems__(np.arange(6) > 3)
            (['f', 'a', 'e'], ['e', 'f'])
        """
        return self._readable.base.elements(self._readable.selection.take(indices))

    def read(self, indices: Indices, fields: Sequence[str] | None = None) -> Any:
        """Return many elements at once, in the structure of one element, with leaves stacked on a leading axis.

        Args:
            indices: integers, of which negative ones count from the end; or a mask with one bool for each record; or a
                slice.
            fields: keys of a dict element, or one key: only these are decoded and returned.

        Returns:
            Leaves of known shape as arrays ``[len(indices), *shape]``; bytes and str as object arrays
            ``[len(indices)]``; arrays with unknown dimensions as :class:`cachelayer.Ragged`; leaves that are None
            in some records of the version as :class:`cachelayer.Nullable`. The caller may change all of it.

        Raises:
            RecordIndexError: if there is no such record.
            ErasedRecordError: if one was erased.
            InvalidArgumentError: if a field does not exist, or a mask has the wrong length.
            InvalidTypeError: if the indices are neither integers nor bools.

        Examples:
            >>> rows = [{"text": "one", "label": 1}, {"text": "two", "label": 2}, {"text": "three", "label": 3}]
            >>> ref = cachelayer.Storage(folder).submit(rows, "rows", "v1")
            >>> ref.read([2, 0, -1])
            {'text': array(['three', 'one', 'three'], dtype=object), 'label': array([3, 1, 3])}
            >>> ref.read(slice(2), fields="label")
            {'label': array([1, 2])}
        """
        base = self._readable.base
        numbers = self._readable.selection.take(indices)
        if fields is None:
            return base.batch(numbers)
        keys: Any = fields
        if isinstance(fields, str):
            keys = (fields,)
        elif isinstance(fields, Iterator):
            keys = tuple(fields)
        check_keys(base.element_spec, keys)
        return base.batch_of_keys(numbers, keys)

    def head(self, n: int = 5) -> list[T]:
        """Return a list of the first elements, to look at them; ``ref[:5]`` is a view.

        Args:
            n: the number of elements; of a shorter view all are returned.

        Raises:
            InvalidArgumentError: if the number is negative.
            ErasedRecordError: if one of the elements was erased.

        Examples:
            >>> letters = cachelayer.wrap("abcdef", identity="letters")
            >>> letters.head(2), letters[4:].head()
            (['a', 'b'], ['e', 'f'])
        """
        return self.__getitems__(range(min(integer("n", n, 0), len(self))))

    def __iter__(self) -> Iterator[T]:
        return iter(self.stream())

    # The last overload must be of one class with the one before it: else a call with `**options` would be Any.
    @overload
    def stream(  # type: ignore[overload-overlap]
        self, global_batch_size: None = ..., **options: Unpack[StreamArguments]
    ) -> Stream[T]: ...
    @overload
    def stream(self, global_batch_size: int, **options: Unpack[StreamArguments]) -> BatchStream[T, Any]: ...
    @overload
    def stream(self, global_batch_size: int | None, **options: Unpack[StreamArguments]) -> BatchStream[Any, Any]: ...
    @takes_stream_options()
    def stream(self, global_batch_size: int | None = None, **options: Any) -> Stream[Any]:
        """Return the elements as a sequence of steps: the same for any number of shards, resumable at any position.

        Args:
            global_batch_size: the number of records of a step over all shards, which each get a share of them. None
                gives one element at a time.
            shuffle: True permutes all records exactly, differently in each epoch. ``"blocks"``, or a
                :class:`cachelayer.Blocks`, permutes blocks of about 1 MiB, and the records in a window of blocks, so
                that an object store gets a request for each block in place of each record. An iterator then fetches
                blocks ahead and holds each until its last record is out: the windows of its shard (its share of
                about 1 GiB), 128 MiB more, and the blocks of the steps that are read ahead.
            seed: an integer in [0, 2**64), required with shuffle.
            reshuffle: False uses the same order in every epoch.
            num_epochs: number of epochs, counted from position 0; None for an endless stream.
            shard: (index, count), or an object with shard_index and shard_count.
            remainder: what to do with a shorter last step of an epoch: "keep", the default, distributes it, so shards
                may get different numbers of records; "drop" skips it; "pad" fills it up and gives ``(batch, mask)``
                at every step; "wrap" fills it up with the first records of the next epoch.
            start: the position to begin at: a count of records, over all epochs and all shards.
            prefetch: the number of batches, or elements, to read ahead in the background; several small ones, up to
                4 MiB, count as one. Memory holds these and one more. 0 reads nothing ahead.
            buckets: a field and ascending bounds, such as ``("tokens", [128, 512, 2048])``, or a
                :class:`cachelayer.Buckets`. The records of each batch have similar lengths: above one bound, and at
                most the next, to which they are padded, as by :meth:`cachelayer.View.padded`. Each bucket has a
                shorter last step of its own. Only the starts of steps are valid positions then, and a state holds the
                batch size.

        Raises:
            InvalidArgumentError: if an argument is invalid; the message names it and the fix.
            InvalidTypeError: if an argument is of the wrong type.

        Examples:
            >>> letters = cachelayer.wrap("abcdefgh", identity="letters")
            >>> [batch.tolist() for batch in letters.stream(3)]
            [['a', 'b', 'c'], ['d', 'e', 'f'], ['g', 'h']]
            >>> options = {"shuffle": True, "seed": 0, "num_epochs": 2}
            >>> [batch.tolist() for batch in letters.stream(4, **options)]
            [['d', 'a', 'h', 'f'], ['b', 'g', 'e', 'c'], ['f', 'd', 'g', 'c'], ['h', 'b', 'a', 'e']]
            >>> [batch.tolist() for batch in letters.stream(4, **options, shard=(1, 2), start=8)]
            [['g', 'c'], ['a', 'e']]
        """
        return self._stream(global_batch_size, options)

    def _stream(self, global_batch_size: int | None, options: Mapping[str, Any]) -> Stream[Any]:
        blocks = blocks_of(options.get("shuffle", False))
        # Lengths, and the sizes of blocks that are left open, are known once a version is published.
        needs_all = options.get("buckets") is not None or (
            blocks is not None and None in (blocks.records, blocks.window)
        )
        records = self._records if needs_all else self._current
        if options.get("buckets") is not None and records.base.leaves is not None:
            from cachelayer.access.sequences.bucketed import bucketed_stream
            from cachelayer.streams.order.buckets import buckets_of

            return bucketed_stream(records, buckets_of(options["buckets"]), global_batch_size, options)
        info = records.info
        checked = make_options(len(self), global_batch_size, info.record_nbytes, together=info.together, **options)
        return stream_of(StepReader(records, checked))

    def sources(self, index: SupportsIndex) -> list[RecordSpan]:
        """Return the records of versions that an element was made of.

        Args:
            index: the number of the element in this view; negative ones count from the end.

        Returns:
            For an element of a version, its record; for a window or a pack, each document of which it has values, in
            their order.

        Raises:
            RecordIndexError: if there is no such element.

        Examples:
            >>> import numpy as np
            >>> rows = [{"tokens": np.array([1, 2, 3])}, {"tokens": np.array([4])}]
            >>> ref = cachelayer.Storage(folder).submit(rows, "texts", "v1")
            >>> ref[::-1].sources(0)[0].record
            1
            >>> [(span.record, span.begin, span.end, span.offset) for span in ref.windows("tokens", 2).sources(1)]
            [(0, 2, 3, 0), (1, 0, 1, 1)]
        """
        return self._records.base.sources(np.array([self._records.selection.number(index)])).spans()

    @property
    def element_spec(self) -> Tree:
        """The structure of an element; its leaves are :class:`cachelayer.ArraySpec` or another leaf spec.

        Examples:
            >>> import numpy as np
            >>> rows = [{"image": np.zeros((2, 2), np.uint8), "text": "one"}]
            >>> cachelayer.Storage(folder).submit(rows, "rows", "v1").element_spec
            {'image': ArraySpec(uint8, (2, 2)), 'text': ArraySpec(str)}
        """
        return self._readable.element_spec

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the version: what the user passed, and what the source said.

        Of records of several versions it is what all these have in common.

        Examples:
            >>> ref = cachelayer.Storage(folder).submit([3, 1], "numbers", "v1", metadata={"license": "CC0"})
            >>> ref.metadata, ref[:1].metadata
            ({'license': 'CC0'}, {'license': 'CC0'})
        """
        return dict(self._readable.info.metadata)

    @property
    def digest(self) -> str:
        """SHA-256 that identifies the records and their order, in hexadecimal.

        Examples:
            >>> ref = cachelayer.Storage(folder).submit([3, 1, 2], "numbers", "v1")
            >>> ref[::-1].digest == ref.select([2, 1, 0]).digest
            True
            >>> ref[::-1].digest == ref.digest
            False
        """
        return self._records.digests.elements

    @property
    def reference(self) -> str:
        """A text with which :func:`cachelayer.open` opens these records again, or raises. It holds no credentials.

        It names the version, pinned by its digest, and the calls that made the view, pinned by the digest of the view.

        Raises:
            InvalidArgumentError: if no text names the view: its records are of several versions, or of none, or were
                chosen by a function, or by more than 256 record numbers.

        Examples:
            >>> ref = cachelayer.Storage(folder).submit([{"x": 3}, {"x": 1}, {"x": 2}], "rows", "v1")
            >>> ref.reference == f"{folder}/rows@v1@sha256:{ref.digest}"
            True
            >>> cachelayer.open(ref.where("x > 1").reference).read(slice(None))["x"].tolist()
            [3, 2]
        """
        name = self._records.name
        if name is None:
            raise InvalidArgumentError(
                f"{self!r} has no reference, for it is no view of one version: make a version of it with "
                "storage.submit(), or storage.rewrite()"
            )
        return name.reference(self.digest)

    @property
    def erased(self) -> NDArray[np.int64]:
        """The numbers of the erased records of this view, ascending: reading one raises an ErasedRecordError.

        ``ref.exclude(ref.erased)`` is the view without them.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.submit([3, 1, 2], "numbers", "v1")
            >>> report = storage.erase("numbers", records=[1], of="v1", reason="its author asked")
            >>> ref = storage.fetch("numbers@v1")
            >>> ref.erased.tolist(), ref.exclude(ref.erased).read(slice(None)).tolist()
            ([1], [3, 2])
        """
        return self._readable.erased

    def lengths(self, leaf: str = "") -> NDArray[np.uint32]:
        """Return the length of a field in each record, without reading the records.

        An array of shape ``[None]`` has as many values as its length says, bytes as many bytes, a str as many bytes in
        UTF-8; None has the length 0. An image or a sound has the length of its file, and only in :meth:`DataRef.raw`:
        its length when it is decoded is not stored.

        Args:
            leaf: the name of the field, such as ``"tokens"`` or ``"meta/url"``; without it, the only one.

        Returns:
            uint32 of shape ``[len(self)]``, read-only.

        Raises:
            InvalidArgumentError: if there is no such field, or it is of another kind.

        Examples:
            >>> import numpy as np
            >>> rows = [{"tokens": np.array([1, 2, 3]), "text": "für"}, {"tokens": np.array([4]), "text": ""}]
            >>> ref = cachelayer.Storage(folder).submit(rows, "texts", "v1")
            >>> ref.lengths("tokens").tolist(), ref.lengths("text").tolist()
            ([3, 1], [4, 0])
            >>> ref.select(ref.lengths("tokens") > 2)[0]["text"]
            'für'
        """
        return self._records.lengths(leaf).values()

    def total(self, leaf: str = "") -> int:
        """Return the sum of :meth:`lengths`, from the manifest: a slice reads the lengths of at most two shards.

        Args:
            leaf: see :meth:`lengths`.

        Raises:
            InvalidArgumentError: see :meth:`lengths`.

        Examples:
            >>> import numpy as np
            >>> rows = [{"tokens": np.array([1, 2, 3])}, {"tokens": np.array([4])}]
            >>> ref = cachelayer.Storage(folder).submit(rows, "texts", "v1")
            >>> ref.total("tokens"), ref[1:].total("tokens")
            (4, 1)
        """
        return self._records.lengths(leaf).total

    def to_arrow(self, indices: Sequence[int] | NDArray[Any] | None = None) -> Any:
        """Return records as a table of pyarrow, in memory; see :func:`cachelayer.adapters.pyarrow.to_arrow`.

        Args:
            indices: integers, where negative ones count from the end; or a mask; None for all records.

        Raises:
            MissingDependencyError: if pyarrow is not installed.
            InvalidTypeError: if Arrow has no type for a leaf, or cannot hold a value, or elements are not dicts.
            RecordIndexError: if a record does not exist.

        Examples:
            >>> rows = [{"text": "one", "label": 1}, {"text": "two", "label": 2}]
            >>> ref = cachelayer.Storage(folder).submit(rows, "rows", "v1")
            >>> ref.to_arrow([1, 0]).to_pydict()
            {'text': ['two', 'one'], 'label': [2, 1]}
        """
        # Adapters lie above this floor, and pyarrow is imported there alone.
        return import_module("cachelayer.adapters.pyarrow").to_arrow(self, indices)

    def verify(self, *, progress: bool | None = None) -> VerifyReport:
        """Read every record of the version that the records come from, and compare it with every checksum.

        A view counts as its whole version; see :meth:`cachelayer.Storage.verify`.

        Args:
            progress: None shows a bar in a terminal or a notebook, elsewhere a line every half minute; True shows it
                from the start; False shows nothing.

        Raises:
            InvalidTypeError: if the elements are windows or packs, or records of several versions.

        Examples:
            >>> report = cachelayer.Storage(folder).submit([3, 1, 2], "numbers", "v1")[:1].verify()
            >>> report.records, report.problems
            (3, ())
        """
        from cachelayer.versions.verify import check

        records = self._records
        version = None if records.base.leaves is None else records.base.leaves.home
        if version is None or len(records.references) != 1:
            raise InvalidTypeError(
                f"{records.title} is no view of the records of one version: call storage.verify('id@version') for "
                "each that it comes from"
            )
        return check(version, progress=progress)

    def diff(
        self,
        other: ReadableView[Any],
        *,
        key: str | Sequence[str] | None = None,
        rows: bool = True,
        progress: bool | None = None,
    ) -> Diff:
        """Return how this version differs from another version, of any dataset and storage, and which rows differ.

        Of two views, the rows and fields that they show are compared, and the shards, metadata and provenance of their
        versions.

        Args:
            other: the other version, or a view of it.
            key: the field, or fields, that two equal rows share; None for the record number. Keys are compared exactly,
                in their own dtypes; None equals None.
            rows: whether rows are compared. This reads the records that do not lie in shards of both versions.
            progress: as in :meth:`mirror`.

        Raises:
            InvalidTypeError: if one of the two is not a version, or a view of the records of one.
            InvalidArgumentError: if there is no such field, it has several values a record, or two rows of a version
                have one key; the message names the first.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> old = storage.submit([{"id": 1, "x": 5}, {"id": 2, "x": 6}], "rows", "v1")
            >>> new = storage.submit([{"id": 2, "x": 7}, {"id": 3, "x": 0}, {"id": 1, "x": 5}], "rows", "v2")
            >>> rows = old.diff(new, key="id").rows
            >>> rows.same, rows.came.count, rows.went.count, rows.changed.count, rows.fields["x"].first.key
            (1, 1, 0, 1, 2)
        """
        from cachelayer.access.row_diff import compare_rows, side_of
        from cachelayer.versions.diff import compare

        if not isinstance(other, ReadableView):
            raise InvalidTypeError(f"diff takes a DataRef, not a {type(other).__name__}: open it first")
        if not boolean("rows", rows) and key is not None:
            raise InvalidArgumentError(f"key={key!r} is for rows: leave out rows=False")
        this_side = side_of(self._records)
        other_side = side_of(other._records)
        differing = compare_rows(self._records, other._records, key, progress=progress) if rows else None
        return compare(this_side, other_side, differing)

    def __repr__(self) -> str:
        return repr(self._readable)

    def _repr_html_(self) -> str:
        """Return a table with the element spec, which notebooks show. It reads no record."""
        from cachelayer.drawing.ref_html import ref_html

        records = self._current
        digest = "being built" if records.published(wait=False) is None else f"sha256:{self.digest}"
        return ref_html(records.title, [*records.size_texts.items(), ("digest", digest)], self.element_spec)


def check_keys(spec: Tree, names: Any) -> None:
    """Raise unless these are keys of elements that are dicts."""
    if isinstance(names, bytes) or not isinstance(names, Sequence) or not isinstance(spec, dict):
        raise InvalidArgumentError(f"fields={names!r}: pass a tuple of keys; elements are {tree.describe(spec)}")
    for name in names:
        if not isinstance(name, str):
            raise InvalidTypeError(f"fields={names!r} holds {name!r} of type {type(name).__name__}: pass keys")
        if name not in spec:
            raise InvalidArgumentError(f"no field {name!r}: the element is {tree.describe(spec)}")
