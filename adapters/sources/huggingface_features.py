"""Convert features of Hugging Face ``datasets`` to element specs and back, and rows to what features store."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal
from functools import partial
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kinds

from cachelayer.adapters.frameworks.arrow_arrays import array_of, type_of
from cachelayer.adapters.sources.arrow_columns import FileLeaf, FileLeaves, dtype_of, spec_of, with_declared
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.records.media import undeclared_image
from cachelayer.records.pictures import bytes_of
from cachelayer.specs import tree
from cachelayer.specs.spec import ArraySpec, AudioSpec, ImageSpec, JsonSpec, LeafSpec, VideoSpec
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import BadValue
from cachelayer.support.user_warnings import warn

ARRAYS = (datasets.Array2D, datasets.Array3D, datasets.Array4D, datasets.Array5D)
LISTS = (datasets.List, datasets.LargeList)
FILES = (datasets.Image, datasets.Audio, datasets.Video)
_VALUES = (datasets.Value, datasets.ClassLabel, datasets.Json, *ARRAYS)


def plain(feature: Any) -> Any:
    """Return the dict that a translation feature stands for; return any other feature unchanged."""
    if isinstance(feature, datasets.Translation):
        return {language: datasets.Value("string") for language in sorted(feature.languages)}
    if isinstance(feature, datasets.TranslationVariableLanguages):
        return {name: datasets.List(datasets.Value("string")) for name in ("language", "translation")}
    return feature


def needs_first_row(features: Any, declared: Tree | None) -> bool:
    """Return whether there are images whose mode neither their feature nor the user declares."""
    known = {} if declared is None else dict(tree.leaf_values(declared))
    leaves = _file_leaves(dict(features), "", None)
    return any(leaf.spec == ImageSpec() and path not in known for path, leaf in leaves)


def leaves_and_spec(features: Any, declared: Tree | None, first: Any = None) -> tuple[FileLeaves, Tree]:
    """Return the leaves that are files, and the declared spec, or that of the features and perhaps a first row."""
    leaves = dict(_file_leaves(dict(features), "", first))
    own = spec_of(pa.struct(list(datasets.Features(features).arrow_schema)), leaves)
    return leaves, with_declared(own, declared)


def _file_leaves(feature: Any, path: str, first: Any, *, within: bool = False) -> Iterator[tuple[str, FileLeaf]]:
    feature = plain(feature)
    if isinstance(feature, dict):
        for name, child in feature.items():
            of_child = first.get(name) if isinstance(first, dict) else None
            yield from _file_leaves(child, f"{path}[{name!r}]", of_child, within=within)
    elif isinstance(feature, LISTS):
        yield from _file_leaves(feature.feature, path, None, within=True)
    elif isinstance(feature, FILES):
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


def encoded(feature: Any, value: Any) -> Any:
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
    feature = plain(feature)
    if isinstance(feature, dict):
        if not isinstance(value, dict):
            return value
        whole = {**dict.fromkeys(feature), **value}
        return {name: encoded(feature[name], child) if name in feature else child for name, child in whole.items()}
    if isinstance(feature, LISTS):
        inner = feature.feature
        if isinstance(value, (list, tuple)) and not isinstance(inner, datasets.Value):
            return [encoded(inner, child) for child in value]
        return _of_dtype(inner, value)
    if isinstance(feature, FILES):
        # A picture that has a file is that file for datasets too, which turns it as its Exif says.
        stored = feature.encode_example(value if getattr(value, "filename", "") else bytes_of(value))
        if stored["bytes"] is None:
            kind = pa.struct({"bytes": pa.binary(), "path": pa.string()})
            stored = feature.embed_storage(pa.array([stored], kind))[0].as_py()
        return stored["bytes"]
    return feature.encode_example(value) if isinstance(feature, datasets.ClassLabel) else _of_dtype(feature, value)


def _of_dtype(feature: Any, value: Any) -> Any:
    """Return numpy's numbers in the dtype of a feature, if it holds them: floats may be rounded."""
    if isinstance(feature, datasets.Value) and kinds.is_decimal(feature.pa_type):
        return _float_of_decimal(feature.pa_type, value)
    if not isinstance(feature, (datasets.Value, *ARRAYS)) or not isinstance(value, (np.ndarray, np.generic)):
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


def feature_of(spec: Tree, path: str) -> Any:
    """Return the feature of a spec that did not come from ``datasets``."""
    if isinstance(spec, dict):
        return {name: feature_of(child, f"{path}[{name!r}]") for name, child in spec.items()}
    if isinstance(spec, JsonSpec):
        return datasets.Json()
    if isinstance(spec, ImageSpec):
        if not spec.upright:
            warn(f"leaf {path}: datasets turns images as their Exif says, which upright=False does not")
        return datasets.Image(mode=spec.mode)
    if isinstance(spec, AudioSpec):
        return datasets.Audio(sampling_rate=spec.sampling_rate, num_channels=spec.channels)
    return datasets.Features.from_arrow_schema(pa.schema({"leaf": type_of(spec, path)}))["leaf"]


def feature_of_field(field: pa.Field, own: Any) -> Any:
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


def table_of(features: datasets.Features, batch: Any, rows: int) -> pa.Table:
    schema = features.arrow_schema
    return pa.Table.from_arrays([array_of(f.type, batch[f.name], rows, f"[{f.name!r}]") for f in schema], schema=schema)
