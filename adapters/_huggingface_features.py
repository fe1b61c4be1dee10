"""Convert features of Hugging Face ``datasets`` to element specs, and their Arrow arrays to leaves and back."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from cachelayer.adapters._arrow_arrays import arrow_array, arrow_type
from cachelayer.adapters._arrow_columns import Lists, check_structs, dtype_of, leaf_spec
from cachelayer.adapters._python_rows import Unreadable, file_of
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.records import tree
from cachelayer.records.spec import ArraySpec, AudioSpec, EncodedSpec, ImageSpec, RaggedSpec
from cachelayer.records.tree import Tree

_ARRAYS = (datasets.Array2D, datasets.Array3D, datasets.Array4D, datasets.Array5D)
_LISTS = (datasets.List, datasets.LargeList)
_FILES = (datasets.Image, datasets.Audio)


def _plain(feature: Any) -> Any:
    """Return the dict that a translation feature stands for; return any other feature unchanged."""
    if isinstance(feature, datasets.Translation):
        return {language: datasets.Value("string") for language in sorted(feature.languages)}
    if isinstance(feature, datasets.TranslationVariableLanguages):
        return {name: datasets.List(datasets.Value("string")) for name in ("language", "translation")}
    return feature


def spec_of(feature: Any, path: str, dims: tuple[int | None, ...] = ()) -> Tree:
    """Return the spec of a feature that is inside lists of the lengths ``dims``.

    Raises:
        InvalidTypeError: if a leaf cannot be stored; names its path.
    """
    feature = _plain(feature)
    if feature == {} and dims:
        raise InvalidTypeError(
            f"leaf {path} is a list of dicts without keys, so its length would be lost: leave it out"
        )
    if isinstance(feature, dict):
        return {name: spec_of(child, f"{path}[{name!r}]", dims) for name, child in feature.items()}
    if isinstance(feature, _LISTS):
        length = getattr(feature, "length", -1)
        return spec_of(feature.feature, path, (*dims, None if length < 0 else length))
    if isinstance(feature, _FILES):
        return _encoded_spec(feature, path) if feature.decode and not dims else leaf_spec(bytes, dims)
    if isinstance(feature, _ARRAYS):
        return leaf_spec(dtype_of(datasets.Value(feature.dtype).pa_type, path), (*dims, *feature.shape))
    if isinstance(feature, (datasets.Value, datasets.ClassLabel, datasets.Json)):
        kind = feature.pa_type
        if kinds.is_null(kind) and not dims:
            return None
        return leaf_spec(dtype_of(kind, path), dims)
    raise InvalidTypeError(
        f"leaf {path} is a {type(feature).__name__}, which is not stored: leave it out with remove_columns(), or "
        "turn it into arrays with map()"
    )


def encoded(feature: Any, value: Any) -> Any:
    """Return a value as its feature stores it: the number of a label, the bytes of a file. What does not fit stays."""
    if value is None:
        return None
    try:
        return _encoded(feature, value)
    except Exception as error:  # noqa: BLE001 - features raise anything
        return Unreadable(f"{tree.describe(value)} ({type(error).__name__}: {error})")


def _encoded(feature: Any, value: Any) -> Any:
    if isinstance(feature, datasets.TranslationVariableLanguages):
        value = feature.encode_example(value)
    feature = _plain(feature)
    if isinstance(feature, dict):
        if not isinstance(value, dict):
            return value
        return {name: encoded(feature[name], child) if name in feature else child for name, child in value.items()}
    if isinstance(feature, _LISTS):
        inner = feature.feature
        if isinstance(value, (list, tuple)) and not isinstance(inner, datasets.Value):
            return [encoded(inner, child) for child in value]
        return _of_dtype(inner, value)
    if isinstance(feature, _FILES):
        stored = feature.encode_example(file_of(value))
        if stored["bytes"] is None:
            kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
            stored = feature.embed_storage(pa.array([stored], kind))[0].as_py()
        return stored["bytes"]
    if isinstance(feature, datasets.Json):
        text = feature.encode_example(value)
        return text if json.loads(text) == value else value
    return feature.encode_example(value) if isinstance(feature, datasets.ClassLabel) else _of_dtype(feature, value)


def _of_dtype(feature: Any, value: Any) -> Any:
    """Return numpy's numbers in the dtype of a feature, if it holds them: floats may be rounded."""
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


def leaves_of(feature: Any, lists: Lists, path: str) -> Iterator[Lists]:
    """Yield the values of each leaf below a feature, in the order of its spec."""
    feature = _plain(feature)
    if isinstance(feature, dict):
        if lists.levels:
            lists.check_whole(path)
        check_structs(path, lists)
        # flatten() gives the nulls of a struct to its fields.
        parts = dict(zip((field.name for field in lists.values.type), lists.values.flatten(), strict=True))
        for name, child in feature.items():
            yield from leaves_of(child, replace(lists, values=parts[name]), f"{path}[{name!r}]")
    elif isinstance(feature, _LISTS):
        yield from leaves_of(feature.feature, lists.unnested(path), path)
    elif isinstance(feature, _ARRAYS):
        lists = replace(lists, values=lists.values.storage)
        for _ in feature.shape:
            lists = lists.unnested(path)
        yield lists
    elif isinstance(feature, _FILES):
        yield replace(lists, values=_file_bytes(feature, lists, path))
    elif not kinds.is_null(lists.values.type):
        yield lists


def _file_bytes(feature: Any, lists: Lists, path: str) -> pa.Array:
    """Return the bytes of each file; read the files that are given only by name."""
    data, names = lists.values.flatten()[:2]
    missing = np.flatnonzero(pc.and_(pc.is_null(data), pc.is_valid(names)).to_numpy(zero_copy_only=False))
    if len(missing) == 0:
        return data
    whole = data.to_pylist()
    for place in missing.tolist():
        try:
            whole[place] = feature.embed_storage(lists.values.slice(place, 1)).field("bytes")[0].as_py()
        except Exception as error:
            record = lists.row_of(place, len(lists.levels))
            got = f"{names[place]}, which cannot be read: {type(error).__name__}: {error}"
            raise ElementError("a file", got, path=path, record=record) from error
    return pa.array(whole, data.type)


def _encoded_spec(feature: Any, path: str) -> EncodedSpec:
    try:
        if isinstance(feature, datasets.Image):
            return ImageSpec(feature.mode or "RGB")
        return AudioSpec(feature.sampling_rate, feature.num_channels)
    except InvalidArgumentError as error:
        raise InvalidTypeError(f"leaf {path}: {error}") from error


def feature_of(spec: Tree, path: str) -> Any:
    """Return the feature of a spec that did not come from ``datasets``.

    Raises:
        InvalidTypeError: if there is no feature for a leaf.
    """
    if isinstance(spec, dict):
        return {name: feature_of(child, f"{path}[{name!r}]") for name, child in spec.items()}
    if spec is None:
        return datasets.Value("null")
    if isinstance(spec, ImageSpec):
        return datasets.Image(mode=spec.mode)
    if isinstance(spec, AudioSpec):
        return datasets.Audio(sampling_rate=spec.sampling_rate, num_channels=spec.channels)
    if not isinstance(spec, (ArraySpec, RaggedSpec)):
        raise InvalidTypeError(f"leaf {path}: datasets has no feature for {tree.describe(spec)}")
    try:
        kind = arrow_type(spec.dtype)
        feature: Any = datasets.Features.from_arrow_schema(pa.schema({"leaf": kind}))["leaf"]
    except (pa.ArrowException, NotImplementedError, ValueError, TypeError) as error:
        raise InvalidTypeError(f"leaf {path}: datasets has no feature for {spec.describe()}") from error
    for dim in reversed(spec.shape):
        feature = datasets.List(feature, -1 if dim is None else dim)
    return feature


def arrow_of(feature: Any, values: Any, rows: int, path: str) -> pa.Array:
    """Return the Arrow array of a feature, from leaves stacked on a leading axis.

    Raises:
        InvalidTypeError: if Arrow cannot hold a value; names the path of the leaf.
    """
    feature = _plain(feature)
    if feature == {}:
        return pa.StructArray.from_buffers(pa.struct([]), rows, [None])
    if isinstance(feature, dict):
        children = feature.items()
        return _struct({name: arrow_of(child, values[name], rows, f"{path}[{name!r}]") for name, child in children})
    if values is None:
        return pa.nulls(rows)
    lists, inner = [], feature
    while isinstance(inner, _LISTS):
        lists.append(inner)
        inner = _plain(inner.feature)
    if isinstance(inner, dict):
        parts = {
            name: arrow_of(_within(lists, child), values[name], rows, f"{path}[{name!r}]")
            for name, child in inner.items()
        }
        return _joined_inside_lists(parts, len(lists), _struct)
    if isinstance(inner, _FILES):
        data = arrow_of(_within(lists, datasets.Value("binary")), values, rows, path)
        return _joined_inside_lists({"bytes": data}, len(lists), _file)
    return arrow_array(_type_of(feature), values, path)


def stored_table(features: datasets.Features, batch: Any, rows: int) -> pa.Table:
    """Return a batch as a table.

    Raises:
        InvalidTypeError: if Arrow cannot hold a value; names the path of the leaf.
    """
    arrays = []
    for name, feature in features.items():
        try:
            arrays.append(arrow_of(feature, batch[name], rows, f"[{name!r}]"))
        except UnicodeEncodeError as error:
            raise InvalidTypeError(
                f"leaf [{name!r}] has a str that is not UTF-8, which Arrow cannot hold: {error}"
            ) from error
    return pa.Table.from_arrays(arrays, schema=features.arrow_schema)


def _within(lists: list[Any], feature: Any) -> Any:
    for outer in reversed(lists):
        feature = replace(outer, feature=feature)
    return feature


def _type_of(feature: Any) -> pa.DataType:
    return datasets.Features({"leaf": feature}).arrow_schema.field("leaf").type


def _struct(parts: dict[str, pa.Array]) -> pa.Array:
    return pa.StructArray.from_arrays(list(parts.values()), list(parts))


def _file(parts: dict[str, pa.Array]) -> pa.Array:
    data = parts["bytes"]
    fields = [pa.field("bytes", pa.binary()), pa.field("path", pa.string())]
    return pa.StructArray.from_arrays([data, pa.nulls(len(data), pa.string())], fields=fields, mask=data.is_null())


def _joined_inside_lists(
    parts: dict[str, pa.Array], depth: int, join: Callable[[dict[str, pa.Array]], pa.Array]
) -> pa.Array:
    """Join arrays inside ``depth`` levels of lists, and return the lists of the joined values."""
    if depth == 0:
        return join(parts)
    first = next(iter(parts.values()))
    inner = _joined_inside_lists({name: array.values for name, array in parts.items()}, depth - 1, join)
    mask = first.is_null()
    if kinds.is_fixed_size_list(first.type):
        return pa.FixedSizeListArray.from_arrays(inner, first.type.list_size, mask=mask)
    return type(first).from_arrays(first.offsets, inner, mask=mask)
