"""Values that cross JAX: test_jax.py runs them in a process of their own."""

from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from values_across import Row, ValuesAcross
from values_table import DTYPES

from cachelayer import DataRef
from cachelayer.adapters.jax import GlobalBatches, global_batches

# Several batches, the last of them shorter, of the ten records of a cell.
BATCH = 4


def batches(ref: DataRef[Any]) -> GlobalBatches[Any]:
    return global_batches(ref.stream(BATCH), NamedSharding(Mesh(np.array(jax.devices()[:1]), ("a",)), P("a")))


def rows_of(made: GlobalBatches[Any]) -> Iterator[Any]:
    """Yield each row of batches of arrays."""
    records = made._cursor.reader.schedule.records
    for number, batch in enumerate(made):
        assert all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(batch))
        for row in range(min(BATCH, records - number * BATCH)):
            yield in_order(jax.tree.map(lambda leaf, row=row: np.asarray(leaf)[row], batch))


def in_order(element: dict[str, Any]) -> dict[str, Any]:
    """Return an element with its leaves in the order that they had: JAX sorts the names of dicts."""
    return {name: element[name] for name in DTYPES if name in element} or element


def taken(ref: DataRef[Any]) -> Iterator[Any]:
    return map(in_order, ref)


class TestJax(ValuesAcross):
    row = Row("jax", out=batches, read=rows_of, options=lambda _: {"unbatch": True}, taken=taken)
