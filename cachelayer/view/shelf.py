"""The storage behind the page: versions are looked up at each request, and stay open between requests."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

from cachelayer.access.dataref import DataRef
from cachelayer.drawing.class_names import class_names
from cachelayer.drawing.drawn_leaf import Detokenize, Look
from cachelayer.storage.storage import Storage
from cachelayer.versions.reference import Reference
from cachelayer.versions.snapshot import VersionInfo

_OPEN = 8


class Shelf:
    """A storage, and the versions of it that were opened lately. Thread-safe.

    Args:
        storage: the storage; with ``local_cache_bytes=0`` nothing is downloaded.
        detokenize: turns a list of tokens into text; None shows only their numbers.
    """

    def __init__(self, storage: Storage, detokenize: Detokenize | None = None) -> None:
        self.storage = storage
        self.detokenize = detokenize
        self._open: OrderedDict[tuple[str, VersionInfo], DataRef[Any]] = OrderedDict()
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
        key = (reference.dataset_id, reference.resolve(self.storage._snapshot(reference.dataset_id)))
        with self._lock:
            found = self._open.get(key)
            if found is not None:
                self._open.move_to_end(key)
                return found
        made = self.storage._open(*key)
        with self._lock:
            self._open[key] = made
            while len(self._open) > _OPEN:
                self._open.popitem(last=False)
        return made
