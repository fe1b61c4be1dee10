"""What identifies a source besides its code: its length, its options, and some of its elements or the files it reads.

All is found without calling or iterating anything of the user, so that a version can be compared each time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import google_crc32c
import numpy as np

from cachelayer.builds.array_source import ArraySource, columns_of
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.encode import Encoder
from cachelayer.builds.iterable_source import SequenceSource
from cachelayer.builds.source import Source, Table, adapted_source
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.provenance.contents import described
from cachelayer.records import spec_json
from cachelayer.records.codec import codec_for
from cachelayer.records.tree import Tree

_COMPARED = 256
"""The most rows of a table, or items of a list, that are compared."""


def elements_of(source: Source | None) -> dict[str, Any]:
    """Return a hash of some of the elements of a source; empty for one whose elements are not in memory."""
    length = source.length if source is not None else None
    if source is None or not length:
        return {}
    numbers = np.unique(np.linspace(0, length - 1, min(length, _COMPARED)).astype(np.int64)).tolist()
    if isinstance(source, Table) and source.element_spec is not None:
        digest = hashlib.sha256(str(spec_json.to_json(source.element_spec)).encode())
        # What does not fit is an error, or left out, when it is built.
        with suppress(ElementError):
            for record in Encoder(codec_for(source.element_spec), "raise").encode(source.take(numbers)).to_list():
                # A checksum tells changes as well, and large rows are many bytes.
                digest.update(google_crc32c.value(record).to_bytes(4, "little"))
        return {"elements": digest.hexdigest()}
    if isinstance(source, SequenceSource) and type(source.items) in (list, tuple):
        return {"elements": described(("elements", *(source.items[number] for number in numbers)))}
    return {}


def facts_of(obj: Any, options: BuildOptions) -> dict[str, Any]:
    """Return the length of the object that a user passes as a source, and a hash of some of its elements."""
    if options.unbatch:
        return {}
    try:
        source = _in_memory(obj, options.element_spec)
    except (InvalidArgumentError, InvalidTypeError, ElementError) as error:
        # It cannot be stored as it is now, so it is not what was built.
        return {"elements": str(error)}
    length = source.length if isinstance(source, ArraySource) else _length(obj)
    return {**({} if length is None else {"length": length}), **elements_of(source)}


def deciding_options(options: BuildOptions) -> dict[str, Any]:
    """Return the options that decide which records a version has, as JSON."""
    spec = options.element_spec
    return {
        "element_spec": None if spec is None else spec_json.to_json(spec),
        "max_records": options.max_records,
        "unbatch": options.unbatch,
        "on_error": options.on_error,
    }


def option_changes(built: Mapping[str, Any], options: BuildOptions) -> list[str]:
    """Return a phrase for each option that decides the records and differs from what a version recorded."""
    before, now = built.get("options", {}), deciding_options(options)
    return [
        f"{name} changed" if name == "element_spec" else f"{name} was {before[name]!r} and is {now[name]!r}"
        for name in now
        if name in before and before[name] != now[name]
    ]


def _length(obj: Any) -> int | None:
    try:
        return None if isinstance(obj, Mapping) else len(obj)
    except Exception:  # noqa: BLE001
        # The user's code may raise anything; then the length is unknown.
        return None


def _in_memory(obj: Any, declared: Tree | None) -> Source | None:
    """Return the source of arrays, a table or a list; None for any other object."""
    is_element = isinstance(obj, tuple) and declared is not None and not isinstance(declared, tuple)
    columns = None if is_element else columns_of(obj)
    if columns is not None:
        return ArraySource(columns, declared)
    if hasattr(type(obj), "__len__") and (hasattr(type(obj), "columns") or hasattr(type(obj), "column_names")):
        # Tables and frames of every library have rows, and names of columns.
        table = adapted_source(obj, unbatch=False, element_spec=declared)
        return table if isinstance(table, Table) else None
    return SequenceSource(obj) if isinstance(obj, Sequence) and type(obj) in (list, tuple) else None
