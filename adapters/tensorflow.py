"""Read ``tf.data`` datasets as sources, and turn streams into ``tf.data`` datasets.

``storage.cache(dataset, ...)`` takes a ``tf.data.Dataset`` as it is. :func:`to_tf` turns a stream into a dataset with
the element spec that was cached, so that code after it need not change.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from cachelayer.adapters.frameworks.stream_or_ref import warn_of_steps
from cachelayer.builds.batches import Batch, EncodedBatch, RowBatch, batch_records
from cachelayer.builds.source import Source
from cachelayer.errors import (
    CacheLayerError,
    InvalidArgumentError,
    InvalidTypeError,
    SourceError,
)
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.composite_codecs import ArrayLeafCodec, RaggedLeafCodec, SparseLeafCodec
from cachelayer.records.infer import spec_of_source
from cachelayer.records.leaf_codecs import leaf_codec_for
from cachelayer.records.leaf_columns import Column, Columns, FlatRows
from cachelayer.specs import tree
from cachelayer.specs.spec import ArraySpec, EncodedSpec, LeafSpec, RaggedSpec, SparseSpec, is_static
from cachelayer.specs.tree import Tree
from cachelayer.support.extras import packages_of
from cachelayer.support.locks import cached_property

with packages_of("tensorflow", "this needs TensorFlow"):
    import tensorflow as tf

    from cachelayer.adapters.frameworks.tensorflow_out import can_batch
    from cachelayer.adapters.frameworks.tensorflow_out import to_tf as to_tf

__all__ = ["as_source", "to_tf"]

_DYNAMIC_BATCH = 256
_RANDOM = re.compile("Random|Multinomial|TruncatedNormal|StandardNormal|DistortedBoundingBox|StatefulUniform")
"""In the names of TensorFlow's operations that draw."""


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Source | None:
    """Return the source of a ``tf.data.Dataset``; None for anything else.

    Examples:
        >>> import tensorflow as tf
        >>> data = tf.data.Dataset.from_tensor_slices({"x": [[1.0, 2.0], [3.0, 4.0]], "label": [0, 1]})
        >>> ref = cachelayer.Storage(folder).cache(lambda: data.shuffle(10, seed=1), "pairs@v1")
        >>> len(ref), ref.element_spec
        (2, {'x': ArraySpec(float32, (2,)), 'label': ArraySpec(int32)})
    """
    if not isinstance(obj, tf.data.Dataset):
        return None
    warn_of_steps("tf.data.Dataset", _steps_of(obj, are_rows=unbatch))
    source = source_of_pipeline(unbatched(obj) if unbatch else obj, element_spec)
    # Of keras.utils.image_dataset_from_directory() and the like.
    classes = getattr(obj, "class_names", None)
    return source if classes is None else replace(source, metadata={"classes": list(classes)})


def _steps_of(dataset: Any, *, are_rows: bool) -> Iterator[str]:
    """Yield the steps that shuffle, draw at random, or make batches, unless a later step takes those apart."""
    name = type(dataset).__name__.lower()
    takes_apart = any(part in name for part in ("unbatch", "flatmap", "interleave"))
    for before in dataset._inputs():
        yield from _steps_of(before, are_rows=are_rows or takes_apart)
    if "shuffle" in name:
        yield ".shuffle()"
    if hasattr(dataset, "_map_func") and _draws(dataset._map_func.function):
        yield ".map()"
    if not are_rows and not takes_apart and ("batch" in name or "groupbywindow" in name):
        yield ".batch()"


def _draws(function: Any) -> bool:
    """Return whether a function of TensorFlow draws random numbers, in the functions that it calls too."""
    graph = function.graph.as_graph_def()
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    return any(_RANDOM.search(node.op) for node in nodes)


def unbatched(batches: Any) -> Any:
    """Return the rows of a dataset's batches.

    TensorFlow's own ``unbatch`` crashes the process if rows are empty arrays.
    """
    is_tuple = type(batches.element_spec) is tuple

    def rows(*batch: Any) -> Any:
        return tf.data.Dataset.from_tensor_slices(batch if is_tuple else batch[0])

    try:
        flat = batches.flat_map(rows)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"unbatch=True: the tf.data.Dataset has no batches to split, but {batches.element_spec}: leave it out"
        ) from error
    if int(batches.cardinality()) == tf.data.INFINITE_CARDINALITY:
        # TensorFlow does not know how many rows a batch has, and forgets that there is no last one.
        flat = flat.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    return flat


def source_of_pipeline(dataset: Any, declared: Tree | None) -> Source:
    """Return the source of a ``tf.data.Dataset``, in the spec that a user declares, or its own."""
    own = _from_tf_spec(dataset.element_spec, dataset)
    spec = spec_of_source("this tf.data.Dataset", own, declared, _fits)
    cardinality = int(dataset.cardinality())
    is_endless = cardinality == tf.data.INFINITE_CARDINALITY
    return Source(
        "tf.data",
        _PipelineReader(dataset, spec).read,
        element_spec=spec,
        length=cardinality if cardinality >= 0 else None,
        endless="remove .repeat() of the tf.data.Dataset" if is_endless else "",
    )


@dataclass(frozen=True, eq=False)
class _PipelineReader:
    """Reads a dataset in batches: reading element by element costs many times more."""

    dataset: Any
    element_spec: Tree

    @cached_property
    def _leaves(self) -> list[LeafSpec]:
        return [leaf for _, leaf in tree.leaves(self.element_spec)]

    @cached_property
    def _codec(self) -> Codec:
        return codec_for(self.element_spec)

    @property
    def _stacks(self) -> bool:
        """True if every leaf has the same shape in all elements, so that batches are plain tensors."""
        return all(isinstance(leaf, ArraySpec) and None not in leaf.shape for leaf in self._leaves)

    def read(self, _: int, stop: int | None) -> Iterator[Batch]:
        """Return an iterator over the elements, in batches."""
        dataset = _without_graph_rewrites(self.dataset if stop is None else self.dataset.take(stop))
        if self._stacks:
            size = batch_records(sum(_static_nbytes(leaf) for leaf in self._leaves))
            return self._pulled(dataset, dataset.batch(size), size, self._stacked)
        # Autograph would rewrite what this calls, for control flow of tensors, which there is none of.
        parts = dataset.map(tf.autograph.experimental.do_not_convert(self._to_parts))
        return self._pulled(dataset, parts.ragged_batch(_DYNAMIC_BATCH), _DYNAMIC_BATCH, self._encoded)

    def _pulled(self, dataset: Any, batched: Any, size: int, convert: Callable[[Any], Batch]) -> Iterator[Batch]:
        first = 0
        iterator = iter(batched.prefetch(2))
        while True:
            try:
                batch = convert(next(iterator))
            except StopIteration:
                return
            except CacheLayerError:
                raise
            except Exception as error:
                raise _located(dataset, first, size, error) from error
            yield batch
            first += len(batch)

    def _stacked(self, batch: Any) -> Batch:
        schema = self._codec.schema
        arrays = list(map(np.asarray, schema.flatten(batch)))
        return RowBatch(schema.pack(arrays), len(arrays[0]))

    def _to_parts(self, *element: Any) -> tuple[Any, ...]:
        """In the graph, return each leaf as one-dimensional tensors, which batch without loss for any shape."""
        value = element if type(self.dataset.element_spec) is tuple else element[0]
        parts = []
        for spec, leaf in zip(self._leaves, self._codec.schema.flatten(value), strict=True):
            if isinstance(spec, RaggedSpec):
                flat = leaf.flat_values
                lengths = tuple(tf.cast(level, tf.int64) for level in leaf.nested_row_lengths())
                parts.append((*lengths, tf.shape(flat, out_type=tf.int64)[1:], tf.reshape(flat, [-1])))
            elif isinstance(spec, SparseSpec):
                parts.append((leaf.dense_shape, tf.reshape(leaf.indices, [-1]), leaf.values))
            else:
                dense = tf.ensure_shape(leaf, spec.shape)
                parts.append((tf.shape(dense, out_type=tf.int64), tf.reshape(dense, [-1])))
        return tuple(parts)

    def _encoded(self, batch: Any) -> Batch:
        columns = [_column(spec, parts) for spec, parts in zip(self._leaves, batch, strict=True)]
        return EncodedBatch(self._codec.encode(Columns(columns, int(batch[0][0].shape[0]))), self.element_spec)


def _without_graph_rewrites(dataset: Any) -> Any:
    """Return the dataset without TensorFlow's default rewrites, unless its options ask for them.

    The rewrites serialise the graph, with every array in it, before the first element. For a dataset made of arrays
    that takes seconds, and a single pass gains almost nothing. Autotuning stays.
    """
    if dataset.options().experimental_optimization.apply_default_optimizations is not None:
        return dataset
    options = tf.data.Options()
    options.experimental_optimization.apply_default_optimizations = False
    return dataset.with_options(options)


def _column(spec: LeafSpec, parts: Any) -> Column:
    codec = leaf_codec_for(spec)
    if isinstance(codec, RaggedLeafCodec):
        *levels, inner, values = parts
        return Column(codec.parts_of_flat_rows(_dense(inner), [*map(_flat, levels), _flat(values)]))
    shapes = _dense(parts[0])
    varying = [_flat(part) for part in parts[1:]]
    if isinstance(codec, (ArrayLeafCodec, SparseLeafCodec)):
        return Column(codec.parts_of_flat_rows(shapes, varying))
    if is_static(spec):
        return Column((varying[0].values.reshape(len(shapes), *(dim or 0 for dim in spec.shape)),))
    return Column(tuple(varying)) if spec.shape else Column(codec.encode(varying[0].values.tolist()))


def _flat(tensor: Any) -> FlatRows:
    if isinstance(tensor, tf.RaggedTensor):
        return FlatRows(tensor.values.numpy(), tensor.row_splits.numpy().astype(np.int64))
    rows, width = tensor.shape
    return FlatRows(tensor.numpy().reshape(-1), np.arange(rows + 1, dtype=np.int64) * width)


def _dense(tensor: Any) -> Any:
    if isinstance(tensor, tf.RaggedTensor):
        tensor = tensor.to_tensor()
    return tensor.numpy().astype(np.int64)


def _located(dataset: Any, first: int, size: int, error: Exception) -> SourceError:
    """Run the pipeline again over the batch that failed, by element, and return an error that names the record."""
    record = first
    try:
        for _ in dataset.skip(first).take(size):
            record += 1
    except Exception as again:  # noqa: BLE001
        return SourceError(f"the tf.data pipeline failed at record {record}: {reason_of(again)}")
    return SourceError(f"the tf.data pipeline failed between records {first} and {record}: {reason_of(error)}")


def reason_of(error: BaseException) -> str:
    """Return the class of a TensorFlow error and the first line of its message, without the name of the node."""
    lines = re.sub(r"^\{\{.*?\}\} ", "", str(error)).splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


def _static_nbytes(leaf: LeafSpec) -> int:
    if not isinstance(leaf.dtype, np.dtype):
        return 64
    return leaf.dtype.itemsize * int(np.prod([dim or 1 for dim in leaf.shape]))


def _from_tf_spec(spec: Any, dataset: Any) -> Tree:
    first: list[Any] = []

    def rank_of(path: str) -> int:
        # The first element decides an unknown rank; the dimensions stay unknown.
        if not first:
            first.extend(dataset.take(1))
        if not first:
            raise InvalidArgumentError(f"leaf {path} has an unknown rank and the dataset is empty: pass element_spec=")
        return int(dict(tree.leaf_values(first[0]))[path].shape.rank)

    def convert(path: str, leaf: Any) -> LeafSpec | None:
        name = tree.leaf_title(path)
        if leaf is None or type(leaf).__name__ == "NoneTensorSpec":
            return None
        if not isinstance(leaf, (tf.TensorSpec, tf.RaggedTensorSpec, tf.SparseTensorSpec)):
            raise InvalidTypeError(f"{name} of the tf.data.Dataset is a {type(leaf).__name__}, which cannot be stored")
        if leaf.dtype in (tf.variant, tf.resource):
            raise InvalidTypeError(f"{name} of the tf.data.Dataset has dtype {leaf.dtype.name}, which cannot be stored")
        if not can_batch(leaf.dtype):
            raise InvalidTypeError(
                f"{name} of the tf.data.Dataset has dtype {leaf.dtype.name}, which TensorFlow cannot batch: "
                "tf.cast() it, or cache arrays of it from a generator"
            )
        dtype = bytes if leaf.dtype == tf.string else leaf.dtype.as_numpy_dtype
        shape = leaf.shape if isinstance(leaf, tf.TensorSpec) else leaf._shape
        dims = (None,) * rank_of(path) if shape.rank is None else tuple(shape)
        try:
            if isinstance(leaf, tf.RaggedTensorSpec) and leaf.ragged_rank > 0:
                splits = leaf.row_splits_dtype.as_numpy_dtype
                return RaggedSpec(dtype, dims, ragged_rank=leaf.ragged_rank, splits_dtype=splits)
            return SparseSpec(dtype, dims) if isinstance(leaf, tf.SparseTensorSpec) else ArraySpec(dtype, dims)
        except CacheLayerError as error:
            raise InvalidTypeError(f"{name} of the tf.data.Dataset: {error}") from error

    return tree.map_structure(spec, convert)


def _fits(own: Tree, wanted: LeafSpec) -> bool:
    if not isinstance(own, LeafSpec):
        return False
    if isinstance(wanted, EncodedSpec) and own.dtype is bytes and not own.shape:
        return True
    return (
        type(own) is type(wanted)
        and own.dtype == wanted.dtype
        and len(own.shape) == len(wanted.shape)
        and all(a is None or b is None or a == b for a, b in zip(own.shape, wanted.shape, strict=True))
    )


def content(obj: Any) -> Any:
    """Return the transformations of a ``tf.data.Dataset``, with their functions; None for anything else."""
    kind = type(obj).__name__
    if kind == "StructuredFunctionWrapper":
        return obj._func
    if kind == "_GeneratorState":
        return obj._generator
    if isinstance(obj, (tf.TypeSpec, tf.DType)):
        return str(obj)
    if not isinstance(obj, tf.data.Dataset):
        return None
    known = (tf.data.Dataset, tf.Tensor, tf.TypeSpec, tf.DType, str, int, float, list, tuple, dict)
    kept = {name: value for name, value in vars(obj).items() if isinstance(value, known) or hasattr(value, "_func")}
    kept.pop("_variant_tensor_attr", None)
    return SimpleNamespace(kind=kind, element_spec=str(obj.element_spec), **kept)
