"""The log of a dataset: the one place where versions are published, tagged and deleted.

An entry is a whole snapshot under the next number, put if absent. Who loses the race for a number reads the winner's
entry and decides again. An entry holds a token, so that a put whose reply was lost is recognised as one's own.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import count

from cachelayer.errors import CorruptionError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.versions.snapshot import Snapshot

_PATIENCE = 300.0
"""Seconds in which a writer loses the race for the next entry before it gives up."""
_FIRST_PAUSE, _LONGEST_PAUSE = 0.01, 2.0


class Log:
    """The log of one dataset. It is read on from where this object has last seen its end.

    Args:
        store: where it is kept.
        dataset_id: whose log it is.
    """

    def __init__(self, store: ObjectStore, dataset_id: str) -> None:
        self.store = store
        self.dataset_id = dataset_id
        self._seen: Snapshot | None = None

    def head(self) -> Snapshot:
        """The newest snapshot; one without versions where nothing was ever published."""
        head = self._hinted() if self._seen is None else self._newest(self._seen)
        self._seen = head
        return head

    def _hinted(self) -> Snapshot:
        """The newest snapshot, looked for from the number that the hint says, which may be any."""
        raw = self.store.read(paths.log_head(self.dataset_id)) or b""
        hint = int(raw) if raw.isdigit() and len(raw) < 20 else 0
        head = self._entry(self._last(hint)) if hint else None
        return self._newest(Snapshot()) if head is None else head

    def _newest(self, known: Snapshot) -> Snapshot:
        """The newest snapshot, looked for from one that was seen."""
        last = self._last(known.sequence)
        head = known if last == known.sequence else self._entry(last)
        if head is None:
            raise CorruptionError(f"{self.store.url}: {self._name(last)} is missing")
        return head

    def _last(self, sequence: int) -> int:
        """The number of the last entry from one on; no entry is read, for older ones may be damaged."""
        while self.store.exists(self._name(sequence + 1)):
            sequence += 1
        return sequence

    def _entry(self, sequence: int) -> Snapshot | None:
        name = self._name(sequence)
        raw = self.store.read(name)
        return None if raw is None else Snapshot.decode(raw, f"{self.store.url}/{name}", sequence)

    def _name(self, sequence: int) -> str:
        return paths.log_entry(self.dataset_id, sequence)

    def commit(self, decide: Callable[[Snapshot], Snapshot]) -> Snapshot:
        """Append what ``decide`` makes of the newest snapshot; it is asked again whenever another entry comes first.

        Nothing is appended where it gives that snapshot back as it is.

        Raises:
            CacheLayerError: whatever ``decide`` raises; nothing is appended then.
            StorageError: if other entries come first for minutes; nothing is appended then.
        """
        token = uuid.uuid4().hex
        for _ in self._tries():
            head = self.head()
            decided = decide(head)
            if decided is head:
                return head
            entry = replace(decided, sequence=head.sequence + 1)
            raw = entry.encode(token)
            name = self._name(entry.sequence)
            if self.store.put_if_absent(name, raw) or self.store.read(name) == raw:
                self._seen = entry
                # The entry is there: a hint that cannot be written must not look like a failure.
                with suppress(StorageError):
                    self.store.put(paths.log_head(self.dataset_id), str(entry.sequence).encode())
                return entry
        raise StorageError(
            f"{self.store.url}/{paths.log(self.dataset_id)}: for {_PATIENCE:g} s others put each next entry first, "
            f"up to {self.head().sequence}: is a program publishing, tagging or deleting in a loop? Try again later"
        )

    @staticmethod
    def _tries() -> Iterator[int]:
        """Yield the numbers of tries, after a pause that is longer each time, and another one for each writer."""
        until = time.monotonic() + _PATIENCE
        for number in count():
            yield number
            if time.monotonic() > until:
                return
            # Not for secrets: writers that lose at once must not try again at once.
            time.sleep(random.random() * min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(number, 20)))  # noqa: S311


def datasets(store: ObjectStore) -> list[str]:
    """Return the folders that are datasets: those that have our log. What else lies there is somebody else's."""
    return [name for name in store.names("") if paths.is_dataset_id(name) and has_log(store, name)]


def has_log(store: ObjectStore, dataset_id: str) -> bool:
    """Return whether a folder has our log; one that this user may not look into has none."""
    try:
        return store.exists(paths.log_entry(dataset_id, 1))
    except StorageError as error:
        # Whatever else fails is the store itself.
        if isinstance(error.__cause__, PermissionError):
            return False
        raise
