"""What a version is built from: anything that gives elements one after another, or many at once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from cachelayer.builds.array_source import ArraySource, columns_of, refuse_columns_in_a_list
from cachelayer.builds.batches import Batch
from cachelayer.builds.iterable_source import (
    IterableSource,
    SequenceSource,
    errors_named,
    has_items,
    length_of,
    refuse_if_begun,
)
from cachelayer.builds.ordered_records import OrderedRecords
from cachelayer.builds.ref_source import of_our_own
from cachelayer.builds.source_files import PathSource, at_path, entry_points_of
from cachelayer.builds.unbatched_source import UnbatchedSource
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.provenance.environment import ENTRY_POINTS
from cachelayer.records import tree
from cachelayer.records.tree import Tree
from cachelayer.versions.stored_version import StoredVersion


@runtime_checkable
class Source(Protocol):
    """Gives elements in order, in batches of about ``BATCH_NBYTES``."""

    @property
    def kind(self) -> str:
        """What it is, for the provenance."""

    @property
    def element_spec(self) -> Tree | None:
        """The schema that the source declares; None if it declares none."""

    @property
    def length(self) -> int | None:
        """Number of elements, if it is known: the build is held to it."""

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Yield the elements, at most ``limit`` of them.

        Raises:
            SourceError: if the source fails, with the number of the record.
            InvalidArgumentError: if the source is known to be endless and there is no limit.
        """


@runtime_checkable
class Declarable(Protocol):
    """A source that takes the spec that a user declares, as one must that gives columns of its own spec."""

    def with_element_spec(self, spec: Tree) -> Source: ...


@runtime_checkable
class Deferred(Protocol):
    """A source of others that are made later, in the way that is asked for."""

    def made_with(self, *, unbatch: bool, element_spec: Tree | None) -> Source: ...


@runtime_checkable
class Seekable(Protocol):
    """A source that can begin at any record, at little cost."""

    def skipped(self, records: int) -> Source:
        """Return the source from this record on; its errors go on counting from there."""


@runtime_checkable
class Table(Source, Protocol):
    """A source in memory that gives any of its rows at once, at little cost, and without running code of the user."""

    @property
    def nbytes(self) -> int:
        """The approximate size of all rows."""

    def take(self, rows: slice | Sequence[int]) -> Batch:
        """Return the rows of a range, or of some numbers in their order."""


@dataclass(frozen=True)
class Splits:
    """Several sources by name, as datasets have them for training and tests: a dataset of each."""

    parts: Mapping[str, Any]


def sources_by_split(obj: Any) -> Mapping[str, Any] | None:
    """Return the sources that an object has by name, as a ``DatasetDict`` does; None if it is one source."""
    found = adapted_source(obj, unbatch=False, element_spec=None) if isinstance(obj, Mapping) else None
    return found.parts if isinstance(found, Splits) else None


def metadata_of(source: Source) -> dict[str, Any]:
    """Return what a source says of itself, for the metadata of the version; most say nothing."""
    return dict(getattr(source, "metadata", {}))


def provenance_of(source: Source) -> dict[str, Any]:
    """Return what a source says of where its records come from, for the provenance of the version; most say nothing."""
    return dict(getattr(source, "provenance", {}))


def versions_read(source: Source) -> Sequence[StoredVersion]:
    """Return the versions whose records a source copies."""
    return source.records.versions if isinstance(source, OrderedRecords) else ()


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Source:
    """Return the source that an object is.

    Args:
        obj: a source, a path or URL of files, what an adapter knows, a ref or a stream, an array, a dict or tuple of
            arrays, an iterable, what has items by number, or a function that returns one of these.
        unbatch: each element of ``obj`` is a batch: take it apart along the leading axis of its leaves.
        element_spec: the spec that the user declares.
    """
    obj = at_path(obj)
    if isinstance(obj, PathSource):
        obj = obj.source
    if isinstance(obj, Deferred):
        return obj.made_with(unbatch=unbatch, element_spec=element_spec)
    if element_spec is not None and isinstance(obj, Declarable):
        obj = obj.with_element_spec(element_spec)
    if isinstance(obj, Source):
        if unbatch:
            raise InvalidArgumentError(f"unbatch=True: a source of {obj.kind} gives elements already: leave it out")
        return obj
    adapted = adapted_source(obj, unbatch=unbatch, element_spec=element_spec)
    if isinstance(adapted, Splits):
        raise InvalidTypeError(
            f"a {type(obj).__name__} has the splits {', '.join(adapted.parts)}, each a dataset of its own: pass it to "
            "cache() or submit() itself, not a function that returns it, or choose one of them"
        )
    if adapted is not None:
        return adapted
    if callable(obj) and not isinstance(obj, Iterable):
        with errors_named(f"{getattr(obj, '__name__', type(obj).__name__)}() failed before it returned a source"):
            made = obj()
        return as_source(made, unbatch=unbatch, element_spec=element_spec)
    own = of_our_own(obj, unbatch=unbatch, element_spec=element_spec)
    if own is not None:
        return own
    columns = None if unbatch or _is_records(obj, element_spec) else columns_of(obj)
    if columns is not None:
        return ArraySource(columns, element_spec)
    if unbatch and isinstance(obj, Mapping) and columns_of(obj) is not None:
        raise InvalidArgumentError(
            "unbatch=True: a dict of arrays is a source of their rows already: leave it out, or pass a list of dicts"
        )
    _refuse_no_source(obj)
    refuse_if_begun(obj)
    source = _of_elements(obj)
    if unbatch:
        return UnbatchedSource(source)
    if isinstance(obj, list) and element_spec is None:
        refuse_columns_in_a_list(obj)
    return source


def _of_elements(obj: Any) -> IterableSource:
    """Return the source of what gives elements one after another, or by number."""
    if has_items(obj) or not hasattr(obj, "__iter__"):
        return SequenceSource(obj)
    kind = type(obj).__name__
    with errors_named(f"iter() of the {kind} failed"):
        try:
            elements = iter(obj)
        except TypeError as error:
            raise InvalidTypeError(f"a {kind} is not a source: {error}") from error
    return IterableSource(elements, kind, length_of(obj))


def _is_records(obj: Any, element_spec: Tree | None) -> bool:
    """Return whether a user's declared spec says that a tuple is one of records, not of columns."""
    return isinstance(obj, tuple) and element_spec is not None and not isinstance(element_spec, tuple)


def _refuse_no_source(obj: Any) -> None:
    """Raise for what gives no elements, one after another or by number, and for a dict, which gives its keys."""
    is_value = isinstance(obj, (bytes, bytearray, Mapping)) or (isinstance(obj, np.ndarray) and obj.ndim == 0)
    if not is_value and (hasattr(obj, "__iter__") or hasattr(obj, "__getitem__")):
        return
    items = obj.items() if isinstance(obj, Mapping) else ()
    wrong = [f": [{key!r}] is {tree.describe(child)}" for key, child in items if columns_of((child,)) is None]
    raise InvalidTypeError(
        f"{tree.describe(obj)} is not a source{''.join(wrong[:1])}. Pass an iterable of elements, a function that "
        "returns one, an array, or a dict or tuple of arrays of equal length (np.asarray makes one of a list)"
    )


def adapted_source(obj: Any, *, unbatch: bool, element_spec: Tree | None) -> Source | Splits | None:
    """Return the source that an adapter makes of it; only those are asked whose framework is loaded already."""
    for entry in entry_points_of(ENTRY_POINTS):
        if sys.modules.get(entry.name) is not None:
            adapter: Callable[..., Source | Splits | None] = entry.load()
            source = adapter(obj, unbatch=unbatch, element_spec=element_spec)
            if source is not None:
                return source
    return None
