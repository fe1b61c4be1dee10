"""Tests of Keras on JAX, which test_keras.py runs in a child: a process that has started JAX cannot fork."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

import cachelayer


class Given(keras.utils.PyDataset):  # type: ignore[misc]
    """Two batches that a test makes."""

    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def __len__(self) -> int:
        return 2

    def __getitem__(self, index: int) -> Any:
        return self.make(np.arange(3) + 3 * index)


def test_batches_of_jax_arrays_are_those_of_numpy(tmp_path: Path) -> None:
    dtypes = ["float32", "bfloat16", "int8", "uint32", "bool", "complex64", "float8_e4m3fn", "int4"]
    made = Given(lambda rows: ({name: jnp.asarray(rows, name) for name in dtypes}, jnp.ones((3, 0)), None))
    ref = cachelayer.Storage(tmp_path).cache(made, "d", "v1")
    assert ref.element_spec == (
        {name: cachelayer.ArraySpec(name) for name in dtypes},
        cachelayer.ArraySpec("float32", (0,)),
    )
    for number, (row, _) in enumerate(ref):
        assert row == {name: np.asarray(number).astype(cachelayer.ArraySpec(name).dtype)[()] for name in dtypes}


def test_what_has_no_array_is_refused_with_its_record(tmp_path: Path) -> None:
    keys = Given(lambda rows: (jnp.asarray(rows), jax.random.split(jax.random.key(0), 3)))
    with pytest.raises(cachelayer.CacheLayerError, match="record 0"):
        cachelayer.Storage(tmp_path).cache(keys, "d", "v1")
