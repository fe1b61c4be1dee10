"""Read Hugging Face ``datasets`` as sources, and turn records and streams into them.

``storage.cache(dataset, ...)`` takes a ``Dataset`` or an ``IterableDataset`` as it is, in Arrow batches. Images and
sounds stay the bytes of their files; reading decodes them. The metadata keep the features:
:func:`to_datasets` and :func:`to_iterable_dataset` return them.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from cachelayer.access.record_elements import RecordElements
from cachelayer.access.version_records import VersionRecords
from cachelayer.access.view import View
from cachelayer.adapters._stream_or_ref import check_ref, check_stream
from cachelayer.builds.batches import Batch, batch_records
from cachelayer.builds.iterable_source import IterableSource
from cachelayer.builds.source import Splits
from cachelayer.errors import (
    CacheLayerError,
    ElementError,
    InvalidArgumentError,
    InvalidTypeError,
    MissingDependencyError,
    SourceError,
)
from cachelayer.protocols import RandomAccess, records_of
from cachelayer.records import tree
from cachelayer.records.column import Column
from cachelayer.records.spec import EncodedSpec
from cachelayer.records.tree import Tree
from cachelayer.streams.stream import Stream, reader_of

try:
    import datasets
    import pyarrow as pa

    from cachelayer.adapters._arrow_columns import Lists, column
    from cachelayer.adapters._arrow_source import ArrowRows
    from cachelayer.adapters._huggingface_features import encoded, feature_of, leaves_of, spec_of, stored_table
    from cachelayer.adapters._huggingface_stream import ROWS_AT_ONCE, Examples, StreamIterableDataset
    from cachelayer.adapters._python_rows import first_rows, packer, spec_of_rows
except ImportError as error:
    raise MissingDependencyError("this needs Hugging Face datasets: pip install 'cachelayer[huggingface]'") from error

METADATA = "huggingface_features"
_FILES_AT_ONCE = 64


def as_source(
    obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None
) -> HuggingFaceSource | PythonRowsSource | Splits | None:
    """Return the source of a ``Dataset`` or ``IterableDataset``, or the splits of a dict of them; None for others."""
    if isinstance(obj, (datasets.DatasetDict, datasets.IterableDatasetDict)):
        return Splits({str(split): dataset for split, dataset in obj.items()})
    if not isinstance(obj, (datasets.Dataset, datasets.IterableDataset)):
        return None
    if unbatch:
        raise InvalidArgumentError("unbatch=True: rows of a datasets.Dataset are elements already; leave it out")
    if isinstance(obj, datasets.Dataset):
        return SeekableHuggingFaceSource(_without_format(obj), element_spec)
    if obj._starting_state_dict is not None:
        raise InvalidArgumentError("the IterableDataset continues from a state, so its first rows would be missing")
    # datasets would turn each row that comes from Python into a table with its own schema.
    return (PythonRowsSource if obj._ex_iterable.iter_arrow is None else HuggingFaceSource)(obj, element_spec)


class HuggingFaceSource:
    """A dataset, read as Arrow tables: reading row by row costs many times more.

    Args:
        dataset: a ``Dataset``, or an ``IterableDataset``; if it has no features, its first rows decide them.
        declared: the element spec that the user declares, in place of the one that the features imply.

    Raises:
        InvalidTypeError: if a column cannot be stored; names its path.
        InvalidArgumentError: if the declared spec does not fit the dataset.
    """

    kind = "datasets"

    def __init__(self, dataset: Any, declared: Tree | None) -> None:
        self.length: int | None = None
        self._begin = 0
        self._parts = self._parts_of(dataset)
        self._features: Any = dataset.features
        if self._features is None:
            first = next(self._parts, None)
            self._features = {} if first is None else datasets.Features.from_arrow_schema(first.schema)
            self._parts = iter(()) if first is None else chain([first], self._parts)
        self.element_spec: Tree | None = _spec_of_features(self._features, declared)

    @property
    def metadata(self) -> dict[str, Any]:
        """The features, with the names of class labels."""
        return {METADATA: datasets.Features(self._features).to_dict()}

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the elements, in batches.

        Raises:
            SourceError: if the dataset fails.
        """
        done = self._begin
        stop = None if limit is None else done + limit
        for part in self._all_parts(limit):
            rows = part if stop is None else part.slice(0, stop - done)
            if len(rows):
                yield self._batch(rows, done)
            done += len(rows)
            if done == stop:
                return

    def _parts_of(self, dataset: Any) -> Iterator[pa.Table]:
        return _arrow_batches(dataset)

    def _all_parts(self, limit: int | None) -> Iterator[pa.Table]:  # noqa: ARG002
        return self._parts

    def _batch(self, part: pa.Table, first: int) -> Batch:
        schema = datasets.Features(self._features).arrow_schema
        if part.schema.names != schema.names or part.schema.types != schema.types:
            raise SourceError(
                f"the columns change at records {first} to {first + len(part) - 1}: they are "
                f"{_columns(part.schema)}, and were {_columns(schema)}"
            )
        return ArrowRows(part, self._taken)

    def _taken(self, table: pa.Table) -> list[Column]:
        """Return the columns of some rows.

        Raises:
            ElementError: if the spec cannot hold a value, such as None within a list, or text that is not UTF-8.
        """
        values = [
            leaf
            for name, feature in self._features.items()
            for leaf in leaves_of(feature, Lists(table[name].combine_chunks()), f"[{name!r}]")
        ]
        leaves = zip(tree.leaves(self.element_spec), values, strict=True)
        return [column(path, spec, lists) for (path, spec), lists in leaves]


class SeekableHuggingFaceSource(HuggingFaceSource):
    """A ``Dataset`` without a format, which can begin at any row."""

    def __init__(self, dataset: datasets.Dataset, declared: Tree | None) -> None:
        super().__init__(dataset, declared)
        self.length = len(dataset)
        self._dataset = dataset

    def _parts_of(self, dataset: datasets.Dataset) -> Iterator[Any]:  # noqa: ARG002
        return iter(())

    def _all_parts(self, limit: int | None) -> Iterator[Any]:
        return _sliced(self._dataset, self._begin, limit)

    def take(self, numbers: Sequence[int]) -> Batch:
        """Return the rows of these numbers."""
        return self._batch(self._dataset.with_format("arrow")[list(numbers)], 0)

    def skipped(self, records: int) -> SeekableHuggingFaceSource:
        """Return this source without its first records."""
        skipped = copy(self)
        skipped._begin += records
        return skipped


def _without_format(dataset: datasets.Dataset) -> datasets.Dataset:
    form = dataset.format
    if form["type"] == "custom":
        raise InvalidArgumentError(
            "the dataset has a transform, which runs when rows are read: store its results with dataset.map()"
        )
    if set(form["columns"]) != set(dataset.column_names) and not form["output_all_columns"]:
        dataset = dataset.select_columns(form["columns"])
    return dataset.with_format(None)


def _sliced(dataset: datasets.Dataset, first: int, limit: int | None) -> Iterator[pa.Table]:
    size = batch_records(dataset.data.nbytes / max(1, dataset.data.num_rows))
    if any(isinstance(feature, (datasets.Image, datasets.Audio)) for feature in dataset.features.values()):
        # Their files may be elsewhere, and of any size.
        size = min(size, _FILES_AT_ONCE)
    if limit is not None:
        size = max(1, min(size, limit))
    arrow = dataset.with_format("arrow")
    for start in range(first, len(dataset), size):
        yield arrow[start : start + size]


class PythonRowsSource(IterableSource):
    """The rows of an ``IterableDataset`` that come from Python, such as a generator or the function of ``map()``.

    Args:
        dataset: the dataset; if it has no features, its first rows decide the element spec.
        declared: the element spec that the user declares.
    """

    def __init__(self, dataset: datasets.IterableDataset, declared: Tree | None) -> None:
        features, rows = dataset.features, iter(_unchanged(dataset))
        first: list[Any] = []
        if features is not None:
            spec = _spec_of_features(features, declared)
            rows = map(partial(encoded, features), rows)
        elif declared is not None:
            spec = declared
        else:
            first = first_rows(rows)
            spec = spec_of_rows(first)
        is_declared = features is not None or declared is not None
        pack = packer(spec, fill=features is not None, declared=is_declared)
        super().__init__(map(pack, chain(first, rows)), "datasets", None, 0, spec)
        self.metadata = {} if features is None else {METADATA: features.to_dict()}


def _unchanged(dataset: datasets.IterableDataset, form: str | None = None) -> datasets.IterableDataset:
    """Return a dataset of the rows as their source yields them: with features, ``datasets`` would change them."""
    info = dataset.info.copy()
    info.features = None if form is None else dataset.features
    plain = datasets.IterableDataset(
        dataset._ex_iterable,
        info=info,
        formatting=None,
        distributed=dataset._distributed,
        token_per_repo_id=dataset._token_per_repo_id,
    )
    if form is not None:
        plain = plain.with_format(form)
    plain.set_epoch(dataset.epoch)
    return plain


def _arrow_batches(dataset: datasets.IterableDataset) -> Iterator[pa.Table]:
    done = 0
    try:
        for table in _unchanged(dataset, "arrow").iter(ROWS_AT_ONCE):
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


def _spec_of_features(features: Any, declared: Tree | None) -> Tree:
    """Return the declared spec, or the one that features imply."""
    own = {name: spec_of(feature, f"[{name!r}]") for name, feature in features.items()}
    if declared is None:
        return own
    _check_declared(own, declared)
    return declared


def _check_declared(own: Tree, declared: Tree) -> None:
    """Raise if a declared spec contradicts the features. Only the decoding of bytes may differ.

    Raises:
        InvalidArgumentError: if structure, dtype or shape differ.
    """
    try:
        wanted = tree.flatten_like(own, declared)
    except ElementError as error:
        raise InvalidArgumentError(f"element_spec does not fit this dataset: {error}") from error
    for (path, leaf), other in zip(tree.leaves(own), wanted, strict=True):
        of_files = leaf.dtype is bytes and leaf.shape == () and other.dtype is bytes and other.shape == ()
        if not of_files and leaf.as_nullable() != other.as_nullable():
            raise InvalidArgumentError(f"element_spec{path} is {other!r}, but the dataset has {leaf!r}")


def to_datasets(ref: View[Any], *, cache_dir: str | os.PathLike[str] | None = None) -> datasets.Dataset:
    """Return a ``datasets.Dataset`` of the records, with the features that were cached: a memory-mapped Arrow file.

    The first call writes the file, and later calls find it again, because its name derives from the digest.

    Args:
        ref: a DataRef, or a part of one; its elements must be dicts.
        cache_dir: the folder of the file; by default a folder in the cache of ``datasets``.

    Raises:
        InvalidTypeError: if elements are not dicts, or Arrow has no type for a leaf.
    """
    check_ref(ref)
    records = _stored(records_of(ref))
    features = _features_of(records)
    schema = features.arrow_schema
    folder = Path(datasets.config.HF_DATASETS_CACHE if cache_dir is None else cache_dir) / "cachelayer"
    key = hashlib.sha256(f"{ref.digest} {json.dumps(features.to_dict(), sort_keys=True)}".encode()).hexdigest()
    path = folder / f"{key}.arrow"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        written = path.with_suffix(f".{uuid.uuid4().hex}")
        try:
            with pa.OSFile(str(written), "wb") as file, pa.ipc.new_stream(file, schema) as writer:
                size = min(ROWS_AT_ONCE, batch_records(records.read_nbytes))
                for start in range(0, len(records), size):
                    rows = np.arange(start, min(start + size, len(records)))
                    writer.write_table(stored_table(features, records.read(rows), len(rows)))
            written.replace(path)
        finally:
            written.unlink(missing_ok=True)
    return datasets.Dataset.from_file(str(path))


def to_iterable_dataset(stream: Stream[Any]) -> datasets.IterableDataset:
    """Return a ``datasets.IterableDataset`` of a stream's elements, in its order, with the features that were cached.

    ``state_dict()`` holds the state of the stream after the last row that was returned, so ``load_state_dict()``
    continues there at once. Each iteration runs the stream from its start; after ``set_epoch(e)``, it has epoch e of a
    shuffled stream. If the stream is endless, each iteration goes on after the last row that was returned, whatever the
    epoch. ``.batch()`` makes batches; after ``load_state_dict()`` of such a dataset each iteration begins at the state.

    Args:
        stream: a stream without batches; if it is mapped, the last ``map()`` needs ``element_spec=``. The dataset has
            the stream's shard.

    Raises:
        InvalidArgumentError: if the stream has batches, or is mapped without a declared element spec.
        InvalidTypeError: if elements are not dicts, or Arrow has no type for a leaf.
    """
    check_stream(stream)
    reader = reader_of(stream)
    if reader.options.batched:
        raise InvalidArgumentError("to_iterable_dataset() of batches: leave global_batch_size out, and call .batch()")
    if reader.is_mapped:
        spec = _spec_of_mapped(stream)
        features = _features_of_spec(spec)
    else:
        reader = replace(reader, records=_stored(reader.records))
        spec, features = reader.records.element_spec, _features_of(reader.records)
    # A separate stream object, because each one remembers whether it was iterated over.
    return StreamIterableDataset(Examples(Stream(reader), spec, features), info=datasets.DatasetInfo(features=features))


def _spec_of_mapped(stream: Stream[Any]) -> Tree:
    spec = stream.element_spec
    if spec is None:
        raise InvalidArgumentError(
            "to_iterable_dataset() of a mapped stream needs to know what the function returns: pass element_spec= to "
            "map(), or map() the datasets.IterableDataset"
        )
    encoded = next((path for path, leaf in tree.leaves(spec) if isinstance(leaf, EncodedSpec)), None)
    if encoded is not None:
        raise InvalidArgumentError(f"element_spec{encoded} of map() is a file: declare the array that map() returns")
    return spec


def _stored(records: RandomAccess[Any]) -> RandomAccess[Any]:
    """Return the records of a version with images and sounds as the bytes of their files."""
    stored = records.stored()
    return records if stored is None or not _has_whole_records(records) else records_of(stored)


def _has_whole_records(records: RandomAccess[Any]) -> bool:
    """Return whether elements have all leaves of the records of one version, as its features say."""
    base = getattr(records, "base", None)
    return isinstance(base, RecordElements) and isinstance(base.source, VersionRecords) and base.chosen is None


def _features_of(records: RandomAccess[Any]) -> datasets.Features:
    """Return the features that were cached, or else those that the element spec implies."""
    kept = records.metadata.get(METADATA) if _has_whole_records(records) else None
    return _features_of_spec(records.element_spec) if kept is None else datasets.Features.from_dict(kept)


def _features_of_spec(spec: Tree) -> datasets.Features:
    if not isinstance(spec, dict):
        raise InvalidTypeError(f"rows of a datasets.Dataset are dicts; elements are {tree.describe(spec)}")
    return datasets.Features({name: feature_of(leaf, f"[{name!r}]") for name, leaf in spec.items()})
