"""Collect the statistics of a version, in one pass over its records or a sample of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataref import DataRef
from cachelayer.arguments import integer
from cachelayer.progress import Progress
from cachelayer.protocols import records_of
from cachelayer.records import dtypes, tree
from cachelayer.records.spec import ImageSpec, LeafSpec
from cachelayer.statistics.numbers import NumberStats, NumberSummary, are_numbers
from cachelayer.statistics.texts_and_images import ImageStats, ImageSummary, StringStats, StringSummary
from cachelayer.statistics.unpack_leaf import Unpacked, unpack
from cachelayer.streams.order import Order

_BATCH_NBYTES = 8 << 20
_BATCH_RECORDS = 16_384
_INT64 = np.dtype(np.int64)
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class LengthStats:
    """The statistics of lengths.

    Args:
        of: what has these lengths: ``bytes`` or ``characters`` of strings; ``axis 0``, ``axis 1`` and so on of arrays;
            ``values`` of sparse arrays.
        numbers: the statistics of the lengths.
        longest: the number of the first record with the largest length; None if a record has several lengths.
    """

    of: str
    numbers: NumberStats
    longest: int | None


@dataclass(frozen=True)
class LeafStats:
    """The statistics of one leaf, over all records that were read.

    Args:
        path: where it is in an element, such as ``['image']``; empty if it is the whole element.
        spec: its dtype and shape, such as ``uint8[32, 32, 3]``.
        nulls: in how many records it is None.
        lengths: those of strings, of ragged and sparse arrays, and along unknown dimensions.
        numbers: None for strings and complex numbers, which have no range.
        strings: None for numbers and encoded images.
        images: None for all but encoded images, and if Pillow is not installed.
    """

    path: str
    spec: str
    nulls: int
    lengths: tuple[LengthStats, ...]
    numbers: NumberStats | None
    strings: StringStats | None
    images: ImageStats | None


@dataclass(frozen=True)
class Statistics:
    """The statistics of the records of a version.

    Args:
        reference: the version.
        records: the number of its records.
        records_read: how many of these were read; fewer than ``records`` for a sample.
        record_nbytes: the stored bytes of records.
        leaves: each leaf, in the order of the element.
    """

    reference: str
    records: int
    records_read: int
    record_nbytes: LengthStats
    leaves: tuple[LeafStats, ...]

    def to_json(self) -> dict[str, Any]:
        """Return the statistics as dicts, lists, numbers and text."""
        return asdict(self)


def survey(
    ref: DataRef[Any],
    *,
    records: int | None = None,
    progress: bool | None = None,
    each_batch: Callable[[int], None] = lambda _: None,
) -> Statistics:
    """Read all records once, in order, and return their statistics. Encoded images and sounds are not decoded.

    Args:
        ref: the records.
        records: read only this many records, drawn at random but always the same ones; None for all.
        progress: None shows a bar in a terminal or a notebook, elsewhere a line every half minute; True does
            so from the start; False shows nothing.
        each_batch: called with the number of records that were read, again and again; what it raises ends the survey.

    Raises:
        InvalidArgumentError: if ``records`` is less than 1.
    """
    chosen, numbers = _chosen(ref, records)
    leaves = [_LeafSummary(path, spec) for path, spec in tree.leaves(chosen.element_spec)]
    sizes = _LengthSummary("bytes")
    batch_size = max(1, min(_BATCH_RECORDS, _BATCH_NBYTES // max(1, records_of(chosen).read_nbytes)))
    name = f"{ref.dataset_id}@{ref.dataset_version}"
    start = 0
    with Progress(f"stats {name}", len(chosen), progress) as shown:
        for batch in chosen.stream(batch_size):
            rows = np.arange(start, min(start + batch_size, len(chosen)))
            read = rows if numbers is None else numbers[rows]
            nbytes = chosen.stored_nbytes(rows)
            sizes.add(nbytes, read)
            for leaf, values in zip(leaves, tree.flatten_like(chosen.element_spec, batch), strict=True):
                leaf.add(values, read)
            shown.update(len(rows), int(nbytes.sum()))
            start += len(rows)
            each_batch(start)
    return Statistics(ref.reference, len(ref), len(chosen), sizes.result(), tuple(leaf.result() for leaf in leaves))


def _chosen(ref: DataRef[Any], records: int | None) -> tuple[DataRef[Any], Ints | None]:
    """Return the records to read, and their numbers; the numbers are None for all records."""
    raw = ref.raw()
    if records is None or integer("records", records, 1) >= len(ref):
        return raw, None
    numbers = np.sort(Order(len(ref), shuffle=True, seed=0)(0, 0, records))
    return raw.select(numbers), numbers


class _LengthSummary:
    """Collects statistics of lengths, batch by batch."""

    def __init__(self, of: str) -> None:
        self._of = of
        self._numbers = NumberSummary(_INT64)
        self._largest = -1
        self._longest: int | None = None

    def add(self, lengths: Ints, records: Ints) -> None:
        """Add lengths, and the numbers of their records if each record has one length."""
        self._numbers.add(lengths)
        if len(lengths) and len(lengths) == len(records) and lengths.max() > self._largest:
            self._largest = int(lengths.max())
            self._longest = int(records[lengths.argmax()])

    def result(self) -> LengthStats:
        return LengthStats(self._of, self._numbers.result(), self._longest)


class _LeafSummary:
    """Collects statistics of one leaf, batch by batch."""

    def __init__(self, path: str, spec: LeafSpec) -> None:
        self._path, self._spec = path, spec
        self._nulls = 0
        self._lengths: dict[str, _LengthSummary] = {}
        self._numbers = NumberSummary(np.dtype(spec.dtype)) if are_numbers(spec.dtype) else None
        is_text = dtypes.is_string(spec.dtype) or (isinstance(spec.dtype, np.dtype) and spec.dtype.kind in "SU")
        self._unit = ("characters" if spec.dtype is str or np.dtype(spec.dtype).kind == "U" else "bytes") * is_text
        self._images = ImageSummary() if isinstance(spec, ImageSpec) else None
        self._strings = StringSummary() if is_text and self._images is None else None

    def add(self, batch: Any, records: Ints) -> None:
        unpacked = unpack(self._spec, batch, len(records))
        self._nulls += unpacked.nulls
        for of, lengths in unpacked.lengths.items():
            one_each = of in ("axis 0", "values")
            self._length(of).add(lengths, records[unpacked.rows] if one_each else records[:0])
        if self._numbers is not None:
            self._numbers.add(unpacked.values)
        if self._unit:
            self._add_strings(unpacked, records)

    def _add_strings(self, unpacked: Unpacked, records: Ints) -> None:
        strings = unpacked.values.tolist()
        lengths = np.fromiter(map(len, strings), np.int64, len(strings))
        self._length(self._unit).add(lengths, records[:0] if self._spec.shape else records[unpacked.rows])
        if self._strings is not None:
            self._strings.add(strings, int(lengths.max(initial=0)))
        if self._images is not None:
            self._images.add(strings)

    def _length(self, of: str) -> _LengthSummary:
        return self._lengths.setdefault(of, _LengthSummary(of))

    def result(self) -> LeafStats:
        return LeafStats(
            self._path,
            self._spec.describe(),
            self._nulls,
            tuple(lengths.result() for lengths in self._lengths.values()),
            None if self._numbers is None else self._numbers.result(),
            None if self._strings is None else self._strings.result(),
            None if self._images is None else self._images.result(),
        )
