"""Values that come in from files of numpy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from values_across import NoSuchValue, Row, ValuesAcross

from cachelayer import DataRef
from cachelayer.adapters.npy import from_npy, from_npz


def _saved(values: Any, path: Path) -> Any:
    """Save each array of a nested dict as a file, and return the paths of the files."""
    if isinstance(values, dict):
        for name in values:
            (path / name).mkdir(parents=True)
        return {name: _saved(child, path / name) for name, child in values.items()}
    if not isinstance(values, np.ndarray) or values.dtype == object:
        raise NoSuchValue(f"{type(values)} is no array of numbers")
    np.save(path / "x.npy", values, allow_pickle=False)
    return path / "x.npy"


def _npy(ref: DataRef[Any], folder: Path) -> Any:
    if not any(ref.element_spec.values()):
        raise NoSuchValue("there is no array")
    return from_npy(_saved(ref.read(range(len(ref))), folder))


def _npz(ref: DataRef[Any], folder: Path) -> Any:
    arrays = ref.read(range(len(ref)))
    if any(not isinstance(each, np.ndarray) or each.dtype == object for each in arrays.values()):
        raise NoSuchValue("there are other leaves than arrays of numbers")
    np.savez(folder / "x.npz", **arrays)
    return from_npz(folder / "x.npz")


class TestNpy(ValuesAcross):
    row = Row("npy", make=_npy)


class TestNpz(ValuesAcross):
    row = Row("npz", make=_npz)
