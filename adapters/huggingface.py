"""Hugging Face ``datasets`` in and out.

``storage.cache(dataset, ...)`` takes a ``Dataset`` or an ``IterableDataset`` as it is, in batches of Arrow. Images and
sounds stay the bytes of their files, decoded when they are read. The features are kept in the metadata:
:func:`to_datasets` and :func:`to_iterable_dataset` give them back.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator
from copy import copy
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from cachelayer.access.dataref import DataRef
from cachelayer.access.view import View
from cachelayer.adapters._handed import check_ref, check_stream
from cachelayer.builds.batches import Batch, batch_records
from cachelayer.builds.source import Splits
from cachelayer.errors import (
    CacheLayerError,
    ElementError,
    InvalidArgumentError,
    InvalidTypeError,
    MissingDependencyError,
    SourceError,
)
from cachelayer.records import tree
from cachelayer.records.codec import codec_for
from cachelayer.records.column import Column
from cachelayer.records.tree import Tree
from cachelayer.streams.step_reader import StepReader
from cachelayer.streams.stream import Stream

try:
    import datasets
    import pyarrow as pa
    from datasets.iterable_dataset import _BaseExamplesIterable

    from cachelayer.adapters._arrow_columns import Lists, column
    from cachelayer.adapters._arrow_source import Rows
    from cachelayer.adapters._huggingface_features import arrow_of, feature_of, leaves_of, spec_of
    from cachelayer.adapters._huggingface_rows import ROWS_AT_ONCE, rows_of, tabled
except ImportError as error:
    raise MissingDependencyError("this needs Hugging Face datasets: pip install 'cachelayer[huggingface]'") from error

METADATA = "huggingface_features"
_FILES_AT_ONCE = 64


def as_source(
    obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None
) -> HuggingFaceSource | Splits | None:
    """The source that a ``Dataset`` or an ``IterableDataset`` is, the splits of a dict of them; None for all else."""
    if isinstance(obj, (datasets.DatasetDict, datasets.IterableDatasetDict)):
        return Splits({str(split): dataset for split, dataset in obj.items()})
    if not isinstance(obj, (datasets.Dataset, datasets.IterableDataset)):
        return None
    if unbatch:
        raise InvalidArgumentError("unbatch=True: rows of a datasets.Dataset are elements already; leave it out")
    if isinstance(obj, datasets.Dataset):
        return SeekableHuggingFaceSource(_without_format(obj), element_spec)
    return HuggingFaceSource(obj, _streamed(obj), None, element_spec)


class HuggingFaceSource:
    """A dataset, pulled as Arrow tables: row by row costs many times more.

    Args:
        dataset: a ``Dataset``, or an ``IterableDataset``; where that knows no features, its first rows tell them.
        tables: its rows.
        length: number of rows, where it is known.
        declared: the element spec that the user declares, in place of that of the features.

    Raises:
        InvalidTypeError: for a column that cannot be stored, with its path.
        InvalidArgumentError: where the declared spec is not one of this dataset.
    """

    kind = "datasets"

    def __init__(self, dataset: Any, tables: Iterator[pa.Table], length: int | None, declared: Tree | None) -> None:
        self.length = length
        self._tables = tables
        self._begin = 0
        self._features: Any = dataset.features
        self._first: pa.Table | None = None
        if self._features is None:
            self._first = next(self._tables, None)
            self._features = datasets.Features.from_arrow_schema(self._first.schema) if self._first else {}
        own = {name: spec_of(feature, f"[{name!r}]") for name, feature in self._features.items()}
        if declared is not None:
            _check_declared(own, declared)
        self.element_spec: Tree | None = own if declared is None else declared

    @property
    def metadata(self) -> dict[str, Any]:
        """The features, with the names of class labels."""
        return {METADATA: datasets.Features(self._features).to_dict()}

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """The elements, in batches.

        Raises:
            SourceError: where the dataset fails.
        """
        done = self._begin
        stop = None if limit is None else done + limit
        for table in self._all_tables(limit):
            if stop is not None and done + len(table) > stop:
                table = table.slice(0, stop - done)
            if len(table):
                yield self._batch(table, done)
            done += len(table)
            if done == stop:
                return

    def _all_tables(self, limit: int | None) -> Iterator[pa.Table]:  # noqa: ARG002
        if self._first is not None:
            yield self._first
        yield from self._tables

    def _batch(self, table: pa.Table, first: int) -> Batch:
        schema = datasets.Features(self._features).arrow_schema
        if table.schema.names != schema.names or table.schema.types != schema.types:
            raise SourceError(
                f"the columns change at records {first} to {first + len(table) - 1}: they are "
                f"{_columns(table.schema)}, and were {_columns(schema)}"
            )
        return Rows(table, self._taken)

    def _taken(self, table: pa.Table) -> list[Column]:
        """Return the columns of some rows.

        Raises:
            ElementError: for what the spec has no place for, such as None within a list, or text that is no UTF-8.
        """
        found = [
            leaf
            for name, feature in self._features.items()
            for leaf in leaves_of(feature, Lists(table[name].combine_chunks()), f"[{name!r}]")
        ]
        leaves = zip(tree.leaves(self.element_spec), found, strict=True)
        return [column(path, spec, lists) for (path, spec), lists in leaves]


class SeekableHuggingFaceSource(HuggingFaceSource):
    """A ``Dataset`` without a format, which begins at any row."""

    def __init__(self, dataset: datasets.Dataset, declared: Tree | None) -> None:
        super().__init__(dataset, iter(()), len(dataset), declared)
        self._dataset = dataset

    def _all_tables(self, limit: int | None) -> Iterator[pa.Table]:
        return _sliced(self._dataset, self._begin, limit)

    def skipped(self, records: int) -> SeekableHuggingFaceSource:
        """The same rows from one on."""
        skipped = copy(self)
        skipped._begin += records
        return skipped


def _without_format(dataset: datasets.Dataset) -> datasets.Dataset:
    form = dataset.format
    if form["type"] == "custom":
        raise InvalidArgumentError(
            "the dataset has a transform, which runs when rows are read: store what it gives, with dataset.map()"
        )
    if set(form["columns"]) != set(dataset.column_names) and not form["output_all_columns"]:
        dataset = dataset.select_columns(form["columns"])
    return dataset.with_format(None)


def _sliced(dataset: datasets.Dataset, first: int, limit: int | None) -> Iterator[pa.Table]:
    size = batch_records(dataset.data.nbytes / max(1, dataset.data.num_rows))
    if any(isinstance(feature, (datasets.Image, datasets.Audio)) for feature in dataset.features.values()):
        # Their files may lie elsewhere, and be of any size.
        size = min(size, _FILES_AT_ONCE)
    if limit is not None:
        size = max(1, min(size, limit))
    arrow = dataset.with_format("arrow")
    for start in range(first, len(dataset), size):
        yield arrow[start : start + size]


def _streamed(dataset: datasets.IterableDataset) -> Iterator[pa.Table]:
    # Where rows come from Python, datasets makes a table of each by itself, with a schema of its own.
    if dataset._ex_iterable.iter_arrow is None:
        return tabled(dataset)
    return _arrow_batches(dataset)


def _arrow_batches(dataset: datasets.IterableDataset) -> Iterator[pa.Table]:
    done = 0
    try:
        for table in dataset.with_format("arrow").iter(ROWS_AT_ONCE):
            yield table
            done += len(table)
    except CacheLayerError:
        raise
    except Exception as error:
        last = done + ROWS_AT_ONCE - 1
        raise SourceError(
            f"the datasets.IterableDataset failed between records {done} and {last}: {type(error).__name__}: {error}"
        ) from error


def _columns(schema: pa.Schema) -> str:
    return ", ".join(f"{name}: {kind}" for name, kind in zip(schema.names, schema.types, strict=True))


def _check_declared(own: Tree, declared: Tree) -> None:
    """Whether a declared spec says no other than the features, but for how bytes are decoded.

    Raises:
        InvalidArgumentError: where structure, dtype or shape differ.
    """
    try:
        wanted = tree.flatten_like(own, declared)
    except ElementError as error:
        raise InvalidArgumentError(f"element_spec is not of this dataset: {error}") from error
    for (path, leaf), other in zip(tree.leaves(own), wanted, strict=True):
        of_files = leaf.dtype is bytes and leaf.shape == () and other.dtype is bytes and other.shape == ()
        if not of_files and leaf.as_nullable() != other.as_nullable():
            raise InvalidArgumentError(f"element_spec{path} is {other!r}, but the dataset has {leaf!r}")


def to_datasets(ref: View[Any], *, cache_dir: str | os.PathLike[str] | None = None) -> datasets.Dataset:
    """A ``datasets.Dataset`` of the records, with the features that went in: a memory-mapped Arrow file.

    The file is written at the first call, and found again at the next ones: it is named after the digest.

    Args:
        ref: a DataRef, or a part of one, of dicts.
        cache_dir: the folder of the file; by default one in the cache of ``datasets``.

    Raises:
        InvalidTypeError: for elements that are no dicts, and leaves that Arrow has no type for.
    """
    check_ref(ref)
    records, features = _stored(ref), _features_of(ref)
    schema = features.arrow_schema
    folder = Path(datasets.config.HF_DATASETS_CACHE if cache_dir is None else cache_dir) / "cachelayer"
    key = hashlib.sha256(f"{ref.digest} {json.dumps(features.to_dict(), sort_keys=True)}".encode()).hexdigest()
    path = folder / f"{key}.arrow"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(f".{uuid.uuid4().hex}")
        try:
            with pa.OSFile(str(written), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
                size = min(ROWS_AT_ONCE, batch_records(records.record_nbytes))
                for start in range(0, len(records), size):
                    rows = np.arange(start, min(start + size, len(records)))
                    writer.write_table(_table(features, records.read(rows), len(rows)))
            written.replace(path)
        finally:
            written.unlink(missing_ok=True)
    return datasets.Dataset.from_file(str(path))


def to_iterable_dataset(stream: Stream[Any]) -> datasets.IterableDataset:
    """A ``datasets.IterableDataset`` of the elements of a stream, in its order, with the features that went in.

    ``state_dict()`` holds the state of the stream after the last row that was handed out, so ``load_state_dict()`` goes
    on there at once. Each iteration runs the stream from its start; ``.batch()`` makes batches.

    Args:
        stream: without batches and mapped functions; its shard is that of the dataset.

    Raises:
        InvalidArgumentError: for a stream of batches, or of what functions return.
        InvalidTypeError: for elements that are no dicts, and leaves that Arrow has no type for.
    """
    check_stream(stream)
    if stream.is_mapped:
        raise InvalidArgumentError("to_iterable_dataset() of a mapped stream: map() the datasets.IterableDataset")
    if stream.options.batched:
        raise InvalidArgumentError("to_iterable_dataset() of batches: leave global_batch_size out, and call .batch()")
    source: Any = stream.source
    features = _features_of(source)
    raw: Stream[Any] = Stream(StepReader(_stored(source), stream.options))
    return datasets.IterableDataset(_Examples(raw, features), info=datasets.DatasetInfo(features=features))


class _Examples(_BaseExamplesIterable):  # type: ignore[misc]
    """The rows of a stream; its state is the stream's."""

    def __init__(self, stream: Stream[Any], features: datasets.Features) -> None:
        super().__init__()
        self._stream = stream
        self._features = features

    def _init_state_dict(self) -> dict[str, Any]:
        self._state_dict = {"stream": None, "type": type(self).__name__}
        return self._state_dict

    def __iter__(self) -> Iterator[tuple[int, dict[str, Any]]]:
        iterator = iter(self._stream)
        if self._state_dict and self._state_dict["stream"] is not None:
            iterator.set_state(self._state_dict["stream"])
        codec = codec_for(self._stream.source.element_spec)
        pairs = ((element, iterator.get_state()) for element in iterator)
        key = 0
        while chunk := list(islice(pairs, ROWS_AT_ONCE)):
            batch = codec.batch(codec.columns([element for element, _ in chunk]))
            rows = rows_of(_table(self._features, batch, len(chunk)))
            for row, (_, state) in zip(rows, chunk, strict=True):
                if self._state_dict:
                    self._state_dict["stream"] = state
                yield key, row
                key += 1

    def shuffle_data_sources(self, generator: Any) -> _Examples:  # noqa: ARG002
        raise InvalidArgumentError("the order is the stream's: pass ref.stream(shuffle=True, seed=...)")

    def shard_data_sources(self, num_shards: int, index: int, contiguous: bool = True) -> _Examples:  # noqa: ARG002
        if num_shards == 1:
            return self
        raise InvalidArgumentError(f"the shards are the stream's: pass ref.stream(shard=({index}, {num_shards}))")

    @property
    def num_shards(self) -> int:
        return 1


def _stored(ref: Any) -> Any:
    """The records with images and sounds as the bytes of their files."""
    return ref.raw() if isinstance(ref, DataRef) else ref


def _features_of(ref: Any) -> datasets.Features:
    """The features that went in, else those that the element spec has."""
    spec = _stored(ref).element_spec
    kept = ref.metadata.get(METADATA) if isinstance(ref, DataRef) else None
    if kept is not None:
        return datasets.Features.from_dict(kept)
    if not isinstance(spec, dict):
        raise InvalidTypeError(f"rows of a datasets.Dataset are dicts; elements are {tree.describe(spec)}")
    return datasets.Features({name: feature_of(leaf, f"[{name!r}]") for name, leaf in spec.items()})


def _table(features: datasets.Features, batch: Any, rows: int) -> pa.Table:
    arrays = []
    for name, feature in features.items():
        try:
            arrays.append(arrow_of(feature, batch[name], rows, f"[{name!r}]"))
        except UnicodeEncodeError as error:
            raise InvalidTypeError(
                f"leaf [{name!r}] has a str that is no UTF-8, and Arrow has no other: {error}"
            ) from error
    return pa.Table.from_arrays(arrays, schema=features.arrow_schema)
