"""``tf.data.Dataset``s of streams."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import tensorflow as tf

from cachelayer.adapters._handed import check_stream
from cachelayer.elements import tree
from cachelayer.elements.spec import ArraySpec, LeafSpec, RaggedSpec, SparseSpec
from cachelayer.elements.tree import Tree
from cachelayer.elements.values import Ragged, Sparse
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.sequential.stream import Stream

_BLOCK_RECORDS = 512


def to_tf(stream: Stream[Any], *, positions: bool = False) -> tf.data.Dataset:
    """A ``tf.data.Dataset`` of what a stream hands out; each iteration of it has the next epoch.

    Of a stream of one epoch, iteration k has epoch k; of ``num_epochs=3``, epochs 3k to 3k + 2. So ``fit(epochs=n)``,
    ``.repeat(n)`` and a loop over the dataset see each epoch once, in an order of its own. An iteration that is left
    early counts: after ``take(1)``, to look at a batch, the next has epoch 1. If all epochs have one order
    (``reshuffle=False``, or no shuffle), or there is no end, each iteration is the stream from its start.

    Args:
        stream: batches come out as batches; without batches the elements come out, read in blocks all the same.
        positions: pair each batch, or element, with the global position after it, an int64. TensorFlow reads ahead, so
            only this tells where training is: ``ref.stream(..., start=position)`` goes on there.

    Returns:
        A dataset of the element spec that was cached: str leaves as UTF-8 ``tf.string``; in batches, leaves with
        unknown dimensions as ``tf.RaggedTensor``. With remainder "pad" its batches are ``(batch, mask)``.

    Raises:
        InvalidTypeError: for anything but a stream, and for leaves that TensorFlow has no type for, or that are None in
            some elements.
        InvalidArgumentError: where functions were mapped over the stream: what they return has no spec.
    """
    check_stream(stream)
    if stream.is_mapped:
        raise InvalidArgumentError("to_tf() of a mapped stream: call it on the stream, and map() the tf.data.Dataset")
    spec = stream.source.element_spec
    _check_outward(spec)
    # Taking a number is one call of C: iterations may begin in any thread of TensorFlow's.
    numbers = itertools.count()

    def following() -> Stream[Any]:
        return stream.iteration(next(numbers))

    if stream.options.batched:
        items, signature = (lambda: _batches(following(), spec)), _signature_of_batches(stream, spec)
    # Without 0 in a shape: TensorFlow's unbatch() crashes the process over tensors that hold nothing.
    elif all(isinstance(leaf, ArraySpec) and all(leaf.shape) for _, leaf in tree.leaves(spec)):
        items, signature = (lambda: _blocks(following(), spec)), tree.map_structure(spec, _batch_signature(None))
        blocks = _generated(items, (signature, tf.TensorSpec((None,), tf.int64)))
        return _finished(blocks.unbatch(), stream, positions=positions)
    else:
        items, signature = (lambda: _elements(following(), spec)), tree.map_structure(spec, _element_signature)
    return _finished(_generated(items, (signature, tf.TensorSpec((), tf.int64))), stream, positions=positions)


def _finished(dataset: Any, stream: Stream[Any], *, positions: bool) -> tf.data.Dataset:
    if not positions:
        dataset = dataset.map(lambda item, _: item)
    steps, start = stream.options.steps, stream.options.start
    if not stream.iterations_differ or start % steps.records == 0:
        length = tf.data.INFINITE_CARDINALITY if steps.end is None else len(stream)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(length))
    return dataset.prefetch(tf.data.AUTOTUNE)


def _signature_of_batches(stream: Stream[Any], spec: Tree) -> Any:
    steps, start = stream.options.steps, stream.options.start
    share = steps.global_batch // steps.shard_count
    even = steps.remainder != "keep" or steps.records % steps.global_batch == start % steps.global_batch == 0
    signature = tree.map_structure(spec, _batch_signature(share if even else None))
    return signature if steps.remainder != "pad" else (signature, tf.TensorSpec((share,), tf.bool))


def _batches(stream: Stream[Any], spec: Tree) -> Iterator[Any]:
    """The batches of a stream, each with the position after it."""
    padded = stream.options.steps.remainder == "pad"
    iterator = iter(stream)
    for item in iterator:
        out = (_outward(spec, item[0]), item[1]) if padded else _outward(spec, item)
        yield out, iterator.position


def _elements(stream: Stream[Any], spec: Tree) -> Iterator[Any]:
    iterator = iter(stream)
    for element in iterator:
        yield _outward(spec, element), iterator.position


def _generated(generate: Callable[[], Iterator[Any]], signature: Any) -> tf.data.Dataset:
    return tf.data.Dataset.from_generator(generate, output_signature=signature)


def _blocks(stream: Stream[Any], spec: Tree) -> Iterator[Any]:
    """What an unbatched stream hands out, stacked, with the position after each element."""
    elements = iter(stream)
    leaves = [leaf for _, leaf in tree.leaves(spec)]
    pack = tree.packer(spec)
    while True:
        rows, after = [], []
        for _, element in zip(range(_BLOCK_RECORDS), elements, strict=False):
            rows.append(tree.flatten_like(spec, element))
            after.append(elements.position)
        if not rows:
            return
        columns = zip(leaves, zip(*rows, strict=True), strict=True)
        yield pack(iter([_stack(leaf, column) for leaf, column in columns])), np.array(after)


def _stack(leaf: LeafSpec, values: tuple[Any, ...]) -> Any:
    if isinstance(leaf.dtype, np.dtype):
        return _tf_array(np.stack(values))
    return np.stack([np.asarray(value, object) for value in values])


def _check_outward(spec: Tree) -> None:
    for path, leaf in tree.leaves(spec):
        where = f"leaf {path}" if path else "the element"
        if leaf.nullable:
            raise InvalidTypeError(
                f"{where} is None in some elements, and TensorFlow has no null: use the stream itself"
            )
        try:
            _tf_dtype(leaf)
        except TypeError as error:
            raise InvalidTypeError(f"{where}: TensorFlow has no {leaf.describe()}") from error


def _tf_dtype(leaf: LeafSpec) -> Any:
    if not isinstance(leaf.dtype, np.dtype) or leaf.dtype.kind in "SU":
        return tf.string
    return tf.as_dtype(leaf.dtype)


def _batch_signature(rows: int | None) -> Callable[[str, Any], Any]:
    def signature(_path: str, leaf: LeafSpec | None) -> Any:
        if leaf is None:
            return None
        dtype = _tf_dtype(leaf)
        if isinstance(leaf, SparseSpec):
            return tf.SparseTensorSpec((None, *(None,) * len(leaf.shape)), dtype)
        if isinstance(leaf, RaggedSpec):
            return tf.RaggedTensorSpec((rows, *leaf.shape), dtype, leaf.ragged_rank + 1, tf.int64)
        if None in leaf.shape:
            levels = len(leaf.shape) - leaf.shape[::-1].index(None)
            return tf.RaggedTensorSpec((rows, *leaf.shape), dtype, levels, tf.int64)
        return tf.TensorSpec((rows, *leaf.shape), dtype)

    return signature


def _element_signature(_path: str, leaf: LeafSpec | None) -> Any:
    if leaf is None:
        return None
    dtype = _tf_dtype(leaf)
    if isinstance(leaf, SparseSpec):
        return tf.SparseTensorSpec(leaf.shape, dtype)
    if isinstance(leaf, RaggedSpec):
        return tf.RaggedTensorSpec(leaf.shape, dtype, leaf.ragged_rank, leaf.splits_dtype)
    return tf.TensorSpec(leaf.shape, dtype)


def _outward(spec: Tree, value: Any) -> Any:
    """An element or a batch with its ragged and sparse leaves in TensorFlow's form."""
    return tree.packer(spec)(map(_outward_leaf, tree.flatten_like(spec, value)))


def _outward_leaf(leaf: Any) -> Any:
    if isinstance(leaf, Ragged):
        splits = [np.asarray(level) for level in leaf.nested_row_splits]
        return tf.RaggedTensor.from_nested_row_splits(_tf_array(leaf.flat_values), splits, validate=False)
    if isinstance(leaf, Sparse):
        return tf.SparseTensor(leaf.indices, _tf_array(leaf.values), leaf.dense_shape)
    return _tf_array(leaf) if isinstance(leaf, np.ndarray) else leaf


def _tf_array(array: Any) -> Any:
    """Fixed-width text as object arrays of str, which TensorFlow takes for strings."""
    return array.astype(object) if array.dtype.kind == "U" else array
