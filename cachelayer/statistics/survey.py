"""Collect the statistics of records, in one pass over them or over a sample of them."""

from __future__ import annotations

import io
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError
from cachelayer.protocols import records_of
from cachelayer.specs import json_text, tree
from cachelayer.specs.leaf_names import leaf_number
from cachelayer.specs.schema import Schema
from cachelayer.specs.spec import ImageSpec, JsonSpec, LeafSpec, RaggedSpec, describe_leaf
from cachelayer.specs.values import Nullable, Ragged, Sparse
from cachelayer.statistics.numbers import NumberSummary, are_numbers
from cachelayer.statistics.shown import LeafStats, LengthStats, Statistics, StringStats
from cachelayer.support.arguments import integer
from cachelayer.support.progress import Progress

_BATCH_NBYTES = 8 << 20
_BATCH_RECORDS = 16_384
DISTINCT = 1000
"""How many distinct strings are counted at most."""
COMMON = 10
"""How many of the most common strings are told."""
_LONGEST = 256
"""Strings of more characters are not counted."""
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def _readable(ref: Any, records: int | None) -> range | Ints:
    """Return the numbers of records that were not erased, ascending; or of a sample, drawn with memory for it alone."""
    erased = ref.erased
    if records is None or records >= len(ref) - len(erased):
        return np.delete(np.arange(len(ref)), erased) if len(erased) else range(len(ref))
    stream = ref.raw().stream(records, shuffle=True, seed=0)
    sample = np.empty(0, np.int64)
    step = 0
    while len(sample) < records:
        numbers = stream.record_numbers(step)
        sample = np.append(sample, numbers[~np.isin(numbers, erased)])
        step += 1
    return np.sort(sample[:records])


def _chosen(ref: Any, numbers: range | Ints) -> Any:
    """Return records of a ref as they are stored."""
    return ref.raw() if isinstance(numbers, range) else ref.raw().select(numbers)


def survey(ref: Any, *, records: int | None = None, progress: bool | None = None) -> Statistics:
    """Return the statistics of a ref; see ``ref.stats``. Encoded images and sounds are not decoded."""
    numbers = _readable(ref, None if records is None else integer("records", records, 1))
    raw = _chosen(ref, numbers)
    leaves = [_LeafSummary(path, spec) for path, spec in tree.leaves(raw.element_spec)]
    sizes = NumberSummary(np.dtype(np.int64))
    batch_size = max(1, min(_BATCH_RECORDS, _BATCH_NBYTES // max(1, records_of(raw).info.read_nbytes)))
    total = len(numbers)
    starts = range(0, total, batch_size)
    batches = raw.stream(batch_size) if total else ()
    with Progress(f"stats {ref.dataset_id}@{ref.dataset_version}", total, progress) as bar:
        for start, batch in zip(starts, batches, strict=True):
            rows = np.arange(start, min(start + batch_size, total))
            nbytes = raw.stored_nbytes(rows)
            chosen = np.asarray(numbers[start : rows[-1] + 1])
            sizes.add(nbytes, chosen)
            for leaf, values in zip(leaves, Schema.of(raw.element_spec).flatten(batch), strict=True):
                leaf.add(values, chosen)
            bar.update(len(rows), int(nbytes.sum()))
    stored = LengthStats("bytes", sizes.result(), sizes.record_of_largest)
    return Statistics(str(ref._records.name), len(ref), total, stored, tuple(leaf.result() for leaf in leaves))


def count_by(ref: Any, field: str) -> dict[Any, int]:
    """Return how many records of a ref have each value of a field; see ``ref.count_by``."""
    raw = _chosen(ref, _readable(ref, None))
    _, spec = tree.leaves(raw.element_spec)[leaf_number(raw.element_spec, field)]
    narrow = raw.fields(field)
    if spec.shape != ():
        raise InvalidArgumentError(f"count_by({field!r}): {describe_leaf(spec)} has several values a record")
    counts: Counter[Any] = Counter()
    for start in range(0, len(narrow), _BATCH_RECORDS):
        rows = np.arange(start, min(start + _BATCH_RECORDS, len(narrow)))
        (values,) = Schema.of(narrow.element_spec).flatten(narrow.read(rows))
        valid, values, _ = unpack(spec, values, len(rows))
        counts.update(values.tolist())
        counts[None] += len(valid) - len(values)
    return {value: count for value, count in counts.most_common() if count}


class _LeafSummary:
    """Collects statistics of one leaf, batch by batch."""

    def __init__(self, path: str, spec: LeafSpec) -> None:
        self._path = path
        self._spec = spec
        self._nulls = 0
        self._lengths: dict[str, NumberSummary] = {}
        self._numbers = NumberSummary(np.dtype(spec.dtype)) if are_numbers(spec.dtype) else None
        self._is_image = isinstance(spec, ImageSpec)
        self._strings = StringSummary() if is_text(spec) and not self._is_image else None

    def add(self, batch: Any, records: Ints) -> None:
        valid, values, lengths = unpack(self._spec, batch, len(records))
        self._nulls += int((~valid).sum())
        if self._is_image:
            lengths |= image_sizes(values.tolist())
        for of, numbers in lengths.items():
            has_one = self._spec.shape == () or of in ("axis 0", "values")
            summary = self._lengths.setdefault(of, NumberSummary(np.dtype(np.int64)))
            summary.add(numbers, records[valid] if has_one else None)
        if self._numbers is not None:
            self._numbers.add(values)
        if self._strings is not None:
            self._strings.add(values)

    def result(self) -> LeafStats:
        return LeafStats(
            self._path,
            describe_leaf(self._spec),
            self._nulls,
            tuple(LengthStats(of, kept.result(), kept.record_of_largest) for of, kept in self._lengths.items()),
            None if self._numbers is None else self._numbers.result(),
            None if self._strings is None else self._strings.result(),
        )


def is_text(spec: LeafSpec) -> bool:
    """Return whether the values of a leaf are texts or bytes."""
    return np.dtype(spec.dtype).kind in "SU"


def unpack(spec: LeafSpec, batch: Any, rows: int) -> tuple[Flags, NDArray[Any], dict[str, Ints]]:
    """Take a leaf of a batch apart, as ``ref.read`` returns it.

    ::

        [[1, 2], None, [3]]    rows: True False True    values: 1 2 3    lengths: {"axis 0": 2 1}

    Returns which rows are not None; all values in these rows that are not None; and lengths by what they count, such as
    ``axis 0`` or ``characters``.
    """
    valid = np.ones(rows, np.bool_)
    if isinstance(batch, Nullable) and batch.valid.ndim == 1:
        valid = batch.valid
        batch = batch.values
    lengths: dict[str, Ints] = {}
    if isinstance(spec, JsonSpec):
        valid = np.fromiter((value is not None for value in batch), np.bool_, rows)
        texts = [json_text.text_of(value) for value in batch if value is not None]
        values = np.fromiter(texts, object, len(texts))
    elif isinstance(batch, Sparse):
        values = batch.values
        lengths = {"values": np.bincount(batch.indices[:, 0], minlength=rows)[valid]}
    elif isinstance(batch, Ragged):
        values = batch.flat_values
        lengths = dict(_lengths(spec, batch, valid))
    elif isinstance(spec, RaggedSpec):
        # If more dimensions than the first are unknown, the batch is an array of objects, one for each row.
        parts = [Ragged(row, np.array([0, len(row)])) for row in batch[valid]]
        flats = [part.flat_values for part in parts]
        flats = [flat.values[flat.valid] if isinstance(flat, Nullable) else flat.reshape(-1) for flat in flats]
        values = np.concatenate([np.empty(0, spec.dtype), *flats])
        by_row = [dict(_lengths(spec, part, np.ones(1, np.bool_))) for part in parts]
        axes = by_row[0] if by_row else [f"axis {axis}" for axis, known in enumerate(spec.shape) if known is None]
        lengths = {axis: np.concatenate([np.empty(0, np.int64), *(row[axis] for row in by_row)]) for axis in axes}
    else:
        values = batch if valid.all() else batch[valid]
    values = values.values[values.valid] if isinstance(values, Nullable) else values.reshape(-1)
    if is_text(spec):
        unit = "characters" if np.dtype(spec.dtype).kind == "U" else "bytes"
        lengths[unit] = np.fromiter(map(len, values.tolist()), np.int64, len(values))
    return valid, values, lengths


def _lengths(spec: LeafSpec, batch: Ragged, valid: Flags) -> Iterator[tuple[str, Ints]]:
    """Yield the lengths along each unknown axis: a length for each array, or for each row within a ragged array."""
    for axis, splits in enumerate(batch.nested_row_splits):
        lengths = np.diff(splits) if batch.row_shapes is None else batch.row_shapes[:, axis]
        if spec.shape[axis] is None:
            yield f"axis {axis}", lengths[valid].astype(np.int64)
        if isinstance(spec, RaggedSpec):
            valid = np.repeat(valid, lengths)


class StringSummary:
    """Collects statistics of strings, batch by batch, in bounded memory."""

    def __init__(self) -> None:
        self._seen: Counter[str | bytes] | None = Counter()
        """The count of each string; None once they are too many, or one is too long."""

    def add(self, strings: NDArray[Any]) -> None:
        if self._seen is not None:
            self._seen.update(strings.tolist())
            if len(self._seen) > DISTINCT or any(len(string) > _LONGEST for string in self._seen):
                self._seen = None

    def result(self) -> StringStats:
        """Return the statistics. Bytes are shown as Python writes them, such as ``b'ab'``."""
        if self._seen is None:
            return StringStats(None, ())
        ranked = sorted(self._seen.items(), key=lambda item: (-item[1], item[0]))
        return StringStats(len(ranked), tuple((_shown(string), count) for string, count in ranked[:COMMON]))


def _shown(string: str | bytes) -> str:
    # A lone surrogate cannot be printed.
    return string.encode("utf-8", "backslashreplace").decode() if isinstance(string, str) else repr(string)


def image_sizes(files: Iterable[bytes]) -> dict[str, NDArray[np.int64]]:
    """Return the widths and heights in the headers of image files, 0 for broken ones; an empty dict without Pillow."""
    try:
        from PIL import Image
    except ImportError:
        return {}
    sizes = []
    with warnings.catch_warnings():
        # Pillow warns of images that are large when decoded, but nothing is decoded here.
        warnings.simplefilter("ignore", Image.DecompressionBombWarning)
        for data in files:
            try:
                with Image.open(io.BytesIO(data)) as image:
                    sizes.append(image.size)
            except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
                sizes.append((0, 0))
    widths, heights = np.array(sizes, np.int64).reshape(-1, 2).T
    return {"width": widths, "height": heights}
