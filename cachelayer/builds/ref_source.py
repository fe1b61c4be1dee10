"""Our own records as sources: refs, views of them, and streams. They keep their element spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from cachelayer.builds.batches import batch_records
from cachelayer.builds.iterable_source import IterableSource, SequenceSource
from cachelayer.builds.unbatched_source import UnbatchedSource
from cachelayer.protocols import Dataset, has_records, records_of
from cachelayer.records import tree
from cachelayer.records.spec import EncodedSpec
from cachelayer.records.tree import Tree
from cachelayer.streams.stream import Stream, is_endless, reader_of


class RecordsSource(SequenceSource):
    """The records of a ref, many at once."""

    def __init__(self, records: Dataset[Any]) -> None:
        super().__init__(records, records.element_spec)

    def elements(self) -> Iterator[Any]:
        size = batch_records(self.items.info.read_nbytes)
        for start in range(self._first, self._count, size):
            yield from self.items.elements(np.arange(start, min(start + size, self._count)))


def of_our_own(obj: Any, *, unbatch: bool, element_spec: Tree | None) -> IterableSource | None:
    """Return the source that a ref, a view or a stream is; None for anything else.

    Images and sounds go on as the files that they are, unless ``element_spec`` asks for something else.
    """
    if has_records(obj) and not unbatch:
        records = records_of(obj)
        return _with_base(_of_records(obj, records, element_spec), records)
    if isinstance(obj, Stream):
        source = _with_base(_of_stream(obj, element_spec=element_spec), reader_of(obj).records)
        return _with_base(UnbatchedSource(source), reader_of(obj).records) if unbatch else source
    return None


def _with_base(source: IterableSource, records: Dataset[Any]) -> IterableSource:
    """Return a source whose version says of which records it was made."""
    if records.references:
        base = {"digest": records.digests.elements, "records": len(records), "references": list(records.references)}
        source.provenance = {"base": base}
    return source


def _of_records(obj: object, records: Dataset[Any], element_spec: Tree | None) -> IterableSource:
    stored = records.stored()
    if stored is None:
        return SequenceSource(obj, records.declared_spec, by_number=True)
    source = RecordsSource(stored if _keeps_files(stored.element_spec, element_spec) else records)
    source.kind = type(obj).__name__
    return source


def _of_stream(stream: Stream[Any], *, element_spec: Tree | None) -> IterableSource:
    reader = reader_of(stream)
    spec: Tree | None = None
    # What functions return, and what batches are, is seen from the first.
    if not (reader.is_mapped or reader.options.batched):
        stored = reader.records.stored()
        if stored is not None and _keeps_files(stored.element_spec, element_spec):
            reader = replace(reader, records=stored)
            stream = Stream(reader)
        spec = reader.records.declared_spec
    endless = "pass num_epochs= to stream()" if is_endless(stream) else ""
    length = None if endless else len(stream)
    return IterableSource(iter(stream), type(stream).__name__, length, spec, endless=endless)


def _keeps_files(stored: Tree, declared: Tree | None) -> bool:
    """Return whether images and sounds stay the bytes of their files, as far as a declared spec says."""
    wanted = {} if declared is None else dict(tree.leaf_values(declared))
    files = [path for path, leaf in tree.leaves(stored) if isinstance(leaf, EncodedSpec)]
    return all(path not in wanted or getattr(wanted[path], "dtype", None) is bytes for path in files)
