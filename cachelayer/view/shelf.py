"""The storage behind the page: versions are looked up at each request, and stay open between requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from typing import Any, TypeVar

from cachelayer.access.dataref import DataRef
from cachelayer.drawing.class_names import class_names
from cachelayer.drawing.drawn_leaf import Detokenize, Look
from cachelayer.storage.storage import Storage
from cachelayer.versions.reference import Reference
from cachelayer.view.made_views import MadeView, made_view

_OPEN = 8
T = TypeVar("T")


class Shelf:
    """A storage, and the versions of it that were opened lately. Thread-safe.

    Args:
        storage: the storage; with ``local_cache_bytes=0`` nothing is downloaded.
        detokenize: turns a list of tokens into text; None shows only their numbers.
    """

    def __init__(self, storage: Storage, detokenize: Detokenize | None = None) -> None:
        self.storage = storage
        self.detokenize = detokenize
        self._open: OrderedDict[Hashable, Future[DataRef[Any]]] = OrderedDict()
        self._made: OrderedDict[Hashable, Future[MadeView]] = OrderedDict()
        self._lock = threading.Lock()

    def look(self, ref: DataRef[Any], side: int, leaves: int) -> Look:
        """Return how records of a version are drawn, with at most so many pixels a side, and leaves."""
        return Look(side, leaves, self.detokenize, class_names(ref.metadata))

    def ref(self, dataset_id: str, version: str | None) -> DataRef[Any]:
        """Return a version, by its name, a tag, ``latest`` or ``sha256:<digest prefix>``.

        Raises:
            CacheLayerError: as :meth:`cachelayer.Storage.fetch` does.
        """
        reference = Reference.parse(dataset_id, version)
        info = reference.resolve(self.storage._snapshot(reference.dataset_id))
        key = reference.dataset_id, info
        return self._kept(self._open, key, lambda: self.storage._open(reference.dataset_id, info))

    def made_view(self, ref: DataRef[Any], text: str, buckets: str) -> MadeView:
        """Return a view of a version; see :func:`cachelayer.view.made_views.made_view`.

        It stays open, because the weights of a sample, the plan of packs and the records of buckets take long to make.

        Raises:
            CacheLayerError: if the text is none of a view, or the library refuses it.
        """
        key = ref.reference, text, buckets
        return self._kept(self._made, key, lambda: made_view(ref, text, buckets))

    def _kept(self, shelf: OrderedDict[Hashable, Future[T]], key: Hashable, make: Callable[[], T]) -> T:
        """Return what has a key, made if it is new; the ones that were used last are kept.

        Requests that come while it is made wait for it, so that a reload of a slow page makes nothing twice.
        """
        with self._lock:
            is_new = key not in shelf
            made = shelf.setdefault(key, Future())
            shelf.move_to_end(key)
            while len(shelf) > _OPEN:
                shelf.popitem(last=False)
        if is_new:
            try:
                made.set_result(make())
            except BaseException as error:  # noqa: BLE001 - it is raised again below
                with self._lock:
                    if shelf.get(key) is made:
                        del shelf[key]
                made.set_exception(error)
        return made.result()
