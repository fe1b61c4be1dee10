"""Make a :class:`Source` of the object that a user passes.

The first row that fits counts:

==================================================  ================================================
a path, a URL, or a list of paths                   the files there, read by an installed adapter
what ``cachelayer.sharded`` returns                 parts, each made by the user's function
what an adapter knows: a frame, a ``Dataset``, ...  the adapter's source
a function                                          whatever it returns
a ref, a view or a stream                           the records, or what the stream gives
an array, or a dict or tuple of arrays              their rows
items by number, and a length                       the items; the build can begin at any of them
an iterable                                         what it gives, once
==================================================  ================================================
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cachelayer.builds.array_source import array_source, columns_of
from cachelayer.builds.batches import batch_records
from cachelayer.builds.element_batches import errors_named
from cachelayer.builds.sharded_source import Sharded, source_of_sharded
from cachelayer.builds.source import Source, by_number, has_items, length_of, read_once, source_of_items
from cachelayer.builds.source_files import FileSource, at_path, entry_points_of
from cachelayer.builds.unbatched_source import unbatched
from cachelayer.errors import ElementError, InvalidArgumentError, InvalidTypeError, MissingDependencyError
from cachelayer.protocols import DatasetRows, declared_spec, has_records, records_of
from cachelayer.provenance.environment import ENTRY_POINTS
from cachelayer.records.infer import overlaid
from cachelayer.specs import tree
from cachelayer.specs.spec import EncodedSpec
from cachelayer.specs.tree import Tree
from cachelayer.specs.values import Nullable
from cachelayer.streams.stream import Stream
from cachelayer.support.arguments import refuse_other_index

_ONCE = "pass a function that returns a new one, so that each build begins with the first element"
_TELL_THEIR_PLACE = (type(iter([0])), type(iter((0,))), type(iter(range(1))), type(iter("a")))
"""The types of iterators that tell how many elements they gave; once they have ended, they do not."""
Adapted = Source | Mapping[str, Any] | None
"""The result of an adapter: a source; or a dict of splits, each a dataset of its own, such as training and test; None
if the adapter does not know the object."""


def sources_by_split(obj: Any) -> Mapping[str, Any] | None:
    """Return the splits of an object by name: of a ``DatasetDict``, or a dict of datasets; None if it has none.

    Datasets are what is a source by itself, and no column: frames, refs, streams, and what frameworks call datasets.
    """
    if not isinstance(obj, Mapping):
        return None
    adapted = adapted_source(obj, unbatch=False, element_spec=None)
    if isinstance(adapted, Mapping):
        return adapted
    if adapted is not None or not obj or columns_of(obj) is not None or not all(map(_is_dataset, obj.values())):
        return None
    return {str(name): part for name, part in obj.items()}


def _is_dataset(obj: Any) -> bool:
    if has_records(obj) or isinstance(obj, Stream):
        return True
    frameworks = {entry.name for entry in entry_points_of(ENTRY_POINTS)}
    is_adapted = any(base.__module__.partition(".")[0] in frameworks for base in type(obj).__mro__)
    return is_adapted and columns_of((obj,)) is None and (hasattr(obj, "__iter__") or hasattr(obj, "__getitem__"))


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Source:
    """Return the source of what a user passes.

    With ``unbatch``, each element of ``obj`` is a batch, whose rows are the elements of the source.
    """
    obj = at_path(obj)
    refuse_other_index(f"a source of type {type(obj).__name__}", obj)
    if isinstance(obj, Sharded):
        return source_of_sharded(obj, partial(as_source, unbatch=unbatch, element_spec=element_spec))
    if isinstance(obj, (FileSource, Source)):
        if unbatch:
            raise InvalidArgumentError("unbatch=True: what files have are elements already: leave it out")
        return obj.open(element_spec) if isinstance(obj, FileSource) else obj
    adapted: Adapted = sources_by_split(obj) or adapted_source(obj, unbatch=unbatch, element_spec=element_spec)
    if isinstance(adapted, Mapping):
        raise InvalidTypeError(
            f"a {type(obj).__name__} has the splits {', '.join(adapted)}, each a dataset of its own: pass it to "
            "cache() or submit() itself, not a function that returns it, or choose one of them"
        )
    if adapted is not None:
        return adapted
    if callable(obj) and not isinstance(obj, Iterable):
        with errors_named(f"{getattr(obj, '__name__', type(obj).__name__)}() failed before it returned a source"):
            returned = obj()
        return as_source(returned, unbatch=unbatch, element_spec=element_spec)
    if has_records(obj) and not unbatch:
        return _of_records(obj, records_of(obj), element_spec)
    if isinstance(obj, Stream):
        return _rows_of_stream(obj, element_spec) if unbatch else _of_stream(obj, element_spec)
    return _of_arrays_or_elements(obj, unbatch=unbatch, element_spec=element_spec)


def _of_arrays_or_elements(obj: Any, *, unbatch: bool, element_spec: Tree | None) -> Source:
    """Return the source of the rows of arrays, or of the elements that an object gives."""
    # A tuple of arrays has columns, unless the declared spec of an element is no tuple: then the arrays are elements.
    is_records = isinstance(obj, tuple) and element_spec is not None and not isinstance(element_spec, tuple)
    columns = None if unbatch or is_records else columns_of(obj)
    if columns is not None:
        return array_source(columns, element_spec)
    if unbatch and isinstance(obj, Mapping) and columns_of(obj) is not None:
        raise InvalidArgumentError(
            "unbatch=True: a dict of arrays is a source of their rows already: leave it out, or pass a list of dicts"
        )
    _refuse_no_source(obj)
    _refuse_if_begun(obj)
    if has_items(obj) or not hasattr(obj, "__iter__"):
        source = source_of_items(obj)
    else:
        kind = type(obj).__name__
        with errors_named(f"iter() of the {kind} failed"):
            try:
                elements = iter(obj)
            except TypeError as error:
                raise InvalidTypeError(f"a {kind} is not a source: {error}") from error
        source = Source(kind, read_once(elements), length=length_of(obj))
    return unbatched(source, declared=element_spec) if unbatch else source


def _refuse_no_source(obj: Any) -> None:
    """Raise for an object that gives no elements, and for a dict, whose iterator gives keys."""
    is_value = isinstance(obj, (bytes, bytearray, Mapping)) or (isinstance(obj, np.ndarray) and obj.ndim == 0)
    if not is_value and (hasattr(obj, "__iter__") or hasattr(obj, "__getitem__")):
        return
    why = ""
    if isinstance(obj, Mapping):
        for key, child in obj.items():
            if columns_of((child,)) is None:
                why = f": [{key!r}] is {tree.describe(child)}"
                break
    raise InvalidTypeError(
        f"{tree.describe(obj)} is not a source{why}. Pass an iterable of elements, a function that "
        "returns one, an array, or a dict or tuple of arrays of equal length (np.asarray makes one of a list)"
    )


def _refuse_if_begun(iterator: Any) -> None:
    """Raise if elements were taken from an iterator before, as far as it tells: the build would get only the rest."""
    if type(iterator) in _TELL_THEIR_PLACE and iterator.__reduce__()[2:] > (0,):
        raise InvalidArgumentError(
            f"the {type(iterator).__name__} has begun, and the elements it gave are lost: {_ONCE}"
        )
    if inspect.isgenerator(iterator):
        state = inspect.getgeneratorstate(iterator)
        if state == inspect.GEN_CREATED:
            return
        has = "has ended" if state == inspect.GEN_CLOSED else "has begun, and the elements it gave are lost"
        raise InvalidArgumentError(f"the generator {iterator.__name__} {has}: {_ONCE}")


def adapted_source(obj: Any, *, unbatch: bool, element_spec: Tree | None) -> Adapted:
    """Ask the adapters whose framework is imported, and return the result of the first that knows an object."""
    for entry in entry_points_of(ENTRY_POINTS):
        if sys.modules.get(entry.name) is None:
            continue
        try:
            adapter: Callable[..., Adapted] = entry.load()
        except MissingDependencyError:
            # A framework that is too old takes no objects; it is imported for something else, maybe.
            if any(base.__module__.partition(".")[0] == entry.name for base in type(obj).__mro__):
                raise
            continue
        source = adapter(obj, unbatch=unbatch, element_spec=element_spec)
        if source is not None:
            return source
    return None


def told_by_adapter(obj: Any) -> Any:
    """Return what the adapter of an object's library says that it holds; None if there is no such adapter.

    An adapter that can tell has a function ``content`` beside its function ``as_source``.
    """
    libraries = {base.__module__.partition(".")[0] for base in type(obj).__mro__}
    for entry in entry_points_of(ENTRY_POINTS):
        if entry.name in libraries and sys.modules.get(entry.name) is not None:
            try:
                tell = getattr(sys.modules[entry.load().__module__], "content", None)
            except MissingDependencyError:
                return None
            return None if tell is None else tell(obj)
    return None


def _of_records(obj: object, records: DatasetRows[Any], declared: Tree | None) -> Source:
    """Return the source of a ref or a view.

    Images and sounds stay the files that they are, unless ``declared`` asks for arrays, or the view has images of one
    size.
    """
    base = _base(records)
    kind = type(obj).__name__
    if records.undecoded() is None:
        source = source_of_items(obj, fetch=partial(by_number, obj))
        return replace(source, element_spec=declared_spec(records), provenance=base)
    dataset = _files_of(records, declared) or records
    source = source_of_items(
        dataset, fetch=partial(_elements_of, dataset), at_once=batch_records(dataset.info.read_nbytes)
    )
    return replace(source, kind=kind, element_spec=dataset.element_spec, provenance=base)


def _elements_of(dataset: DatasetRows[Any], numbers: Sequence[int]) -> Sequence[Any]:
    return dataset.elements(np.asarray(numbers))


def _without_nullable_rows(batch: Any) -> Any:
    """Return a batch that is to be stored as one element; raise if some of its rows may be None."""
    for path, leaf in tree.leaf_values(batch):
        if isinstance(leaf, Nullable):
            hint = "Pass unbatch=True to store the rows of a batch, or pass elements instead of batches."
            raise ElementError("a value of an element", "rows of which some may be None", path=path, hint=hint)
    return batch


def _of_stream(stream: Stream[Any], declared: Tree | None) -> Source:
    reader = stream._reader
    spec: Tree | None = None
    # The spec of batches, and of what the user's functions return, is seen from the first of them.
    if not (reader.is_mapped or reader.schedule.batched):
        stored = _files_of(reader.records, declared)
        if stored is not None:
            reader = replace(reader, records=stored)
            stream = Stream(reader)
        spec = declared_spec(reader.records)
    items = map(_without_nullable_rows, stream) if reader.schedule.batched else iter(stream)
    return replace(_of_items(stream, items), element_spec=spec)


def _of_items(stream: Stream[Any], items: Iterator[Any]) -> Source:
    reader = stream._reader
    endless = "pass num_epochs= to stream()" if reader.schedule.is_endless else ""
    length = None if endless else len(stream)
    return Source(
        type(stream).__name__, read_once(items), length=length, endless=endless, provenance=_base(reader.records)
    )


def _rows_of_stream(stream: Stream[Any], declared: Tree | None) -> Source:
    """Return the source of the rows of a stream of batches. If functions made them, the first batches show the spec."""
    reader = stream._reader
    batches = _of_items(stream, iter(stream))
    if reader.is_mapped:
        return unbatched(batches, declared=declared)
    spec = declared_spec(reader.records)
    return replace(unbatched(batches, declared=overlaid(declared, spec)), element_spec=spec)


def _base(records: DatasetRows[Any]) -> dict[str, Any]:
    """Return what the provenance of a version says of the records that it is made of."""
    origins = records.origins
    if not origins.references:
        return {}
    base = {"digest": origins.digests.elements, "records": len(records), "references": list(origins.references)}
    return {"base": base}


def _files_of(records: DatasetRows[Any], declared: Tree | None) -> DatasetRows[Any] | None:
    """Return the elements with images and sounds as the files that are stored; None if they are to be arrays.

    They are if a declared spec asks for arrays in their places, or if the elements have images of one size.
    """
    stored = records.undecoded()
    if stored is None or stored.origins.digests.elements != records.origins.digests.elements:
        return None
    wanted = {} if declared is None else dict(tree.leaf_values(declared))
    files = [path for path, leaf in tree.leaves(stored.element_spec) if isinstance(leaf, EncodedSpec)]
    are_kept = all(path not in wanted or getattr(wanted[path], "dtype", None) is bytes for path in files)
    return stored if are_kept else None
