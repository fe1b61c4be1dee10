"""Our own records as sources: refs, views of them, and streams. They keep their element spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cachelayer.builds.batches import batch_records
from cachelayer.builds.item_source import source_of_items
from cachelayer.builds.source import Source
from cachelayer.builds.unbatched_source import unbatched
from cachelayer.protocols import Dataset, has_records, records_of
from cachelayer.records import tree
from cachelayer.records.spec import EncodedSpec
from cachelayer.records.tree import Tree
from cachelayer.streams.stream import Stream, is_endless, reader_of


def source_of_ref_or_stream(obj: Any, *, unbatch: bool, element_spec: Tree | None) -> Source | None:
    """Return the source that a ref, a view or a stream is; None for anything else.

    Images and sounds go on as the files that they are, unless ``element_spec`` asks for something else.
    """
    if has_records(obj) and not unbatch:
        return _of_records(obj, records_of(obj), element_spec)
    if isinstance(obj, Stream):
        source = _of_stream(obj, element_spec)
        return unbatched(source) if unbatch else source
    return None


def _of_records(obj: object, records: Dataset[Any], declared: Tree | None) -> Source:
    base, kind = _base(records), type(obj).__name__
    stored = records.stored()
    if stored is None:
        source = source_of_items(obj, by_number=True)
        return replace(source, element_spec=records.declared_spec, provenance=base)
    dataset = stored if _keeps_files(stored.element_spec, declared) else records
    source = source_of_items(dataset, elements=partial(_elements_from, dataset))
    return replace(source, kind=kind, element_spec=dataset.element_spec, provenance=base)


def _elements_from(dataset: Dataset[Any], start: int) -> Iterator[Any]:
    """Yield elements from one on, and read many at once."""
    size = batch_records(dataset.info.read_nbytes)
    for first in range(start, len(dataset), size):
        yield from dataset.elements(np.arange(first, min(first + size, len(dataset))))


def _of_stream(stream: Stream[Any], declared: Tree | None) -> Source:
    reader = reader_of(stream)
    base = _base(reader.records)
    spec: Tree | None = None
    # What functions return, and what batches are, is seen from the first.
    if not (reader.is_mapped or reader.options.batched):
        stored = reader.records.stored()
        if stored is not None and _keeps_files(stored.element_spec, declared):
            reader = replace(reader, records=stored)
            stream = Stream(reader)
        spec = reader.records.declared_spec
    endless = "pass num_epochs= to stream()" if is_endless(stream) else ""
    length = None if endless else len(stream)
    elements = iter(stream)
    return Source(
        type(stream).__name__,
        elements=lambda _: elements,
        element_spec=spec,
        length=length,
        endless=endless,
        provenance=base,
    )


def _base(records: Dataset[Any]) -> dict[str, Any]:
    """Return what a version says of the records that it was made of."""
    if not records.references:
        return {}
    base = {"digest": records.digests.elements, "records": len(records), "references": list(records.references)}
    return {"base": base}


def _keeps_files(stored: Tree, declared: Tree | None) -> bool:
    """Return whether images and sounds stay the bytes of their files, as far as a declared spec says."""
    wanted = {} if declared is None else dict(tree.leaf_values(declared))
    files = [path for path, leaf in tree.leaves(stored) if isinstance(leaf, EncodedSpec)]
    return all(path not in wanted or getattr(wanted[path], "dtype", None) is bytes for path in files)
