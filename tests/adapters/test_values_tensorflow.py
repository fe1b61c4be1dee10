"""Values that cross tf.data and Keras."""

from collections.abc import Iterable, Iterator
from typing import Any

import tensorflow as tf
from values_across import Row, ValuesAcross

from cachelayer import Ragged
from cachelayer.adapters.keras import to_keras
from cachelayer.adapters.tensorflow import to_tf

# Several batches, the last of them shorter, of the ten records of a cell.
BATCH = 4


def leaf_of(tensor: Any) -> Any:
    """Return a tensor as a ref has it."""
    if isinstance(tensor, dict):
        return {name: leaf_of(part) for name, part in tensor.items()}
    if isinstance(tensor, tf.RaggedTensor):
        splits = tuple(level.numpy() for level in tensor.nested_row_splits)
        return Ragged.from_nested(tensor.flat_values.numpy(), splits)
    value = tensor.numpy() if isinstance(tensor, tf.Tensor) else tensor
    return value if isinstance(value, bytes) else value[()]


def rows_of(batches: Iterable[Any]) -> Iterator[Any]:
    """Yield each row of batches of tensors or arrays."""
    for batch in batches:
        first = tf.nest.flatten(batch)[0]
        count = first.nrows() if isinstance(first, tf.RaggedTensor) else len(first)
        for number in range(int(count)):
            yield leaf_of(tf.nest.map_structure(lambda part, row=number: part[row], batch))


class TestElements(ValuesAcross):
    row = Row(
        "tensorflow",
        out=lambda ref: to_tf(ref.stream()),
        read=lambda dataset: map(leaf_of, dataset),
        options=lambda _: {},
    )


class TestBatches(ValuesAcross):
    row = Row(
        "tensorflow_batches",
        out=lambda ref: to_tf(ref.stream(BATCH)),
        read=rows_of,
        options=lambda _: {"unbatch": True},
    )


class TestKeras(ValuesAcross):
    row = Row(
        "keras",
        out=lambda ref: to_keras(ref.stream(BATCH)),
        read=lambda dataset: rows_of(dataset[number] for number in range(len(dataset))),
    )
