"""Values that come in from samples of WebDataset, as files of a tar archive."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from values_across import NoSuchValue, Row, ValuesAcross
from values_table import DTYPES

from cachelayer import ArraySpec, DataRef, Ragged
from cachelayer.adapters.webdataset import from_webdataset
from cachelayer.records.spec import LeafSpec

KEY = "__key__"
NAMES = {name.lower(): name for name in DTYPES}


def _tar(ref: DataRef[Any], folder: Path) -> Any:
    names = _suffixes(ref)
    with tarfile.open(folder / "x.tar", "w") as archive:
        for number, element in enumerate(ref):
            files = {names[name]: _file(value) for name, value in element.items() if value is not None}
            # A sample without files would not be there; a suffix with underscores is nothing that is taken.
            for suffix, data in (files or {"__nothing__": b""}).items():
                info = tarfile.TarInfo(f"{number:03}.{suffix}")
                info.size = len(data)
                archive.addfile(info, io.BytesIO(data))
    return from_webdataset(folder / "x.tar")


def _suffixes(ref: DataRef[Any]) -> dict[str, str]:
    if not all(isinstance(leaf, LeafSpec) for leaf in ref.element_spec.values()):
        raise NoSuchValue("a file is a leaf")
    endings = {str: "txt", bytes: "bin"}
    return {name: f"{name.lower()}.{endings.get(leaf.dtype, 'npy')}" for name, leaf in ref.element_spec.items()}


def _file(value: Any) -> bytes:
    if type(value) is bytes:
        return value
    if isinstance(value, Ragged):
        raise NoSuchValue("a file holds one array")
    try:
        if type(value) is str:
            return value.encode()
        file = io.BytesIO()
        np.save(file, value, allow_pickle=False)
        return file.getvalue()
    except ValueError as error:
        raise NoSuchValue from error


def _tar_spec(ref: DataRef[Any]) -> dict[str, Any]:
    try:
        names = _suffixes(ref)
    except NoSuchValue:
        return {}
    return {"element_spec": {KEY: ArraySpec(str), **{names[name]: leaf for name, leaf in ref.element_spec.items()}}}


def _name_of(suffix: str) -> str:
    name = suffix.rpartition(".")[0]
    return NAMES.get(name, name)


def _without_key(ref: DataRef[Any]) -> Iterator[dict[str, Any]]:
    for element in ref:
        yield {_name_of(name): value for name, value in element.items() if name != KEY}


class TestWebDataset(ValuesAcross):
    row = Row("webdataset", make=_tar, options=_tar_spec, taken=_without_key)
