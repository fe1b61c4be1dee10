"""Read Hugging Face ``datasets`` as sources, and turn records into a ``datasets.Dataset``.

``storage.cache(dataset, ...)`` takes a ``Dataset`` or an ``IterableDataset`` as it is, in Arrow batches. Images and
sounds stay the bytes of their files; reading decodes them. The metadata of the version hold the features, which
:func:`to_datasets` gives back.
"""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Iterator, Sequence
from decimal import Decimal
from functools import partial
from itertools import chain, islice
from pathlib import Path
from typing import Any

import numpy as np

from cachelayer.adapters.frameworks.stream_or_ref import check_ref, warn_of_steps
from cachelayer.builds.as_source import Adapted
from cachelayer.builds.batches import BATCH_NBYTES, batch_records
from cachelayer.builds.source import Source, read_once
from cachelayer.datasets.table import Table
from cachelayer.datasets.version_records import VersionRecords
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import DatasetRows, records_of
from cachelayer.records.media import undeclared_image
from cachelayer.records.pictures import bytes_of
from cachelayer.specs import tree
from cachelayer.specs.spec import (
    FEATURES,
    ArraySpec,
    AudioSpec,
    ImageSpec,
    JsonSpec,
    LeafSpec,
    VideoSpec,
    said_of_columns,
)
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import BadValue
from cachelayer.support.arguments import explains_options
from cachelayer.support.extras import packages_of
from cachelayer.support.user_warnings import warn
from cachelayer.views.view import View

with packages_of("huggingface", "this needs Hugging Face datasets"):
    import datasets
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.types as kinds

    from cachelayer.adapters.frameworks.arrow_arrays import table_of
    from cachelayer.adapters.sources.arrow_columns import FileLeaf, FileLeaves, spec_of, with_declared
    from cachelayer.adapters.sources.arrow_schema import kept_fields, schema_metadata
    from cachelayer.adapters.sources.arrow_source import (
        ArrowPart,
        columns_of,
        rows_of_table,
        source_of_parts,
        source_of_rows,
    )
    from cachelayer.adapters.sources.arrow_types import dtype_of, type_of

__all__ = ["as_source", "to_datasets"]

ROWS_AT_ONCE = 256
_FILES_AT_ONCE = 64
_ARRAYS = (datasets.Array2D, datasets.Array3D, datasets.Array4D, datasets.Array5D)
_LISTS = (datasets.List, datasets.LargeList)
_FILES = (datasets.Image, datasets.Audio, datasets.Video)
_VALUES = (datasets.Value, datasets.ClassLabel, datasets.Json, *_ARRAYS)


# Datasets of Hugging Face as sources.


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Adapted:
    """Return the source of a ``Dataset`` or ``IterableDataset``, or each split of a dict of them; else None.

    Examples:
        >>> import datasets
        >>> data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": [1, 0]})
        >>> ref = cachelayer.Storage(folder).cache(data, "texts@v1")
        >>> ref[0]
        {'text': 'a', 'label': np.int64(1)}
    """
    if isinstance(obj, (datasets.DatasetDict, datasets.IterableDatasetDict)):
        return {str(split): dataset for split, dataset in obj.items()}
    if not isinstance(obj, (datasets.Dataset, datasets.IterableDataset)):
        return None
    if unbatch:
        raise InvalidArgumentError("unbatch=True: rows of a datasets.Dataset are elements already; leave it out")
    if isinstance(obj, datasets.Dataset):
        return _source_of_dataset(_without_format(obj), element_spec)
    if getattr(getattr(obj._ex_iterable, "function", None), "__name__", "") == "_batch_fn":
        warn_of_steps("IterableDataset", [".batch()"])
    if obj._starting_state_dict is not None:
        raise InvalidArgumentError("the IterableDataset continues from a state, so its first rows would be missing")
    if obj._ex_iterable.iter_arrow is None:
        # datasets would turn each row that comes from Python into a table with its own schema.
        return _source_of_python_rows(obj, element_spec)
    return _source_of_tables(obj, element_spec)


def _source_of_dataset(dataset: datasets.Dataset, declared: Tree | None) -> Source:
    """Return the source of a ``Dataset``, which reads whole columns of Arrow: rows would cost many times more."""
    first = None
    if len(dataset) and _needs_first_row(dataset.features, declared):
        [first] = dataset.with_format("arrow")[:1].to_pylist()
    leaves, spec = _leaves_and_spec(dataset.features, declared, first)
    nbytes = len(dataset) * dataset.data.nbytes // max(1, dataset.data.num_rows)
    if leaves:
        # The files of images and sounds may be elsewhere, and of any size.
        nbytes = max(nbytes, len(dataset) * BATCH_NBYTES // _FILES_AT_ONCE)
    fetch = partial(_rows_of_dataset, dataset.with_format("arrow"))
    columns = partial(columns_of, leaves, None)
    return source_of_rows("datasets", len(dataset), nbytes, fetch, columns, spec, _kept(dataset.features, spec))


def _kept(features: Any, spec: Tree) -> dict[str, Any]:
    whole = datasets.Features(features)
    # Extension types of features are arrays of a known shape, which the element spec has.
    fields = [field for field in whole.arrow_schema if not isinstance(field.type, pa.BaseExtensionType)]
    return {FEATURES: whole.to_dict(), **schema_metadata(pa.schema(fields), spec)}


def _rows_of_dataset(dataset: datasets.Dataset, rows: slice | Sequence[int]) -> pa.RecordBatch:
    return rows_of_table(dataset[rows if isinstance(rows, slice) else list(rows)], slice(None))


def _source_of_tables(dataset: datasets.IterableDataset, declared: Tree | None) -> Source:
    """Return the source of an ``IterableDataset`` of Arrow tables; its first rows decide features that it lacks."""
    tables = _unchanged(dataset, "arrow").iter(ROWS_AT_ONCE)
    batches: Iterator[Any] = (batch for table in tables for batch in table.to_batches())
    features = dataset.features
    first: list[Any] = []
    if features is None or _needs_first_row(features, declared):
        first = list(islice(batches, 1))
        batches = chain(first, batches)
    if features is None:
        features = datasets.Features.from_arrow_schema(first[0].schema) if first else datasets.Features()
    leaves, spec = _leaves_and_spec(features, declared, first[0][:1].to_pylist()[0] if first else None)
    part = ArrowPart("", datasets.Features(features).arrow_schema, lambda _: batches)
    return source_of_parts("datasets", [part], spec, leaves, _kept(features, spec))


def _without_format(dataset: datasets.Dataset) -> datasets.Dataset:
    form = dataset.format
    if form["type"] == "custom":
        raise InvalidArgumentError(
            "the dataset has a transform, which runs when rows are read: store its results with dataset.map()"
        )
    if set(form["columns"]) != set(dataset.column_names) and not form["output_all_columns"]:
        dataset = dataset.select_columns(form["columns"])
    return dataset.with_format(None)


def _source_of_python_rows(dataset: datasets.IterableDataset, declared: Tree | None) -> Source:
    """Return the source of rows of a generator or ``map()``; without features, the first rows decide the spec."""
    features = dataset.features
    rows = iter(_unchanged(dataset))
    if features is not None:
        rows = map(partial(_as_stored, features), rows)
        first = list(islice(rows, _needs_first_row(features, declared)))
        rows = chain(first, rows)
        _, spec = _leaves_and_spec(features, declared, first[0] if first else None)
        return Source("datasets", read_once(rows), element_spec=spec, metadata=_kept(features, spec))
    return Source("datasets", read_once(rows), as_json=True)


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


# Features of Hugging Face as element specs, and values as features store them.


def _plain(feature: Any) -> Any:
    """Return the dict that a translation feature stands for; return any other feature unchanged."""
    if isinstance(feature, datasets.Translation):
        return {language: datasets.Value("string") for language in sorted(feature.languages)}
    if isinstance(feature, datasets.TranslationVariableLanguages):
        return {name: datasets.List(datasets.Value("string")) for name in ("language", "translation")}
    return feature


def _needs_first_row(features: Any, declared: Tree | None) -> bool:
    """Return whether there are images whose mode neither their feature nor the user declares."""
    known = {} if declared is None else dict(tree.leaf_values(declared))
    leaves = _file_leaves(dict(features), "", None)
    return any(leaf.spec == ImageSpec() and path not in known for path, leaf in leaves)


def _leaves_and_spec(features: Any, declared: Tree | None, first: Any = None) -> tuple[FileLeaves, Tree]:
    """Return the leaves that are files, and the declared spec, or that of the features and perhaps a first row."""
    leaves = dict(_file_leaves(dict(features), "", first))
    own = spec_of(pa.struct(list(datasets.Features(features).arrow_schema)), leaves)
    return leaves, with_declared(own, declared)


def _file_leaves(feature: Any, path: str, first: Any, *, within: bool = False) -> Iterator[tuple[str, FileLeaf]]:
    feature = _plain(feature)
    if isinstance(feature, dict):
        for name, child in feature.items():
            of_child = first.get(name) if isinstance(first, dict) else None
            yield from _file_leaves(child, f"{path}[{name!r}]", of_child, within=within)
    elif isinstance(feature, _LISTS):
        yield from _file_leaves(feature.feature, path, None, within=True)
    elif isinstance(feature, _FILES):
        yield path, FileLeaf(_file_spec(feature, path, first), partial(_file_bytes, feature, path))
    elif not isinstance(feature, _VALUES):
        raise InvalidTypeError(
            f"leaf {path} is a {type(feature).__name__}, which is not stored: leave it out with remove_columns(), or "
            "turn it into arrays with map()"
        )
    elif within and feature == datasets.Value("null"):
        raise InvalidTypeError(f"leaf {path} has Arrow's type null, which is not stored: it holds only nulls")


def _file_spec(feature: Any, path: str, first: Any) -> LeafSpec:
    """Return the spec of a leaf of files; ``first`` is the first of them, as a struct or as its bytes, or None."""
    if not feature.decode:
        return ArraySpec(bytes)
    try:
        if isinstance(feature, datasets.Image) and feature.mode is None and first is not None:
            files = pa.array([first], feature.pa_type) if isinstance(first, dict) else None
            return undeclared_image(path, first if files is None else _file_bytes(feature, path, files)[0].as_py())
        if isinstance(feature, datasets.Image):
            return ImageSpec(feature.mode or "RGB")
        if isinstance(feature, datasets.Video):
            return VideoSpec()
        return AudioSpec(feature.sampling_rate, feature.num_channels)
    except InvalidArgumentError as error:
        raise InvalidTypeError(f"leaf {path}: {error}") from error


def _file_bytes(feature: Any, path: str, files: pa.StructArray) -> pa.Array:
    """Return the bytes of each file; read the files that are given only by name."""
    data, names = files.flatten()[:2]
    if not pc.any(pc.and_(pc.is_null(data), pc.is_valid(names))).as_py():
        return data
    try:
        return feature.embed_storage(files).field("bytes")
    except Exception as error:
        got = f"{names[0]}, which cannot be read: {type(error).__name__}: {error}"
        raise ElementError("a file", got, path=path) from error


def _as_stored(feature: Any, value: Any) -> Any:
    """Return a value as its feature stores it: the number of a label, the bytes of a file. What does not fit stays."""
    if value is None:
        return None
    try:
        return _encoded(feature, value)
    except Exception as error:  # noqa: BLE001 - features raise anything
        return BadValue(f"{tree.describe(value)} ({type(error).__name__}: {error})")


def _encoded(feature: Any, value: Any) -> Any:
    if isinstance(feature, datasets.TranslationVariableLanguages):
        value = feature.encode_example(value)
    feature = _plain(feature)
    if isinstance(feature, dict):
        if not isinstance(value, dict):
            return value
        whole = {**dict.fromkeys(feature), **value}
        return {name: _as_stored(feature[name], child) if name in feature else child for name, child in whole.items()}
    if isinstance(feature, _LISTS):
        inner = feature.feature
        if isinstance(value, (list, tuple)) and not isinstance(inner, datasets.Value):
            return [_as_stored(inner, child) for child in value]
        return _of_dtype(inner, value)
    if isinstance(feature, _FILES):
        # A picture that has a file is that file for datasets too, which turns it as its Exif says.
        stored = feature.encode_example(value if getattr(value, "filename", "") else bytes_of(value))
        if stored["bytes"] is None:
            kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
            stored = feature.embed_storage(pa.array([stored], kind))[0].as_py()
        return stored["bytes"]
    return feature.encode_example(value) if isinstance(feature, datasets.ClassLabel) else _of_dtype(feature, value)


def _of_dtype(feature: Any, value: Any) -> Any:
    """Return numpy's numbers in the dtype of a feature, if it holds them: floats may be rounded; decimals as floats."""
    if isinstance(feature, datasets.Value) and kinds.is_decimal(feature.pa_type):
        return _float_of_decimal(feature.pa_type, value)
    if not isinstance(feature, (datasets.Value, *_ARRAYS)) or not isinstance(value, (np.ndarray, np.generic)):
        return value
    dtype = dtype_of(datasets.Value(feature.dtype).pa_type, "")
    if not isinstance(dtype, np.dtype) or dtype == value.dtype or not {dtype.kind, value.dtype.kind} <= {*"iuf"}:
        return value
    with np.errstate(all="ignore"):
        cast: Any = value.astype(dtype)
    is_rounded = dtype.kind == value.dtype.kind == "f" and bool((np.isinf(cast) == np.isinf(value)).all())
    same = np.array_equal(cast.astype(value.dtype), value, equal_nan=value.dtype.kind == "f")
    return cast if is_rounded or (same and np.array_equal(cast < 0, np.asarray(value) < 0)) else value


def _float_of_decimal(kind: pa.DataType, value: Any) -> Any:
    """Return the float of a decimal that a type holds, or those of a list; raise an ArrowInvalid if it does not."""
    if isinstance(value, (list, tuple)):
        return [_float_of_decimal(kind, each) for each in value]
    return float(pa.scalar(value, kind).as_py()) if isinstance(value, Decimal) else value


# Records as a dataset of Hugging Face.


@explains_options
def to_datasets(ref: View[Any], *, cache_dir: str | os.PathLike[str] | None = None) -> datasets.Dataset:
    """Return a ``datasets.Dataset`` of the records, with the features that were cached: a memory-mapped Arrow file.

    The first call writes the file, and later calls find it again, because its name derives from the digest.

    Args:
        ref: a DataRef, or a part of one; its elements must be dicts.
        cache_dir: the folder of the file; by default a folder in the cache of ``datasets``.

    Raises:
        InvalidTypeError: if elements are not dicts, or Arrow has no type for a leaf.

    Examples:
        >>> import datasets
        >>> from cachelayer.adapters.huggingface import to_datasets
        >>> data = datasets.Dataset.from_dict({"text": ["a", "b"], "label": ["no", "yes"]}).class_encode_column("label")
        >>> ref = cachelayer.Storage(folder / "cache").cache(data, "texts@v1")
        >>> again = to_datasets(ref[1:], cache_dir=folder / "arrow")
        >>> again[0], again.features["label"].names
        ({'text': 'b', 'label': 1}, ['no', 'yes'])
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
                size = batch_records(records.info.read_nbytes, ROWS_AT_ONCE)
                for start in range(0, len(records), size):
                    rows = np.arange(start, min(start + size, len(records)))
                    writer.write_table(table_of(schema, records.batch(rows), len(rows)))
            written.replace(path)
        finally:
            written.unlink(missing_ok=True)
    return datasets.Dataset.from_file(str(path))


def _stored(records: DatasetRows[Any]) -> DatasetRows[Any]:
    """Return the records of a version with images and sounds as the bytes of their files."""
    stored = records.undecoded()
    return records if stored is None or not _has_whole_records(records) else stored


def _has_whole_records(records: DatasetRows[Any]) -> bool:
    """Return whether elements have all leaves of the records of one version, as its features say, none in one size."""
    base = getattr(records, "base", None)
    if not isinstance(base, Table) or not isinstance(base.shards, VersionRecords):
        return False
    return base.chosen is None and not any(group.image_sizes for group in base.groups)


def _features_of(records: DatasetRows[Any]) -> datasets.Features:
    """Return the features that were cached, or else those that the types of Arrow or the element spec imply."""
    spec = records.element_spec
    metadata = records.info.metadata
    if not isinstance(spec, dict):
        raise InvalidTypeError(f"rows of a datasets.Dataset are dicts; elements are {tree.describe(spec)}")
    kept = kept_fields(metadata, spec)
    features = {name: _feature_of(leaf, f"[{name!r}]") for name, leaf in spec.items()}
    features |= {name: _feature_of_field(field, features[name]) for name, field in kept.items()}
    if _has_whole_records(records):
        own = {name: feature for name, feature in said_of_columns(metadata, FEATURES).items() if name in spec}
        features |= datasets.Features.from_dict(own)
    return datasets.Features(features)


def _feature_of(spec: Tree, path: str) -> Any:
    """Return the feature of a spec that did not come from ``datasets``."""
    if isinstance(spec, dict):
        return {name: _feature_of(child, f"{path}[{name!r}]") for name, child in spec.items()}
    if isinstance(spec, JsonSpec):
        return datasets.Json()
    if isinstance(spec, ImageSpec):
        if not spec.upright:
            warn(f"leaf {path}: datasets turns images as their Exif says, which upright=False does not")
        return datasets.Image(mode=spec.mode)
    if isinstance(spec, AudioSpec):
        return datasets.Audio(sampling_rate=spec.sampling_rate, num_channels=spec.channels)
    return datasets.Features.from_arrow_schema(pa.schema({"leaf": type_of(spec, path)}))["leaf"]


def _feature_of_field(field: pa.Field, own: Any) -> Any:
    """Return the feature of a column that came with a type of Arrow; ``own`` is the one that its spec implies."""
    if kinds.is_dictionary(field.type):
        warn(
            f"column {field.name!r} came as categories, which datasets has no feature for: it becomes {own}; "
            f"cast_column({field.name!r}, ClassLabel(names=[...])) makes numbers of them"
        )
        return own
    try:
        return datasets.Features.from_arrow_schema(pa.schema([field]))[field.name]
    except (NotImplementedError, TypeError, ValueError):
        if not isinstance(field.type, pa.BaseExtensionType):
            warn(f"column {field.name!r} came as {field.type}, which datasets has no feature for: it becomes {own}")
        return own
