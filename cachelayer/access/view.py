"""Views of views: select, filter, split and sample records; make windows, packs, padded records and series of them.

A view holds one :class:`DatasetView`. A method makes another selection, or another dataset that holds the view, and
copies nothing. The result is named by the calls that made it, as a reference says them::

    view[:100].where("x > 2")    the same base, another selection     name: d@v1 [:100] .where('x > 2')
    view.windows("tokens", 8)    WindowRows, which hold the view      name: d@v1 .windows('tokens', 8)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import wraps
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Self,
    TypeVar,
    cast,
)

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataset_view import DatasetView
from cachelayer.access.readable_view import ReadableView
from cachelayer.arguments import explains_options, required
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import T
from cachelayer.records.leaf_names import leaf_numbers
from cachelayer.records.selection import Selection, numbers_or_mask
from cachelayer.user_warnings import warn
from cachelayer.versions.view_calls import PUBLISH, ViewCall, literal, rows_call

if TYPE_CHECKING:
    from cachelayer.access.sampling import Sampled
    from cachelayer.access.sequences.rolling import SeriesWindows

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
class View(ReadableView[T]):
    """Elements in an order of their own: records of a version or of several, windows, packs, and so on.

    To make a view copies nothing.

    Examples:
        >>> letters = cachelayer.wrap("abcdef", identity="letters")
        >>> view = letters[1:].exclude([0])[::-1]
        >>> list(view), view[0], len(view)
        (['f', 'e', 'd', 'c'], 'f', 4)
        >>> [batch.tolist() for batch in view.stream(3)]
        [['f', 'e', 'd'], ['c']]
    """

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
            >>> ref = cachelayer.Storage(folder).submit(rows, "rows", "v1")
            >>> conditions = ["score > 0.5", "not score > 0.5", "score is None"]
            >>> [[row["text"] for row in ref.where(condition)] for condition in conditions]
            [['one'], ['three'], ['two']]
            >>> [row["text"] for row in ref.where("text.startswith('t') and len(text) > 3")]
            ['three']
            >>> [row["text"] for row in ref.where(lambda columns: columns["text"] == "two")]
            ['two']
        """
        from cachelayer.access.where import Condition, mask_of

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
            >>> ref = cachelayer.Storage(folder).submit(rows, "texts", "v1")
            >>> mask = ref.each(lambda element: element["tokens"].max() > 3)
            >>> mask.tolist(), ref.select(mask)[0]["tokens"].tolist()
            ([False, True], [4])
        """
        from cachelayer.access.where import mask_of_elements

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
            >>> ref = cachelayer.Storage(folder).submit([{"label": label} for label in (0, 1, 1, 1)], "labels", "v1")
            >>> ref.sample([0, 1, 1, 0], seed=0).stream(8).record_numbers(0).tolist()
            [2, 2, 2, 1, 1, 1, 2, 1]
        """
        from cachelayer.access.sampling import sampled_of

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
                filtered out or erased do: split first, then filter the parts.

        Returns:
            The parts by their names. With ``by`` or ``stratify``, erased records are in no part.

        Raises:
            InvalidArgumentError: if the shares or the seed are invalid, there is no such field, or both ``by`` and
                ``stratify`` are passed.

        Warns:
            CacheLayerWarning: if ``by`` is not passed, and another version may have the same records under other
                numbers, since it was written, or built, by itself; if the view is a part of a split with the same seed,
                which deals its records alike, so that the parts are far from their shares; if a part has no value of
                ``by``, which may happen if there are few values.

        Examples:
            >>> letters = cachelayer.wrap("abcdefgh", identity="letters")
            >>> {name: list(view) for name, view in letters.split({"train": 0.75, "test": 0.25}, seed=0).items()}
            {'train': ['a', 'b', 'c', 'd', 'f', 'g'], 'test': ['e', 'h']}
            >>> clicks = cachelayer.Storage(folder).submit([{"user": user} for user in (7, 8, 9, 7, 8)], "clicks", "v1")
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
        from cachelayer.access.split import split

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
            stratify: a field, or several: of the records with one value, all folds hold out equally many.

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
        from cachelayer.access.split import folds

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
            >>> ref = cachelayer.Storage(folder).submit(rows, "rows", "v1")
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
            >>> ref = cachelayer.Storage(folder).submit(images, "images", "v1", element_spec=spec)
            >>> [element["image"].shape for element in ref]
            [(2, 4, 3), (6, 4, 3)]
            >>> ref.decoded(size=(5, 5)).read([0, 1])["image"].shape
            (2, 5, 5, 3)
        """
        from cachelayer.access.record_elements import StoredElements
        from cachelayer.records.media import image_leaves, image_size

        base = self._readable.base
        if not isinstance(base, StoredElements):
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
                the last window up with zeros.
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
            >>> ref = cachelayer.Storage(folder).submit(rows, "texts", "v1")
            >>> [window["tokens"].tolist() for window in ref.windows("tokens", 4, stride=2)]
            [[1, 2, 3, 4], [3, 4, 5, 6]]
            >>> window = ref.windows("tokens", 5, separator=0, segments=True)[0]
            >>> window["tokens"].tolist(), window["tokens_segment_ids"].tolist(), window["tokens_positions"].tolist()
            ([1, 2, 3, 0, 4], [1, 1, 1, 1, 2], [0, 1, 2, 3, 0])
        """
        from cachelayer.access.sequences.windows import window_rows

        rows = window_rows(
            self._records,
            leaves,
            length,
            stride=stride,
            separator=separator,
            remainder=remainder,
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
            beside, every: as in :meth:`windows`.

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
            >>> packs = cachelayer.Storage(folder).submit(rows, "texts", "v1").packed("tokens", 4)
            >>> [pack["tokens"].tolist() for pack in packs]
            [[1, 2, 3, 6], [4, 5, 7, 8]]
            >>> packs[0]["tokens_segment_ids"].tolist(), packs[0]["tokens_positions"].tolist()
            ([1, 1, 1, 2], [0, 1, 2, 0])
        """
        from cachelayer.access.sequences.packs import pack_rows

        rows = pack_rows(
            self._records,
            leaves,
            length,
            long=long,
            max_length=max_length,
            seed=seed,
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
            >>> windows = cachelayer.Storage(folder).submit(rows, "rows", "v1").rolling(2, by="sensor", order="time")
            >>> [(window["sensor"].tolist(), window["time"].tolist()) for window in windows]
            [([7, 7], [0, 1]), ([7, 7], [1, 2]), ([9, 9], [0, 1])]
            >>> [span.record for span in windows.sources(1)]
            [3, 1]
        """
        from cachelayer.access.sequences.rolling import series_windows

        return Rolling(DatasetView.all(series_windows(self._records, length, by, order, stride)))

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
            >>> ref = cachelayer.Storage(folder).cache(rows, "videos", "v1", element_spec=spec)
            >>> clips = ref.clips("video", 4, stride=5, every=30, beside="label")
            >>> [(clip["video"][:, 0, 0, 0].tolist(), int(clip["label"])) for clip in clips]
            [([0, 5, 10, 15], 7), ([30, 35, 40, 45], 7), ([60, 65, 70, 75], 7)]
        """
        from cachelayer.access.sequences.clips import clip_rows

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
                ``{"tokens": 2048}``; or the name of one field.
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
            >>> padded = cachelayer.Storage(folder).submit(rows, "texts", "v1").padded("tokens", 2, long="truncate")
            >>> {name: values.tolist() for name, values in padded.read([0, 1]).items()}
            {'tokens': [[1, 2], [4, 0]], 'tokens_length': [2, 1], 'tokens_mask': [[True, True], [True, False]]}
        """
        from cachelayer.access.sequences.padded import padded_elements

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
        >>> packs = cachelayer.Storage(folder).submit(rows, "texts", "v1").packed("tokens", 4, segments=False)
        >>> [(pack["tokens"].tolist(), pack["tokens_length"].item()) for pack in packs]
        [([1, 2, 3, 6], 4), ([4, 5, 0, 0], 2)]
    """

    @property
    def fill(self) -> float:
        """The share of the cells of all packs that are not padding. Packs that a slice leaves out count too.

        Examples:
            >>> import numpy as np
            >>> rows = [{"tokens": np.array(tokens)} for tokens in ([1, 2, 3], [4, 5], [6])]
            >>> cachelayer.Storage(folder).submit(rows, "texts", "v1").packed("tokens", 4).fill
            0.75
        """
        from cachelayer.access.sequences.packs import PackRows

        return cast(PackRows, self._records.base).fill


class Rolling(View[Any]):
    """Windows of consecutive records of a series; :meth:`cachelayer.View.rolling` returns it.

    Series that a slice leaves out count too.

    Examples:
        >>> import numpy as np
        >>> ref = cachelayer.Storage(folder).submit({"x": np.array([1, 2, 3, 4])}, "series", "v1")
        >>> windows = ref.rolling(3)
        >>> windows.read([0, 1])["x"].tolist(), windows.series, windows.short_series
        ([[1, 2, 3], [2, 3, 4]], 1, 0)
    """

    @property
    def series(self) -> int:
        """The number of series.

        Examples:
            >>> import numpy as np
            >>> ref = cachelayer.Storage(folder).submit({"sensor": np.array([7, 9, 7, 7])}, "rows", "v1")
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
            >>> ref = cachelayer.Storage(folder).submit({"sensor": np.array([7, 9, 7, 7])}, "rows", "v1")
            >>> ref.rolling(2, by="sensor").short_series  # sensor 9 has one record
            1
        """
        return int((self._windows.counts == 0).sum())

    @property
    def _windows(self) -> SeriesWindows:
        from cachelayer.access.sequences.rolling import SeriesWindows

        return cast(SeriesWindows, self._records.base)


class Padded(View[Any]):
    """Records with padded leaves; :meth:`cachelayer.View.padded` returns it.

    Examples:
        >>> import numpy as np
        >>> rows = [{"tokens": np.array(tokens)} for tokens in ([1, 2, 3], [4])]
        >>> padded = cachelayer.Storage(folder).submit(rows, "texts", "v1").padded({"tokens": 4}, value=-1)
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
            >>> cachelayer.Storage(folder).submit(rows, "texts", "v1").padded("tokens", 2, long="truncate").kept
            0.75
        """
        from cachelayer.access.sequences.padded import PaddedElements

        return cast(PaddedElements, self._records.base).kept
