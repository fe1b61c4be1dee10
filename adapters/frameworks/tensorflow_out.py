"""Turn streams into ``tf.data.Dataset``s."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import groupby, islice
from threading import Lock
from typing import Any

import numpy as np
import tensorflow as tf

from cachelayer.adapters.frameworks.stream_or_ref import CURE_OF_VIDEOS, check_stream, rows_of_batches
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.specs import json_text, tree
from cachelayer.specs.schema import Schema
from cachelayer.specs.spec import ArraySpec, JsonSpec, LeafSpec, RaggedSpec, SparseSpec, VideoSpec, describe_leaf
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import NoArray, Ragged, Sparse
from cachelayer.streams.cursor import Cursor
from cachelayer.streams.epochs import EpochCursor
from cachelayer.streams.iterator import StreamIterator
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.schedule import Schedule
from cachelayer.streams.stream import Stream
from cachelayer.support.arguments import explains_options
from cachelayer.support.user_warnings import warn

_GROUP_RECORDS = 512
_GROUP_BATCHES = 16
_COPIED_NBYTES = 1 << 20
# Several groups are in memory at once.
_GROUP_NBYTES = 32 << 20
# TensorFlow would look for loops and branches on tensors in these functions, which have none, for half the time.
_as_it_is = tf.autograph.experimental.do_not_convert


@explains_options
def to_tf(stream: Stream[Any], *, positions: bool = False) -> tf.data.Dataset:
    """Return a ``tf.data.Dataset`` over a stream; each iteration of it has the next epoch.

    If the stream has one epoch, iteration k has epoch k; with ``num_epochs=3``, it has epochs 3k to 3k + 2. So
    ``fit(epochs=n)``, ``.repeat(n)`` and a loop over the dataset see each epoch once, in its own order. An iteration
    that is left before its last batch uses up no epoch: after ``take(1)``, to inspect a batch, or after Keras has built
    a model, the next one begins where it began. Of a stream of elements, of which ``batch(drop_remainder=True)`` may
    drop the last, one that is left in the first three quarters uses up none. If the stream begins within an epoch, the
    first iteration has the rest of it. If there is no end, each goes on after the last item that was taken from this
    dataset. What is read ahead does not count, unless transformations that you add read it, or a ``tf.distribute``
    strategy: up to four batches.

    Args:
        stream: a batched stream gives batches; any other gives elements, which are read in groups, unless their shapes
            vary or the stream is one shard of several.
        positions: pair each batch, or element, with the position after it, an int64. TensorFlow reads ahead, so
            only this shows where training is: ``ref.stream(..., start=position)`` continues there.

    Returns:
        A dataset with the element spec that was cached, and the cardinality of a whole iteration. A str leaf becomes
        UTF-8 ``tf.string``, and so does a value of JSON, as text; a list becomes a tuple, with a warning; in batches, a
        leaf with unknown dimensions becomes a ``tf.RaggedTensor``. With remainder "pad" an item is ``(batch, mask)``.

    If reading fails while the dataset runs, TensorFlow raises one of its own errors, which contains our message.

    Raises:
        InvalidTypeError: if the argument is not a stream, TensorFlow has no type for a leaf, a leaf is None in some
            elements, or elements have no leaves.
        InvalidArgumentError: if the stream is mapped and the last ``map()`` does not declare an element spec.

    Examples:
        >>> from cachelayer.adapters.tensorflow import to_tf
        >>> stream = cachelayer.wrap(list(range(5)), identity="numbers").stream(2, shuffle=True, seed=1)
        >>> data = to_tf(stream)
        >>> [[batch.tolist() for batch in data.as_numpy_iterator()] for epoch in range(2)]
        [[[4, 3], [0, 1], [2]], [[1, 3], [0, 4], [2]]]
        >>> [(batch.tolist(), int(position)) for batch, position in to_tf(stream, positions=True).as_numpy_iterator()]
        [([4, 3], 2), ([0, 1], 4), ([2], 5)]
    """
    check_stream(stream)
    reader = stream._reader
    spec = stream.element_spec
    if reader.is_mapped and spec is None:
        raise InvalidArgumentError(
            "to_tf() of a mapped stream needs to know what the function returns: pass element_spec= to map(), or call "
            "to_tf() on the stream without map(), and map() the tf.data.Dataset"
        )
    _check_outward(spec)
    leaves = [leaf for _, leaf in tree.leaves(spec)]
    batched = reader.schedule.batched
    # One call of Python gives a group of items: a call for each would take longer than to read it.
    schedule = reader.schedule
    grouped = all(map(_unbatches, leaves)) and (batched or schedule.shard_count == 1) and schedule.excluded is None
    read = reader
    most = 1
    if batched:
        signature = _signature_of_batches(stream, leaves)
        most = _batches_of_group(reader, leaves) if grouped else 1
        grouped = most > 1
        if grouped:
            signature = [tf.TensorSpec((None, *each.shape), each.dtype) for each in signature]
    elif grouped:
        records = _group_records(reader, leaves)
        read = reader.with_schedule(batched=True, global_batch=records, remainder="keep", arranges=False)
        signature = [_batch_signature(leaf, None) for leaf in leaves]
    else:
        signature = list(map(_element_signature, leaves))
    of_positions = tf.TensorSpec((None,) if grouped else (), tf.int64)
    reached = _reached(reader)
    outward = _Outward(spec, are_batches=read.schedule.batched)
    loops = _Loops(read, outward, reached, has_batches=batched, most=most)
    pack = _packer(stream, with_position=positions or reached is not None)

    def items_of(loop: Any, are_last: Any) -> tf.data.Dataset:
        # Generators have no structures: a flat tuple of leaves, and a position.
        flat = tf.data.Dataset.from_generator(
            loops.items, args=(loop, are_last), output_signature=(tuple(signature), of_positions)
        )
        packed = flat.map(_as_it_is(pack)).prefetch(tf.data.AUTOTUNE)
        return packed.unbatch() if grouped else packed

    def note_position(item: Any, position: Any) -> Any:
        reached.assign(position)
        return (item, position) if positions else item

    signature_of_loops = (tf.TensorSpec((), tf.int64), tf.TensorSpec((), tf.bool))
    numbers = tf.data.Dataset.from_generator(loops, output_signature=signature_of_loops)
    dataset = _with_cardinality(numbers.flat_map(_as_it_is(items_of)), stream)
    # Nothing may read ahead of the items that were handed out; by default TensorFlow adds a prefetch() at the end.
    no_prefetch = tf.data.Options()
    no_prefetch.experimental_optimization.inject_prefetch = False
    return (dataset if reached is None else dataset.map(_as_it_is(note_position))).with_options(no_prefetch)


class _Loops:
    """The loops over a stream. Each yields its number twice, for the first items of an iteration and the last.

    Items are leaves, and the position after them; grouped elements come with an array of positions. The last items of
    an iteration come from a generator of their own, which nothing reads ahead: it begins when the first items have been
    taken, and then the iteration is over.
    """

    def __init__(self, reader: StepReader, outward: _Outward, reached: Any, *, has_batches: bool, most: int) -> None:
        padded = reader.schedule.pads

        def leaves(item: Any, rows: int) -> tuple[Any, ...]:  # noqa: ARG001
            return (*outward(item[0]), item[1]) if padded else outward(item)

        self._epochs: EpochCursor[Any] = EpochCursor(replace(reader, convert=leaves))
        self._has_batches = has_batches
        self._has_groups = reader.schedule.batched and not has_batches
        self._most = most
        """The most batches of a group; 1 if they come one by one."""
        self._reached = reached
        self._lock = Lock()
        self._running: dict[int, tuple[Schedule, Iterator[tuple[Any, Any]]]] = {}
        """For each loop, the schedule of its iteration, and the items that it has still to give."""

    def __call__(self) -> Iterator[tuple[int, bool]]:
        # TensorFlow may begin several loops at once, in any of its threads: those have the same iteration.
        with self._lock:
            number = max(self._running, default=0) + 1
            reader = self._epochs.reader
            if self._reached is not None:
                reader = reader.starting_at(int(self._reached.numpy()))
            self._running[number] = reader.schedule, self._items(Cursor(reader))
        try:
            yield number, False
            yield number, True
        finally:
            del self._running[number]

    def _items(self, cursor: Cursor[Any]) -> Iterator[tuple[Any, Any]]:
        before = cursor.position
        for item in StreamIterator(cursor):
            after = cursor.position
            # Behind the last element of a group, positions may be left out.
            yield item, np.append(np.arange(before + 1, before + len(item[0])), after) if self._has_groups else after
            before = after

    def items(self, number: int, are_last: bool) -> Iterator[tuple[Any, Any]]:
        return self._last_items(number) if are_last else self._first_items(number)

    def _first_items(self, number: int) -> Iterator[tuple[Any, Any]]:
        """Yield the items of a loop which may be read ahead: all batches but the last; or 3 of 4 elements."""
        schedule, items = self._running[number]
        count = None
        if self._reached is None:
            count = schedule.item_count - 1 if self._has_batches else schedule.item_count * 3 // 4
        yield from _groups(islice(items, count), self._most)

    def _last_items(self, number: int) -> Iterator[tuple[Any, Any]]:
        """Yield the last items of a loop; the next loop has the next iteration."""
        schedule, items = self._running[number]
        for place, item in enumerate(items):
            with self._lock:
                if not place and schedule == self._epochs.reader.schedule:
                    self._epochs.begin_next()
            yield from _groups(iter([item]), self._most)


def _groups(batches: Iterator[tuple[Any, Any]], most: int) -> Iterator[tuple[Any, Any]]:
    """Yield batches in groups of equal shapes, stacked; as they are if a group has one at most."""
    if most == 1:
        yield from batches
        return
    # The first group is one batch, so that it comes soon.
    size = 1
    while True:
        some: list[tuple[Any, Any]] = []
        try:
            some.extend(islice(batches, size))
        finally:
            # An error comes behind the batches before it.
            for _, group in groupby(some, lambda batch: len(batch[0][0])):
                leaves, positions = zip(*group, strict=True)
                yield tuple(map(np.stack, zip(*leaves, strict=True))), np.array(positions)
        if not some:
            return
        size = min(most, 2 * size)


def _reached(reader: StepReader) -> Any:
    """Return a variable for the position after the last item that was handed out; None if the stream has an end."""
    if not reader.schedule.is_endless:
        return None
    with tf.device("CPU:0"):
        return tf.Variable(reader.schedule.start, trainable=False, dtype=tf.int64)


def _unbatches(leaf: LeafSpec) -> bool:
    """Return whether TensorFlow can unbatch a leaf: it crashes the process if a dimension is 0."""
    return isinstance(leaf, ArraySpec) and all(leaf.shape) and can_batch(_tf_dtype(leaf))


def _packer(stream: Stream[Any], *, with_position: bool) -> Callable[..., Any]:
    """Return the function that gives the leaves of an item their structure, with the position after it if wanted."""
    schedule = stream._reader.schedule
    pack = Schema.of(_without_lists(stream.element_spec)).pack
    padded = schedule.batched and schedule.pads

    def packed(leaves: tuple[Any, ...], position: Any) -> Any:
        item = (pack(leaves[:-1]), leaves[-1]) if padded else pack(leaves)
        return (item, position) if with_position else item

    return packed


def _with_cardinality(dataset: tf.data.Dataset, stream: Stream[Any]) -> tf.data.Dataset:
    """Return the dataset with the number of items of a whole iteration, which Keras takes for that of every epoch."""
    if stream._reader.schedule.is_endless:
        return dataset.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
    length = len(EpochCursor(stream._reader))
    if len(stream) == length and stream._reader.schedule.epochs_are_alike:
        return dataset.apply(tf.data.experimental.assert_cardinality(length))
    # Some iterations are shorter. Only a dataset that TensorFlow takes for endless may have fewer items than it says:
    # one that chooses between two, of which the second never ends, and is never chosen.
    first = tf.data.Dataset.from_tensors(tf.constant(0, tf.int64)).repeat()
    endless = tf.data.Dataset.choose_from_datasets([dataset, dataset.repeat()], first, stop_on_empty_dataset=True)
    return endless.take(length)


def _without_lists(spec: Tree) -> Tree:
    """Return the structure with tuples for lists, because TensorFlow turns a list into a tensor."""
    if isinstance(spec, dict):
        return {key: _without_lists(child) for key, child in spec.items()}
    if tree.is_namedtuple(spec):
        return type(spec)(*map(_without_lists, spec))
    return tuple(map(_without_lists, spec)) if isinstance(spec, (list, tuple)) else spec


def _signature_of_batches(stream: Stream[Any], leaves: list[LeafSpec]) -> list[Any]:
    rows = rows_of_batches(stream)
    signature = [_batch_signature(leaf, rows) for leaf in leaves]
    records = stream._reader.records
    if not stream._reader.is_mapped:
        for place, (_, leaf) in enumerate(tree.leaves(records.padded_as(0).element_spec)):
            if None in leaves[place].shape and None not in leaf.shape:
                # Padded to the bound of a bucket, which differs from batch to batch.
                signature[place] = tf.TensorSpec((rows, *leaves[place].shape), _tf_dtype(leaf))
    return [*signature, tf.TensorSpec((rows,), tf.bool)] if stream._reader.schedule.pads else signature


def _element_nbytes(reader: StepReader, leaves: list[LeafSpec]) -> int:
    fixed = [(leaf.dtype, [dim or 1 for dim in leaf.shape]) for leaf in leaves if isinstance(leaf.dtype, np.dtype)]
    own = sum(dtype.itemsize * int(np.prod(shape)) for dtype, shape in fixed)
    return max(1, own, int(reader.records.info.record_nbytes))


def _group_records(reader: StepReader, leaves: list[LeafSpec]) -> int:
    """Return the number of elements in a group: fewer if they are large, and at least 16 groups an epoch."""
    most = _GROUP_NBYTES // _element_nbytes(reader, leaves)
    return max(1, min(_GROUP_RECORDS, most, reader.schedule.records // 16))


def _batches_of_group(reader: StepReader, leaves: list[LeafSpec]) -> int:
    """Return the number of batches in a group: 1 if they are so large that to copy them takes longer than a call."""
    schedule = reader.schedule
    if min(replace(schedule, num_epochs=None).step_sizes(schedule.start), default=0) < schedule.shard_count:
        # Of a batch of no rows, TensorFlow's unbatch() crashes the process.
        return 1
    rows = -(-schedule.global_batch // schedule.shard_count)
    return max(1, min(_GROUP_BATCHES, _COPIED_NBYTES // (rows * _element_nbytes(reader, leaves))))


def _check_outward(spec: Tree) -> None:
    if not tree.leaves(spec):
        raise InvalidTypeError(
            f"the element is {tree.describe(spec)} without a leaf, and TensorFlow has no dataset without leaves"
        )
    if _without_lists(spec) != spec:
        warn("to_tf() turns lists of a structure into tuples: tf.data would turn a list into a tensor")
    Schema.of(spec).check_taken("TensorFlow", _cure)


def _cure(spec: Tree) -> str | None:
    """Return what a user makes of values that TensorFlow has no type for; None if it has."""
    if isinstance(spec, VideoSpec):
        return CURE_OF_VIDEOS
    if not isinstance(spec, LeafSpec) or spec.nullable or spec.nullable_values:
        return "it has no null: fill it by map(fn, element_spec=...), in which filled(0) of a Nullable gives the array"
    try:
        _tf_dtype(spec)
    except TypeError:
        return "convert it by map(fn, element_spec=...)"
    return None


def _tf_dtype(leaf: LeafSpec) -> Any:
    if not isinstance(leaf.dtype, np.dtype) or leaf.dtype.kind in "SU":
        return tf.string
    if leaf.dtype.name == "float8_e5m2":
        # The graph of a dataset cannot hold it.
        raise TypeError(leaf.dtype)
    return tf.as_dtype(leaf.dtype)


def can_batch(dtype: Any) -> bool:
    """Return whether TensorFlow can batch and unbatch a dtype: of those of ml_dtypes, only bfloat16."""
    return bool(dtype in (tf.bfloat16, tf.string) or np.dtype(dtype.as_numpy_dtype).kind != "V")


def _batch_signature(leaf: LeafSpec, rows: int | None) -> Any:
    dtype = _tf_dtype(leaf)
    if isinstance(leaf, SparseSpec):
        return tf.SparseTensorSpec((None, *(None,) * len(leaf.shape)), dtype)
    if isinstance(leaf, RaggedSpec):
        return tf.RaggedTensorSpec((rows, *leaf.shape), dtype, leaf.ragged_rank + 1, tf.int64)
    if None in leaf.shape:
        levels = len(leaf.shape) - leaf.shape[::-1].index(None)
        return tf.RaggedTensorSpec((rows, *leaf.shape), dtype, levels, tf.int64)
    return tf.TensorSpec((rows, *leaf.shape), dtype)


def _element_signature(leaf: LeafSpec) -> Any:
    dtype = _tf_dtype(leaf)
    if isinstance(leaf, SparseSpec):
        return tf.SparseTensorSpec(leaf.shape, dtype)
    if isinstance(leaf, RaggedSpec):
        return tf.RaggedTensorSpec(leaf.shape, dtype, leaf.ragged_rank, leaf.splits_dtype)
    return tf.TensorSpec(leaf.shape, dtype)


class _Outward:
    """Converts leaves of elements and batches to TensorFlow. Warns once for each leaf with text that is not UTF-8."""

    def __init__(self, spec: Tree, *, are_batches: bool) -> None:
        self._schema = Schema.of(spec)
        self._are_batches = are_batches
        self._warned: set[str] = set()

    def __call__(self, value: Any) -> tuple[Any, ...]:
        """Return the leaves of an element or a batch."""
        values = self._schema.flatten(value)
        return tuple(
            self._leaf(leaf.path, leaf.spec, part) for leaf, part in zip(self._schema.leaves, values, strict=True)
        )

    def _leaf(self, path: str, leaf: LeafSpec, value: Any) -> Any:
        if isinstance(leaf, JsonSpec):
            texts = [self._utf8(path, json_text.text_of(one)) for one in (value if self._are_batches else [value])]
            return np.fromiter(texts, object, len(texts)) if self._are_batches else texts[0]
        if isinstance(value, Ragged):
            splits = [np.asarray(level) for level in value.nested_row_splits]
            return tf.RaggedTensor.from_nested_row_splits(
                self._tensor(path, leaf, value.flat_values), splits, validate=False
            )
        if isinstance(value, Sparse):
            return tf.SparseTensor(value.indices, self._tensor(path, leaf, value.values), value.dense_shape)
        return self._plain(path, leaf, value)

    def _tensor(self, path: str, leaf: LeafSpec, value: Any) -> Any:
        return tf.convert_to_tensor(self._plain(path, leaf, value), _tf_dtype(leaf))

    def _plain(self, path: str, leaf: LeafSpec, value: Any) -> Any:
        """Return an array or a scalar, with bytes for text."""
        is_fixed = isinstance(leaf, ArraySpec) and None not in leaf.shape
        if not _fits(leaf, value) or (is_fixed and np.shape(value)[int(self._are_batches) :] != leaf.shape):
            hint = "Pass the element_spec= of all items to wrap()."
            raise ElementError(describe_leaf(leaf), tree.describe(value), path=path, hint=hint)
        if leaf.dtype is not str and getattr(leaf.dtype, "kind", "") != "U":
            return value
        if not isinstance(value, np.ndarray):
            return self._utf8(path, str(value))
        texts = (self._utf8(path, text) for text in value.ravel().tolist())
        return np.fromiter(texts, object, value.size).reshape(value.shape)

    def _utf8(self, path: str, text: str) -> bytes:
        try:
            return text.encode()
        except UnicodeEncodeError:
            raw = text.encode("utf-8", "surrogatepass")
        if path not in self._warned:
            self._warned.add(path)
            name = tree.leaf_title(path)
            warn(
                f"{name} holds text with a lone surrogate, which UTF-8 does not have: to_tf() turns it into "
                f"{raw[:40]!r}, which .decode('utf-8', 'surrogatepass') turns back into text"
            )
        return raw


def _fits(leaf: LeafSpec, value: Any) -> bool:
    """Return whether a value has the dtype of a leaf, whatever its shape."""
    if isinstance(value, NoArray):
        return False
    if not isinstance(leaf.dtype, np.dtype):
        return isinstance(value, leaf.dtype) or (isinstance(value, np.ndarray) and value.dtype == object)
    dtype = np.asarray(value).dtype
    return dtype == leaf.dtype or (dtype.kind == leaf.dtype.kind and dtype.kind in "SU")
