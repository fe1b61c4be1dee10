"""Views: elements that are read by number, in batches and as streams, and views that are made of views.

A view holds one :class:`DatasetView`. A method makes another selection, or another dataset that holds the view, and
copies nothing. The result is named by the calls that made it, as a reference says them::

    view[:100].where("x > 2")    the same base, another selection     name: d@v1 [:100] .where('x > 2')
    view.windows("tokens", 8)    WindowRows, which hold the view      name: d@v1 .windows('tokens', 8)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Any,
    Generic,
    Literal,
    Self,
    SupportsIndex,
    TypeAlias,
    TypeVar,
    Unpack,
    cast,
    overload,
)

import numpy as np
from numpy.typing import NDArray

from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import RecordSpan, T, identity_of_records
from cachelayer.records.selection import Selection, numbers_or_mask, record_numbers, sliced
from cachelayer.specs import tree
from cachelayer.specs.leaf_names import leaf_numbers
from cachelayer.specs.tree import Tree
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.stream import BatchStream, Stream, stream_of
from cachelayer.streams.stream_options import StreamArguments, blocks_of, make_options, takes_stream_options
from cachelayer.support.arguments import boolean, explains_options, integer, required
from cachelayer.support.user_warnings import warn
from cachelayer.versions.view_calls import PUBLISH, ViewCall, literal, rows_call

if TYPE_CHECKING:
    from cachelayer.sequences.rolling import SeriesWindows
    from cachelayer.versions.diff import Diff
    from cachelayer.versions.verify import VerifyReport
    from cachelayer.views.sampling import Sampled

Indices: TypeAlias = Sequence[int] | NDArray[Any] | slice
M = TypeVar("M", bound=Callable[..., Any])


def names_view(method: M) -> M:
    """Let the name of the view that a method returns end with the call, as references write it."""

    @wraps(method)
    def named(self: View[Any], *arguments: Any, **options: Any) -> View[Any]:
        view: View[Any] = method(self, *arguments, **options)
        name = self._readable.name
        if name is not None:
            call = ViewCall(method.__name__, literal(arguments), literal(options))
            view._readable = replace(view._readable, name=name.then(call))
        return view

    return cast(M, named)


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that are not None, as a reference writes them."""
    return {name: literal(value) for name, value in options.items() if value is not None}


@explains_options
class View(Generic[T]):
    """Elements in an order of their own: records of a version or of several, windows, packs, and so on.

    They are read by number, in batches and as streams. To make a view of a view copies nothing.

    Examples:
        >>> letters = cachelayer.wrap("abcdef", identity="letters")
        >>> view = letters[1:].exclude([0])[::-1]
        >>> list(view), view[0], len(view)
        (['f', 'e', 'd', 'c'], 'f', 4)
        >>> [batch.tolist() for batch in view.stream(3)]
        [['f', 'e', 'd'], ['c']]
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
        numbers = records.selection.numbers
        # A shortcut for the most common case.
        if type(index) is int and type(numbers) is range and 0 <= index < len(numbers):
            return records.base.element(numbers[index])
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
            >>> ref = cachelayer.Storage(folder).submit(rows, "rows@v1")
            >>> ref.read([2, 0, -1])
            {'text': array(['three', 'one', 'three'], dtype=object), 'label': array([3, 1, 3])}
            >>> ref.read(slice(2), fields="label")
            {'label': array([1, 2])}
        """
        base = self._readable.base
        numbers = self._readable.selection.take(self._rows_of(indices))
        if fields is None:
            return base.batch(numbers)
        keys: Any = fields
        if isinstance(fields, str):
            keys = (fields,)
        elif isinstance(fields, Iterator):
            keys = tuple(fields)
        check_keys(base.element_spec, keys)
        return base.batch_of_keys(numbers, keys)

    def _rows_of(self, indices: Indices) -> Indices:
        """Return the indices; for a slice, if erased records are excluded, the numbers of its other records."""
        if not isinstance(indices, slice) or not self._readable.info.excludes_erased:
            return indices
        return np.setdiff1d(record_numbers(indices, len(self)), self.erased, assume_unique=True)

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
        return self._readable.base.elements(self._readable.selection.take(self._rows_of(slice(integer("n", n, 0)))))

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
            start: the position to begin at: a count of records, over all epochs and all shards; or a text such as
                ``"500 steps"``, or ``"1e9 tokens"``: so many values of a field, by the mean of all records, in whole
                global batches.
            prefetch: the number of batches, or elements, to read ahead in the background; several small ones, up to
                4 MiB, count as one. Memory holds these and one more. 0 reads nothing ahead.
            buckets: a field and ascending bounds, such as ``("tokens", [128, 512, 2048])``, or a
                :class:`cachelayer.Buckets`. The records of each batch have similar lengths: above one bound, and at
                most the next, to which they are padded, as by :meth:`View.padded`. Each bucket has a
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
        blocks = blocks_of(options.get("shuffle", False))
        # Lengths, and the sizes of blocks that are left open, are known once a version is published.
        needs_all = options.get("buckets") is not None or (
            blocks is not None and None in (blocks.records, blocks.window)
        )
        records = self._records if needs_all else self._current
        if options.get("buckets") is not None and records.leaves is not None:
            from cachelayer.sequences.padded import bucketed_stream
            from cachelayer.streams.order.buckets import buckets_of

            return bucketed_stream(records, buckets_of(options["buckets"]), global_batch_size, options)
        if isinstance(options.get("start"), str):
            from cachelayer.views.mixture_weights import position_of

            batch = 1 if global_batch_size is None else integer("global_batch_size", global_batch_size, 1)
            options["start"] = position_of(options["start"], None, [records], batch)
        info = records.info
        checked = make_options(len(self), global_batch_size, info.record_nbytes, together=info.together, **options)
        return stream_of(StepReader.of(records, checked))

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
            >>> ref = cachelayer.Storage(folder).submit(rows, "texts@v1")
            >>> ref[::-1].sources(0)[0].record
            1
            >>> [(span.record, span.begin, span.end, span.offset) for span in ref.windows("tokens", 2).sources(1)]
            [(0, 2, 3, 0), (1, 0, 1, 1)]
        """
        return self._records.base.sources(np.array([self._records.selection.number(index)])).spans()

    @property
    def element_spec(self) -> Tree:
        """The structure of an element; its leaves are :class:`cachelayer.ArraySpec` or another leaf spec."""
        return self._readable.element_spec

    @property
    def metadata(self) -> dict[str, Any]:
        """The metadata of the version: what the user passed, and what the source said.

        Of records of several versions it is what all these have in common.

        Examples:
            >>> ref = cachelayer.Storage(folder).submit([3, 1], "numbers@v1", metadata={"license": "CC0"})
            >>> ref.metadata, ref[:1].metadata
            ({'license': 'CC0'}, {'license': 'CC0'})
        """
        return dict(self._readable.info.metadata)

    @property
    def digest(self) -> str:
        """SHA-256 that identifies the records and their order, in hexadecimal.

        Examples:
            >>> ref = cachelayer.Storage(folder).submit([3, 1, 2], "numbers@v1")
            >>> ref[::-1].digest == ref.select([2, 1, 0]).digest
            True
            >>> ref[::-1].digest == ref.digest
            False
        """
        return self._records.origins.digests.elements

    @property
    def reference(self) -> str:
        """A text with which :func:`cachelayer.open` opens these records again, or raises. It holds no credentials.

        It names the version, pinned by its digest, and the calls that made the view, pinned by the digest of the view.

        Raises:
            InvalidArgumentError: if no text names the view: its records are of several versions, or of none, or were
                chosen by a function, or by more than 256 record numbers.

        Examples:
            >>> ref = cachelayer.Storage(folder).submit([{"x": 3}, {"x": 1}, {"x": 2}], "rows@v1")
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
            >>> ref = storage.submit([3, 1, 2], "numbers@v1")
            >>> report = storage.erase("numbers", records=[1], of="v1", reason="its author asked")
            >>> ref = storage.fetch("numbers@v1")
            >>> ref.erased.tolist(), ref.exclude(ref.erased).read(slice(None)).tolist()
            ([1], [3, 2])
        """
        return self._current.origins.erased

    def lengths(self, leaf: str = "") -> NDArray[np.uint32]:
        """Return the length of a field in each record, without reading the records.

        An array of shape ``[None]`` has as many values as its length says, bytes as many bytes, a str as many bytes in
        UTF-8; None has the length 0. A sound has so many samples: the first call decodes all, and stores their numbers
        beside the version. An image or a sound in :meth:`DataRef.raw` has the length of its file.

        Args:
            leaf: the name of the field, such as ``"tokens"`` or ``"meta/url"``; without it, the only one.

        Returns:
            uint32 of shape ``[len(self)]``, read-only.

        Raises:
            InvalidArgumentError: if there is no such field, or it is of another kind.

        Examples:
            >>> import numpy as np
            >>> rows = [{"tokens": np.array([1, 2, 3]), "text": "für"}, {"tokens": np.array([4]), "text": ""}]
            >>> ref = cachelayer.Storage(folder).submit(rows, "texts@v1")
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
            >>> ref = cachelayer.Storage(folder).submit(rows, "texts@v1")
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
            >>> ref = cachelayer.Storage(folder).submit(rows, "rows@v1")
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
            >>> report = cachelayer.Storage(folder).submit([3, 1, 2], "numbers@v1")[:1].verify()
            >>> report.records, report.problems
            (3, ())
        """
        from cachelayer.versions.verify import check

        records = self._records
        version = records.origins.home
        if version is None or len(records.origins.references) != 1:
            raise InvalidTypeError(
                f"{records.title} is no view of the records of one version: call storage.verify('id@version') for "
                "each that it comes from"
            )
        return check(version, progress=progress)

    def diff(
        self,
        other: View[Any],
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
            >>> old = storage.submit([{"id": 1, "x": 5}, {"id": 2, "x": 6}], "rows@v1")
            >>> new = storage.submit([{"id": 2, "x": 7}, {"id": 3, "x": 0}, {"id": 1, "x": 5}], "rows@v2")
            >>> rows = old.diff(new, key="id").rows
            >>> rows.same, rows.came.count, rows.went.count, rows.changed.count, rows.fields["x"].first.key
            (1, 1, 0, 1, 2)
        """
        from cachelayer.versions.diff import compare
        from cachelayer.views.row_diff import compare_rows, side_of

        if not isinstance(other, View):
            raise InvalidTypeError(
                f"diff takes a DataRef, not a {type(other).__name__}: open it with storage.fetch(); storage.diff() "
                "takes the names of two versions"
            )
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

    # Views of this view.

    def _select(self, selection: Selection, call: ViewCall) -> Self:
        """Return a view of the same base with another selection, named by the call that makes it."""
        name = None if self._readable.name is None else self._readable.name.then(call)
        return type(self)(DatasetView(self._readable.base, selection, name=name))

    def select(self, indices: Sequence[int] | NDArray[Any] | slice) -> Self:
        """Return a view of some records, in the order of their indices.

        Args:
            indices: integers, which may repeat, and negative ones count from the end; or a mask with one bool for each
                record; or a slice.

        Raises:
            RecordIndexError: if there is no such record.
            InvalidArgumentError: if a mask has the wrong length.
            InvalidTypeError: if they are neither integers nor bools.

        Examples:
            >>> import numpy as np
            >>> letters = cachelayer.wrap("abcdef", identity="letters")
            >>> list(letters.select([5, 0, 0, -2]))
            ['f', 'a', 'a', 'e']
            >>> list(letters.select(np.arange(6) % 3 == 0))
            ['a', 'd']
        """
        if isinstance(indices, slice):
            return self[indices]
        numbers = numbers_or_mask(indices, len(self))
        return self._select(self._readable.selection.select(numbers), rows_call("select", numbers))

    def exclude(self, indices: Sequence[int] | NDArray[Any] | slice) -> Self:
        """Return a view without some records. The others keep their order.

        Args:
            indices: integers in any order, which may repeat, and negative ones count from the end; or a mask with True
                for each record to leave out; or a slice.

        Raises:
            RecordIndexError, InvalidArgumentError, InvalidTypeError: see :meth:`select`.

        Examples:
            >>> letters = cachelayer.wrap("abcdef", identity="letters")
            >>> list(letters.exclude([1, -1])), list(letters.exclude(slice(0, None, 2)))
            (['a', 'c', 'd', 'e'], ['b', 'd', 'f'])
        """
        numbers = numbers_or_mask(indices, len(self))
        return self._select(self._readable.selection.exclude(numbers), rows_call("exclude", numbers))

    def where(self, condition: str | Callable[[Mapping[str, Any]], Any]) -> Self:
        """Return a view of the records that a condition holds for, in their order.

        Args:
            condition: a text such as ``"score > 0.5 and lang in [3, 5]"``. It has names of fields of one value a record
                (``meta.lang`` for ``"meta/lang"``; in backquotes if Python does not take them for names, such as
                ``"`a-b` > 0"``), numbers, texts, comparisons, ``and``, ``or``, ``not``, ``in``, ``is None``,
                arithmetic, ``url.startswith("http")``, and ``len(tokens) > 10``, which reads no record.
                Or a function that gets whole columns by name, and returns a bool for each row, such as
                ``lambda c: c["score"] >= c["score"].mean()``.
                A comparison with a field that is None holds neither as it stands nor with ``not``. Erased records are
                never chosen.

        Raises:
            InvalidArgumentError: if the text does not parse, or there is no such field.
            InvalidTypeError: if the condition is of another type, or the function returns something else.

        Examples:
            >>> rows = [{"text": "one", "score": 0.9}, {"text": "two", "score": None}, {"text": "three", "score": 0.2}]
            >>> ref = cachelayer.Storage(folder).submit(rows, "rows@v1")
            >>> conditions = ["score > 0.5", "not score > 0.5", "score is None"]
            >>> [[row["text"] for row in ref.where(condition)] for condition in conditions]
            [['one'], ['three'], ['two']]
            >>> [row["text"] for row in ref.where("text.startswith('t') and len(text) > 3")]
            ['three']
            >>> [row["text"] for row in ref.where(lambda columns: columns["text"] == "two")]
            ['two']
        """
        from cachelayer.views.where import Condition, mask_of

        checked = Condition.of(condition)
        selection = self._records.selection.select(mask_of(self._records, checked))
        why_unnamed = ""
        if not isinstance(condition, str):
            why_unnamed = f"where() got a function: write the condition as a text, or {PUBLISH}"
        return self._select(selection, ViewCall("where", (checked.text,), why_unnamed=why_unnamed))

    def each(self, function: Callable[[T], Any], *, progress: bool | None = None) -> NDArray[np.bool_]:
        """Return a mask for :meth:`select`: whether a function of the element holds, for each record.

        Every element is read and decoded once; :meth:`where` reads only the fields that it needs.

        Args:
            function: given an element, returns a bool, such as ``lambda e: e["tokens"].max() > 9``.
            progress: None shows a bar in a terminal or a notebook, elsewhere a line every half minute; True shows it
                from the start; False shows nothing.

        Returns:
            bool of shape ``[len(self)]``; False for erased records.

        Raises:
            InvalidTypeError: if it is not a function, or it returns no bool.

        Examples:
            >>> import numpy as np
            >>> rows = [{"tokens": np.array([1, 2, 3])}, {"tokens": np.array([4])}]
            >>> ref = cachelayer.Storage(folder).submit(rows, "texts@v1")
            >>> mask = ref.each(lambda element: element["tokens"].max() > 3)
            >>> mask.tolist(), ref.select(mask)[0]["tokens"].tolist()
            ([False, True], [4])
        """
        from cachelayer.views.where import mask_of_elements

        if not callable(function):
            raise InvalidTypeError(f"each() takes a function of an element, not {function!r}")
        erased = self.erased
        numbers = np.delete(np.arange(len(self)), erased)
        elements = self.exclude(erased).stream() if len(erased) else self.stream()
        return mask_of_elements(elements, numbers, len(self), function, progress)

    def sample(self, weights: str | Sequence[float] | NDArray[Any], *, seed: int) -> Sampled[T]:
        """Draw records by their weights, with replacement: endless streams of what is drawn.

        Args:
            weights: a number for each record, 0 or more; or the name of the field that has these numbers, such as
                ``"meta/weight"``.
            seed: an integer in [0, 2**64), which decides all draws.

        Raises:
            InvalidArgumentError: if a weight is negative, infinite, NaN or None, all weights are 0, there are more or
                fewer than records, or there is no such field of numbers; the message names the record.
            InvalidTypeError: if an argument is of the wrong type.

        Examples:
            >>> ref = cachelayer.Storage(folder).submit([{"label": label} for label in (0, 1, 1, 1)], "labels@v1")
            >>> ref.sample([0, 1, 1, 0], seed=0).stream(8).record_numbers(0).tolist()
            [2, 2, 2, 1, 1, 1, 2, 1]
        """
        from cachelayer.views.sampling import sampled_of

        return sampled_of(self._records, weights, seed)

    def split(
        self,
        shares: Mapping[str, float],
        *,
        seed: int | None = None,
        by: str | Sequence[str] | None = None,
        stratify: str | Sequence[str] | None = None,
    ) -> dict[str, Self]:
        """Split the records at random into views that do not overlap, such as ``train`` and ``val``.

        A record is dealt by its number in the shards of the version. So it goes to the same part in every view of the
        version, in versions that are derived from it, and in versions with more records appended. Parts of the whole
        version have exactly their shares; parts of a view of some records have about their shares. The records of a
        part keep their order.

        Args:
            shares: the fraction of the records that a part gets, by the name of the part; they sum to 1.
            seed: an integer in [0, 2**64), required. The same seed and shares give the same parts.
            by: a field of one value a record, such as ``"user"``, or several: all records with one value go to one
                part, also in a version that is written or built anew. The shares are then shares of the values, about.
            stratify: a field such as ``"label"``, or several: of the records of this view with one value, a part has
                its share, give or take less than one record. Records that are appended move none; records that are
                filtered out or erased do: split first, then filter the parts. With ``by``, a part has its share of the
                values most of whose records have one value of ``stratify``.

        Returns:
            The parts by their names. With ``by`` or ``stratify``, erased records are in no part.

        Raises:
            InvalidArgumentError: if the shares or the seed are invalid, or there is no such field.

        Warns:
            CacheLayerWarning: if a part has no record, as a part of a split may have that is split again with the same
                seed; or no value of ``by``, as may be if there are few.

        Examples:
            >>> letters = cachelayer.wrap("abcdefgh", identity="letters")
            >>> {name: list(view) for name, view in letters.split({"train": 0.75, "test": 0.25}, seed=0).items()}
            {'train': ['a', 'b', 'c', 'd', 'f', 'g'], 'test': ['e', 'h']}
            >>> clicks = cachelayer.Storage(folder).submit([{"user": user} for user in (7, 8, 9, 7, 8)], "clicks@v1")
            >>> parts = clicks.split({"train": 0.5, "test": 0.5}, seed=1, by="user")
            >>> {name: view.read(slice(None))["user"].tolist() for name, view in parts.items()}
            {'train': [7, 7], 'test': [8, 9, 8]}
        """
        return self._split(shares, seed=seed, by=by, stratify=stratify, warns=True)

    def _split(
        self,
        shares: Mapping[str, float],
        *,
        seed: int | None = None,
        by: Any = None,
        stratify: Any = None,
        warns: bool = False,
    ) -> dict[str, Self]:
        """Split as :meth:`split` does, without its warnings: a reference pins the records of a part by a digest."""
        from cachelayer.views.split import split

        # Values are known of a whole version; numbers are known before.
        records = self._current if by is None and stratify is None else self._records
        selections = split(records, shares, seed, by, stratify, warns=warns)
        options = _given(seed=seed, by=by, stratify=stratify)
        return {
            name: self._select(selection, ViewCall("split", (literal(shares),), options, (name,)))
            for name, selection in selections.items()
        }

    def folds(
        self,
        k: int,
        *,
        seed: int | None = None,
        by: str | Sequence[str] | None = None,
        stratify: str | Sequence[str] | None = None,
    ) -> list[tuple[Self, Self]]:
        """Return pairs of views for cross-validation: the records to train with, and the records held out.

        The records of this view are dealt evenly: the numbers of records that two folds hold out differ by one at most.
        Records that are appended to the version later move none.

        Args:
            k: the number of folds, at least 2.
            seed: an integer in [0, 2**64), required.
            by: a field of one value a record, such as ``"user"``, or several: all records with one value are held out
                by one fold, and all folds hold out equally many values.
            stratify: a field, or several: of the records with one value, all folds hold out equally many; with ``by``,
                of the values most of whose records have it.

        Returns:
            One pair for each fold. Every record is held out once; with ``by`` or ``stratify``, erased records never.

        Raises:
            InvalidArgumentError: if a fold would hold out no record, or an argument is invalid; see :meth:`split`.

        Examples:
            >>> letters = cachelayer.wrap("abcdef", identity="letters")
            >>> for train, held_out in letters.folds(3, seed=0):
            ...     print(list(train), list(held_out))
            ['b', 'c', 'd', 'e'] ['a', 'f']
            ['a', 'c', 'e', 'f'] ['b', 'd']
            ['a', 'b', 'd', 'f'] ['c', 'e']
        """
        from cachelayer.views.split import folds

        call = ViewCall("folds", (literal(k),), _given(seed=seed, by=by, stratify=stratify))
        pairs = []
        records = self._current if by is None and stratify is None else self._records
        for fold, (train, held_out) in enumerate(folds(records, k, seed, by, stratify)):
            view_to_train = self._select(train, replace(call, parts=(fold, 0)))
            view_held_out = self._select(held_out, replace(call, parts=(fold, 1)))
            pairs.append((view_to_train, view_held_out))
        return pairs

    @names_view
    def fields(self, *names: str) -> View[Any]:
        """Return a view of some fields of the same records. Other fields are neither decoded nor read.

        Elements keep their structure of dicts, and the order of their keys. Of a local shard without compression, only
        the bytes of these fields are read. Over the network records are read whole, because their checksums cover all.

        Args:
            names: keys of the elements, and of dicts in them, such as ``"tokens"`` or ``"meta/url"``.

        Raises:
            InvalidArgumentError: if there is no such field.

        Examples:
            >>> rows = [{"text": "one", "meta": {"lang": "en", "url": "u7"}}]
            >>> ref = cachelayer.Storage(folder).submit(rows, "rows@v1")
            >>> ref.fields("meta/lang")[0], ref.fields("meta")[0]
            ({'meta': {'lang': 'en'}}, {'meta': {'lang': 'en', 'url': 'u7'}})
        """
        leaves = self._readable.leaves_for("fields()")
        chosen = leaf_numbers(leaves.codec.spec, names)
        return View(self._readable.with_base(leaves.with_fields(chosen)))

    @names_view
    def decoded(self, *names: str, size: tuple[int, int], crop: bool = False) -> Self:
        """Return a view of the same records with images decoded to one size, so that a batch of them is one array.

        Pillow resizes images with its bilinear filter, which takes the mean of all pixels that lie under a new one; of
        images of the mode ``"1"`` it takes the nearest pixel. The JPEG decoder itself makes an image smaller by 2, 4 or
        8 if that leaves it at least as large as ``size``: this takes less time, and the pixels differ slightly from the
        pixels of the whole image, resized. FFmpeg's bilinear filter resizes frames of videos. A state of a stream of
        one view fits streams of the other. ``storage.cache`` of the view stores the arrays, not the files.

        Args:
            names: the images, such as ``"image"`` or ``"meta/thumbnail"``, or dicts with images in them; without names,
                all images.
            size: the height and the width.
            crop: True cuts off what makes the proportions differ, at both sides alike; False stretches the image.

        Raises:
            InvalidArgumentError: if there are no such images, or the size is less than 1.
            InvalidTypeError: if an argument is of the wrong type.

        Examples:
            >>> files = [b"P6 4 2 255 " + bytes(24), b"P6 4 6 255 " + bytes(72)]  # black, in the format PPM
            >>> images = [{"image": file} for file in files]
            >>> spec = {"image": cachelayer.ImageSpec()}
            >>> ref = cachelayer.Storage(folder).submit(images, "images@v1", element_spec=spec)
            >>> [element["image"].shape for element in ref]
            [(2, 4, 3), (6, 4, 3)]
            >>> ref.decoded(size=(5, 5)).read([0, 1])["image"].shape
            (2, 5, 5, 3)
        """
        from cachelayer.datasets.table import Table
        from cachelayer.records.media import image_leaves, image_size

        base = self._readable.base
        if not isinstance(base, Table):
            raise InvalidTypeError(f"{self!r} has no stored images: call decoded() on each dataset, before views of it")
        sizes = dict.fromkeys(image_leaves(base.undecoded().codec.spec, names), image_size(size, crop))
        return type(self)(self._readable.with_base(base.with_image_sizes(sizes)))

    @names_view
    def windows(
        self,
        leaves: str | Sequence[str],
        length: int,
        *,
        stride: int | None = None,
        separator: float | Mapping[str, float] | None = None,
        remainder: Literal["drop", "pad"] = "drop",
        value: float | Mapping[str, float] = 0,
        segments: bool = False,
        beside: str | Sequence[str] = (),
        every: Mapping[str, int] | None = None,
    ) -> View[dict[str, Any]]:
        """Return windows of fixed length over the values of a field, of all records one after another.

        Window i begins at value ``i * stride``, whichever records its values come from::

            tokens     [1 2 3] [4] [5 6]
            length 4   [1 2 3   4]            with stride 2, the next is
                       [    3   4   5 6]

        Args:
            leaves: the name of an array of shape ``[None]``, such as ``"tokens"`` or ``"meta/tokens"``; or of bytes or
                str, whose bytes windows have as uint8. Or several fields, of equal lengths in a record.
            length: the number of values of a window.
            stride: how many values a window begins after the window before it; the length by default.
            separator: a value that stands after each record, also after an empty one or None; or a dict with a value
                for each field, by its name.
            remainder: what to do with values at the end that do not fill a window: "drop" leaves them out, "pad" fills
                the last window up.
            value: what stands in padding; or a dict with a value for each field, by its name.
            segments: True adds segment ids and positions, as :meth:`packed` has them. A separator belongs to the record
                before it, and a record without values has a segment id too, which no value has.
            beside: a field of one number a record, such as ``"source"``, or several: windows repeat it for each value
                of the record and its separator, and have 0 in padding. For a text, add a field with its number by
                :meth:`cachelayer.Storage.add_columns`.
            every: fields that have one value for so many values in a row, such as ``{"concepts": 16}``: arrays of shape
                ``[None]`` whose last value may stand for fewer. Windows repeat their values, as with ``beside``.

        Returns:
            A view of ``{"tokens": [length]}``; the keys are the last parts of the names. Fields beside them have the
            shape ``[length]``, or ``[length, *shape]`` if a value has a shape. With segments, windows have also
            ``tokens_segment_ids`` and ``tokens_positions``, int32 ``[length]``, named after the first field. With "pad"
            and without segments, they have ``tokens_length``, int32, and ``tokens_mask``, bool ``[length]``, True for
            values.

        Raises:
            InvalidArgumentError: if there is no such field, it is of another kind, or another argument is invalid; when
                a window is read, if the fields of a record differ in length, or a field beside them is None.
            InvalidTypeError: if an argument has the wrong type.

        Examples:
            >>> import numpy as np
            >>> rows = [{"tokens": np.array(tokens)} for tokens in ([1, 2, 3], [4], [5, 6])]
            >>> ref = cachelayer.Storage(folder).submit(rows, "texts@v1")
            >>> [window["tokens"].tolist() for window in ref.windows("tokens", 4, stride=2)]
            [[1, 2, 3, 4], [3, 4, 5, 6]]
            >>> window = ref.windows("tokens", 5, separator=0, segments=True)[0]
            >>> window["tokens"].tolist(), window["tokens_segment_ids"].tolist(), window["tokens_positions"].tolist()
            ([1, 2, 3, 0, 4], [1, 1, 1, 1, 2], [0, 1, 2, 3, 0])
        """
        from cachelayer.sequences.windows import window_rows

        rows = window_rows(
            self._records,
            leaves,
            length,
            stride=stride,
            separator=separator,
            remainder=remainder,
            value=value,
            segments=segments,
            beside=beside,
            every=every,
        )
        return View(DatasetView.all(rows))

    @names_view
    def packed(
        self,
        leaves: str | Sequence[str],
        length: int,
        *,
        long: Literal["split", "truncate", "drop"] = "split",
        max_length: int | None = None,
        seed: int | None = None,
        value: float | Mapping[str, float] = 0,
        segments: bool = True,
        beside: str | Sequence[str] = (),
        every: Mapping[str, int] | None = None,
    ) -> Packed:
        """Return whole documents packed into rows of fixed length.

        The document of a record is the value of the field. Which documents share a row is planned once, from their
        lengths alone, and the plan is stored beside the version. Each 16,384 consecutive documents are packed by
        themselves. A row has its documents in the order of their records. An empty document, or None, is in no row.

        Args:
            leaves: the name of an array of shape ``[None]``, such as ``"tokens"`` or ``"meta/tokens"``; or of bytes or
                str, whose bytes are packed as uint8. Or several fields, of equal lengths in a record, which are packed
                side by side.
            length: the number of values of a row.
            long: what to do with documents longer than ``max_length``: "split" packs pieces of that length and a piece
                with the rest, "truncate" packs only their beginning, "drop" leaves them out.
            max_length: the number of values of the longest piece, at most ``length``, which is the default.
            seed: an integer in [0, 2**64) that shuffles which documents share a row; None for a plan without chance.
            segments: False gives the length and the mask of a row, as :meth:`windows` with "pad" does, in place of
                segment ids and positions.
            value, beside, every: as in :meth:`windows`.

        Returns:
            A view of ``{"tokens": [length], "tokens_segment_ids": [length], "tokens_positions": [length]}``. Segment
            ids, int32, number the documents of a row from 1; 0 is padding. Positions, int32, begin at 0 in each
            document. The keys are the last parts of the names; ids and positions are named after the first field.

        Raises:
            InvalidArgumentError: if there is no such field, it is of another kind, the fields of a record differ in
                length, or another argument is invalid.
            InvalidTypeError: if an argument has the wrong type.

        Examples:
            >>> import numpy as np
            >>> rows = [{"tokens": np.array(tokens)} for tokens in ([1, 2, 3], [4, 5], [6], [7, 8])]
            >>> packs = cachelayer.Storage(folder).submit(rows, "texts@v1").packed("tokens", 4)
            >>> [pack["tokens"].tolist() for pack in packs]
            [[1, 2, 3, 6], [4, 5, 7, 8]]
            >>> packs[0]["tokens_segment_ids"].tolist(), packs[0]["tokens_positions"].tolist()
            ([1, 1, 1, 2], [0, 1, 2, 0])
            >>> storage = cachelayer.Storage(folder)
            >>> storage.fetch("texts@v1").packed("tokens", 5, value=-1)[1]["tokens"].tolist()
            [6, 7, 8, -1, -1]
        """
        from cachelayer.sequences.packs import pack_rows

        rows = pack_rows(
            self._records,
            leaves,
            length,
            long=long,
            max_length=max_length,
            seed=seed,
            value=value,
            segments=segments,
            beside=beside,
            every=every,
        )
        return Packed(DatasetView.all(rows))

    @names_view
    def rolling(
        self,
        length: int,
        *,
        by: str | Sequence[str] | None = None,
        order: str | None = None,
        stride: int = 1,
        max_gap: float | None = None,
    ) -> Rolling:
        """Return windows of consecutive records of a series, such as the measurements of one sensor.

        Records with equal values of ``by`` are one series. Window i of a series begins at its record ``i * stride``.
        The windows of a series follow one another, and series come by their values, ascending. A series shorter than a
        window has none: :attr:`Rolling.short_series` counts such series. Erased records are in no series. Which records
        a series has is found once, and stored beside the version.

        Args:
            length: the number of records of a window.
            by: the field, or fields, of one value a record, whose values tell series apart; None for one series.
            order: the field that orders the records of a series; None for the order of the view, which records with
                equal values keep too.
            stride: how many records a window begins after the window before it.
            max_gap: the most by which the ``order`` of two neighbours in a window differs, in seconds for times: a
                larger gap ends a series, and begins another. None takes all gaps.

        Returns:
            A view whose elements have the structure of a record, with the records of a window stacked on a leading
            axis: a number becomes ``[length]``, an array ``[length, *shape]``, a text an array of texts ``[length]``,
            an array of any length a :class:`cachelayer.Ragged` with ``length`` rows.

        Raises:
            InvalidArgumentError: if there is no such field, it has several values a record, or an argument is invalid;
                if a field does not stack, such as images of several sizes, a sparse tensor, or what may be None; when
                the series are found, if ``order`` is NaN in a record.
            InvalidTypeError: if an argument has the wrong type.

        Examples:
            >>> import numpy as np
            >>> rows = {"sensor": np.array([7, 7, 9, 7, 9]), "time": np.array([0, 2, 0, 1, 1])}
            >>> windows = cachelayer.Storage(folder).submit(rows, "rows@v1").rolling(2, by="sensor", order="time")
            >>> [(window["sensor"].tolist(), window["time"].tolist()) for window in windows]
            [([7, 7], [0, 1]), ([7, 7], [1, 2]), ([9, 9], [0, 1])]
            >>> [span.record for span in windows.sources(1)]
            [3, 1]
        """
        from cachelayer.sequences.rolling import series_windows

        return Rolling(DatasetView.all(series_windows(self._records, length, by, order, stride, max_gap)))

    @names_view
    def clips(
        self,
        leaves: str | Sequence[str],
        frames: int,
        *,
        stride: int = 1,
        every: int | None = None,
        beside: str | Sequence[str] = (),
    ) -> View[dict[str, Any]]:
        """Return clips of some frames of the videos, or of some samples of the sounds, of the records.

        Clip i of a record begins at its frame ``i * every``. The clips of a record follow one another. A record with
        fewer frames than a clip spans has no clip. From a bucket, only the bytes of the frames of a clip are fetched,
        but a sound is fetched whole. The numbers of samples of sounds are counted once, and stored beside the version.

        Args:
            leaves: the name of a field that :class:`cachelayer.VideoSpec` or :class:`cachelayer.AudioSpec` declares; or
                several, which have as many frames in each record.
            frames: the number of frames of a clip, or of samples.
            stride: how many frames of the record one frame of a clip comes after the frame before it.
            every: how many frames a clip begins after the clip before it; ``frames * stride`` by default.
            beside: a field of arrays or texts, or several. An array whose first dimension varies has a value for each
                frame of the record: clips have the values of their frames. Of other fields they have the whole value.

        Returns:
            A view of ``{"video": [frames, height, width, 3]}``, uint8, or ``{"audio": [frames, ...]}``, float32, and
            the fields beside; the keys are the last parts of the names. Clips of one batch have one size: call
            :meth:`decoded` before, if videos differ.

        Raises:
            InvalidArgumentError: if there is no such field, it is of another kind, or an argument is invalid; if fields
                of a record have different numbers of frames.
            InvalidTypeError: if an argument has the wrong type.

        Examples:
            >>> from PIL import Image
            >>> pictures = [Image.new("RGB", (8, 6), (number, 0, 0)) for number in range(90)]
            >>> pictures[0].save(f"{folder}/red.gif", save_all=True, append_images=pictures[1:], duration=40)
            >>> spec = {"video": cachelayer.VideoSpec(), "label": "int64"}
            >>> rows = [{"video": f"{folder}/red.gif", "label": 7}]
            >>> ref = cachelayer.Storage(folder).cache(rows, "videos@v1", element_spec=spec)
            >>> clips = ref.clips("video", 4, stride=5, every=30, beside="label")
            >>> [(clip["video"][:, 0, 0, 0].tolist(), int(clip["label"])) for clip in clips]
            [([0, 5, 10, 15], 7), ([30, 35, 40, 45], 7), ([60, 65, 70, 75], 7)]
        """
        from cachelayer.sequences.clips import clip_rows

        return View(DatasetView.all(clip_rows(self._records, leaves, frames, stride, every, beside)))

    @names_view
    def padded(
        self,
        lengths: Mapping[str, int] | str,
        length: int | None = None,
        *,
        value: Any = 0,
        long: Literal["truncate", "refuse"] | None = None,
    ) -> Padded:
        """Return the same records with arrays of varying length padded to a fixed one.

        Args:
            lengths: the lengths by the names of fields, which are arrays of shape ``[None]``, such as
                ``{"tokens": 2048}``, or ``[None, 4]``, such as ``{"boxes": 100}``; or the name of one field.
            length: the length, if one field is named.
            value: what stands after the values of a shorter record; or a dict with a value for each field.
            long: what to do with longer records: "truncate" keeps the beginning, "refuse" raises an ElementError when a
                longer record is read. None truncates too, and warns if a record is longer, with the share of the values
                that is kept.

        Returns:
            A view of the same elements, with ``tokens`` as ``[length]``, ``tokens_length``, int32, the number of its
            values, and ``tokens_mask``, bool ``[length]``, True for values and False for padding. A field that is None
            has the length 0.

        Raises:
            InvalidArgumentError: if there is no such field, it is of another kind, or another argument is invalid.
            InvalidTypeError: if an argument has the wrong type.

        Examples:
            >>> import numpy as np
            >>> rows = [{"tokens": np.array(tokens)} for tokens in ([1, 2, 3], [4])]
            >>> padded = cachelayer.Storage(folder).submit(rows, "texts@v1").padded("tokens", 2, long="truncate")
            >>> {name: values.tolist() for name, values in padded.read([0, 1]).items()}
            {'tokens': [[1, 2], [4, 0]], 'tokens_length': [2, 1], 'tokens_mask': [[True, True], [True, False]]}
        """
        from cachelayer.sequences.padded import padded_elements

        if isinstance(lengths, str):
            lengths = {lengths: required("length", length)}
        elif length is not None:
            raise InvalidArgumentError(f"length={length!r}: the dict has all lengths already")
        view = Padded(DatasetView.all(padded_elements(self._records, lengths, value, long)))
        if long is None and view.kept < 1:
            warn(
                f"padded() keeps {view.kept:.2%} of the values of {', '.join(map(repr, lengths))}: longer records lose "
                "their end. Pass long='truncate' if you want that; else a greater length, or use windows() or packed()"
            )
        return view


class Packed(View[dict[str, Any]]):
    """Documents packed into rows of fixed length; :meth:`cachelayer.View.packed` returns it.

    Examples:
        >>> import numpy as np
        >>> rows = [{"tokens": np.array(tokens)} for tokens in ([1, 2, 3], [4, 5], [6])]
        >>> packs = cachelayer.Storage(folder).submit(rows, "texts@v1").packed("tokens", 4, segments=False)
        >>> [(pack["tokens"].tolist(), pack["tokens_length"].item()) for pack in packs]
        [([1, 2, 3, 6], 4), ([4, 5, 0, 0], 2)]
    """

    @property
    def fill(self) -> float:
        """The share of the cells of all packs that are not padding. Packs that a slice leaves out count too.

        Examples:
            >>> import numpy as np
            >>> rows = [{"tokens": np.array(tokens)} for tokens in ([1, 2, 3], [4, 5], [6])]
            >>> cachelayer.Storage(folder).submit(rows, "texts@v1").packed("tokens", 4).fill
            0.75
        """
        from cachelayer.sequences.packs import PackRows

        return cast(PackRows, self._records.base).fill


class Rolling(View[Any]):
    """Windows of consecutive records of a series; :meth:`cachelayer.View.rolling` returns it.

    Series that a slice leaves out count too.

    Examples:
        >>> import numpy as np
        >>> ref = cachelayer.Storage(folder).submit({"x": np.array([1, 2, 3, 4])}, "series@v1")
        >>> windows = ref.rolling(3)
        >>> windows.read([0, 1])["x"].tolist(), windows.series, windows.short_series
        ([[1, 2, 3], [2, 3, 4]], 1, 0)
    """

    @property
    def series(self) -> int:
        """The number of series.

        Examples:
            >>> import numpy as np
            >>> ref = cachelayer.Storage(folder).submit({"sensor": np.array([7, 9, 7, 7])}, "rows@v1")
            >>> windows = ref.rolling(2, by="sensor")
            >>> windows.series, len(windows), windows[:1].series
            (2, 2, 2)
        """
        return len(self._windows.counts)

    @property
    def short_series(self) -> int:
        """The number of series that are shorter than a window, and so have none.

        Examples:
            >>> import numpy as np
            >>> ref = cachelayer.Storage(folder).submit({"sensor": np.array([7, 9, 7, 7])}, "rows@v1")
            >>> ref.rolling(2, by="sensor").short_series  # sensor 9 has one record
            1
        """
        return int((self._windows.counts == 0).sum())

    @property
    def _windows(self) -> SeriesWindows:
        from cachelayer.sequences.rolling import SeriesWindows

        return cast(SeriesWindows, self._records.base)


class Padded(View[Any]):
    """Records with padded leaves; :meth:`cachelayer.View.padded` returns it.

    Examples:
        >>> import numpy as np
        >>> rows = [{"tokens": np.array(tokens)} for tokens in ([1, 2, 3], [4])]
        >>> padded = cachelayer.Storage(folder).submit(rows, "texts@v1").padded({"tokens": 4}, value=-1)
        >>> padded[1]["tokens"].tolist(), padded[1]["tokens_length"].item(), padded.kept
        ([4, -1, -1, -1], 1, 1.0)
    """

    @property
    def kept(self) -> float:
        """The share of the values of the padded leaves that is kept, from their stored lengths; 1 if there are none.

        Records that a slice leaves out count too.

        Examples:
            >>> import numpy as np
            >>> rows = [{"tokens": np.array(tokens)} for tokens in ([1, 2, 3], [4])]
            >>> cachelayer.Storage(folder).submit(rows, "texts@v1").padded("tokens", 2, long="truncate").kept
            0.75
        """
        from cachelayer.sequences.padded import PaddedElements

        return cast(PaddedElements, self._records.base).kept


def check_keys(spec: Tree, names: Any) -> None:
    """Raise unless these are keys of elements that are dicts."""
    if isinstance(names, bytes) or not isinstance(names, Sequence) or not isinstance(spec, dict):
        raise InvalidArgumentError(f"fields={names!r}: pass a tuple of keys; elements are {tree.describe(spec)}")
    for name in names:
        if not isinstance(name, str):
            raise InvalidTypeError(f"fields={names!r} holds {name!r} of type {type(name).__name__}: pass keys")
        if name not in spec:
            raise InvalidArgumentError(f"no field {name!r}: the element is {tree.describe(spec)}")
