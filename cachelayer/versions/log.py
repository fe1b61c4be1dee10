"""The log of a dataset: the one place where versions are published, tagged and deleted.

::

    _log/0000000001.json    the first change
    _log/0000000002.json    the second change, and the first again
    _log/0000000003.json    the third change: the head, read from entries 2 and 3
    _log/head               the number of the head, or of an earlier entry, and entries that it is read from: a hint
    _log/reserve            on a file system, room for entries that free space when the disk is full

Each entry says what changed since an earlier one: see :func:`cachelayer.versions.snapshot.base_of`. A writer puts its
entry under the next number, if that number is free: :meth:`Log.commit`. If another writer was first, it reads that
entry and prepares its own again. Each entry holds a random token, by which its writer recognises it if the reply to the
put was lost.
"""

from __future__ import annotations

import os
import random
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

from cachelayer.errors import BusyError, CacheLayerError, CorruptionError, FormatError, StorageError
from cachelayer.objects import paths
from cachelayer.objects.local import is_full
from cachelayer.objects.store import Store
from cachelayer.support import counting, json_values
from cachelayer.support.logs import logger_of
from cachelayer.support.system_threads import Pool
from cachelayer.support.user_warnings import warn
from cachelayer.versions.snapshot import Snapshot, base_of, chain_of

_log = logger_of("log")
_SECONDS_TO_WIN = 300.0
"""Seconds after which a writer that keeps losing the race for the next entry gives up."""
_FIRST_PAUSE = 0.01
_LONGEST_PAUSE = 2.0
_RESERVE_NBYTES = 1 << 16
"""Bytes in which two entries of the log and their pointers find room, each in blocks of a disk."""
_THREADS = 16
_MOST_IN_POINTER = 1 << 18
"""The most bytes of entries that the pointer holds: those of about a thousand versions."""
_ENTRIES_PER_ROUND = 256
"""Entries that the history asks for before it looks whether one is missing."""
_UNKNOWN = "unknown"


@dataclass(frozen=True)
class LogEvent:
    """One change of a dataset: who changed what, and when.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> ref = storage.cache(range(3), "numbers@v1")
        >>> storage.tag("numbers@v1", tag="best")
        >>> published, tagged = storage.history("numbers")
        >>> published.kind, tagged.sequence, tagged.kind, tagged.details
        ('publish', 2, 'tag', {'tag': 'best', 'version': 'v1'})
    """

    sequence: int
    """Number of the entry of the log, from 1."""
    kind: str
    """``publish``, ``tag``, ``untag``, ``delete``, ``copy``, ``collect``, or another word for the change."""
    time: str
    """When the change was made, in ISO 8601, UTC, by the clock of the host."""
    user: str
    """The user who made it; ``"unknown"`` if the entry does not say."""
    host: str
    """The host of the process; ``"unknown"`` if the entry does not say."""
    pid: int
    """The number of the process on its host; 0 if the entry does not say."""
    details: Mapping[str, Any]
    """The facts of the change, by name: the version, the tag, the number of files."""

    def __str__(self) -> str:
        words = [self.kind]
        for name, value in self.details.items():
            text = ",".join(map(str, value)) if isinstance(value, list) else str(value)
            words.append(f"{name}={text}")
        return f"{self.sequence}  {self.time}  {self.user}@{self.host}  {' '.join(words)}"


def event_of(entry: Snapshot) -> LogEvent:
    """Return the event of an entry of the log: its account of its change."""
    details = dict(entry.event)
    pid = details.pop("pid", 0)
    return LogEvent(
        sequence=entry.sequence,
        kind=str(details.pop("kind", _UNKNOWN)),
        time=str(details.pop("time", _UNKNOWN)),
        user=str(details.pop("user", _UNKNOWN)),
        host=str(details.pop("host", _UNKNOWN)),
        pid=pid if type(pid) is int else 0,
        details=details,
    )


class Log:
    """The log of one dataset. This object remembers the newest entry that it has read, and looks on from there."""

    def __init__(self, folder: Store) -> None:
        self.folder = folder
        self._chain: list[Snapshot] = []
        """The newest snapshot that was read, behind those that it was read from; empty before the first look."""
        self._raw: dict[int, bytes] = {}
        """The bytes of the entries that these were read from, by their numbers."""
        self._swept_by: dict[int, frozenset[str]] = {}
        """The files that entries deleted, by the numbers of these entries."""

    def head(self) -> Snapshot:
        """Return the newest snapshot; an empty one if nothing was ever published."""
        if self._chain:
            self._read_to(self._newest_number(self._chain[-1].sequence), self._raw)
        else:
            self._read_by_pointer()
        return self._chain[-1]

    def known(self) -> Snapshot:
        """Return the newest snapshot that this object has read; look for it if it has read none."""
        return self._chain[-1] if self._chain else self.head()

    def has_published(self, version: str, since: int) -> bool:
        """Return whether a version was published after the entry of a number, even if it is deleted now."""
        newest = self.head().sequence
        return any(version in self._changes_of(sequence).versions for sequence in range(since + 1, newest + 1))

    def _read_by_pointer(self) -> None:
        """Read the newest snapshot, which is looked for from the entry that the pointer names."""
        pointed, raws = self._pointer()
        unread = [number for number in chain_of(pointed) if number not in raws]
        if self.folder.local_path(paths.LOG) is not None:
            newest = self._newest_number(pointed)
            raws |= self._raws(unread)
        else:
            with Pool(1, "cachelayer-log") as thread:
                # The pointer is right unless a writer was interrupted, so this is one round trip most often.
                reading = thread.submit(self._raws, unread)
                newest = self._newest_number(pointed)
                raws |= reading.result()
        if newest == pointed and pointed and raws[pointed] is None:
            # Another program copied the storage while it changed, or removed an entry.
            newest = self._newest_number(0)
            warn(
                f"{self.folder.url}/{paths.LOG_HEAD} names entry {pointed} of the log, and the newest that is there is "
                f"{newest}: versions that later entries published are missing here. If the storage was copied by other "
                "means, copy it again; the next entry that is written ends this warning",
                logger="log",
            )
        self._read_to(newest, raws)

    def _pointer(self) -> tuple[int, dict[int, bytes | None]]:
        """Return the number in the pointer, and the entries that are copied there, by their numbers.

        Without a pointer, or with a damaged one, the number is 0.
        """
        raw = self.folder.read(paths.LOG_HEAD)
        with suppress(CorruptionError, FormatError), json_values.decoding(paths.LOG_HEAD, "pointer"):
            pointer = json_values.unsealed(raw or b"")
            sequence = json_values.integer("sequence", pointer["sequence"])
            entries = [entry.encode() for entry in pointer.get("entries", ())]
            # Not the newest: only the log itself tells that this is there.
            return sequence, dict(zip(reversed(chain_of(sequence)[:-1]), entries, strict=False))
        return 0, {}

    def _pointer_to(self, sequence: int) -> bytes:
        """Return the pointer to an entry, with the entries before it that it is read from, as long as there is room."""
        entries: list[str] = []
        room = _MOST_IN_POINTER
        for number in reversed(chain_of(sequence)[:-1]):
            room -= len(self._raw[number])
            if room < 0:
                break
            entries.append(self._raw[number].decode())
        return json_values.sealed({"sequence": sequence, **({"entries": entries} if entries else {})})

    def _newest_number(self, known: int) -> int:
        """Return the number of the newest entry, given the number of an entry. No entry between them is read."""
        step = 1
        while self._has(known + step):
            known += step
            step *= 2
        while step > 1:
            step //= 2
            if self._has(known + step):
                known += step
        return known

    def _has(self, sequence: int) -> bool:
        return self.folder.stat(paths.log_entry(sequence)) is not None

    def _read_to(self, newest: int, known: Mapping[int, bytes | None]) -> None:
        """Read the snapshot of an entry, and those that it is read from, given entries that were read already."""
        numbers = chain_of(newest)
        chain = [Snapshot(), *(each for each in self._chain if each.sequence in numbers)]
        raws = {**known, **self._raws([number for number in numbers if number not in known])}
        for number in numbers[len(chain) - 1 :]:
            chain.append(self._decoded(number, raws[number], chain[-1]))
        self._chain = chain
        self._raw = {number: raw for number in numbers if (raw := raws[number]) is not None}

    def _raws(self, numbers: Sequence[int]) -> dict[int, bytes | None]:
        """Return the bytes of entries, by their numbers; None for those that are missing."""
        names = list(map(paths.log_entry, numbers))
        if len(names) < 2 or self.folder.local_path(paths.LOG) is not None:
            return dict(zip(numbers, map(self.folder.read, names), strict=True))
        with Pool(_THREADS, "cachelayer-log") as threads:
            return dict(zip(numbers, threads.map(self.folder.read, names), strict=True))

    def _decoded(self, sequence: int, raw: bytes | None, base: Snapshot | None = None) -> Snapshot:
        if raw is None:
            raise self._missing(sequence)
        return Snapshot.decode(raw, f"{self.folder.url}/{paths.log_entry(sequence)}", sequence, base)

    def _changes_of(self, sequence: int) -> Snapshot:
        """Return what an entry says: its event, the files that it deleted, and what changed since an earlier one."""
        return self._decoded(sequence, self.folder.read(paths.log_entry(sequence)))

    def _missing(self, sequence: int) -> CorruptionError:
        return CorruptionError(f"{self.folder.url}/{paths.log_entry(sequence)}: an entry of the log is missing")

    def deleted_since(self, head: Snapshot, generation: int) -> frozenset[str]:
        """Return the files that entries have deleted from a generation on, up to a head.

        A file is good if no entry since the generation in its name has deleted it.
        """
        sweeps = head.sweeps[generation:]
        unknown = [sequence for sequence in sweeps if sequence not in self._swept_by]
        for sequence, raw in self._raws(unknown).items():
            self._swept_by[sequence] = self._decoded(sequence, raw).swept
        return frozenset().union(*(self._swept_by[sequence] for sequence in sweeps))

    def history(self) -> list[LogEvent]:
        """Return the events of all entries, the oldest first."""
        newest = self.head().sequence
        events: list[LogEvent] = []
        with Pool(_THREADS, "cachelayer-history") as threads:
            # An entry may claim any number: stop at the first that is missing, before asking for the rest.
            while len(events) < newest:
                first = len(events) + 1
                sequences = range(first, min(first + _ENTRIES_PER_ROUND, newest + 1))
                events += map(event_of, threads.map(self._changes_of, sequences))
        return events

    def commit(self, prepare: Callable[[Snapshot], Snapshot], *, frees: bool = False) -> Snapshot:
        """Put what a function makes of the newest snapshot as the next entry, and return the new head.

        Nothing else puts an entry. The function is first called with the snapshot that this object has read last, if
        it has read one. If another writer has added an entry since, it is called again, with that entry. Writers that
        lose pause for a random time, which grows from try to try::

            log.commit(lambda head: head.with_tag(version, tag, event))

        The function returns the same snapshot if there is nothing to change. If it raises an error, and another writer
        has added an entry, it is called again. A change that ``frees`` space may take the reserve of a full disk. If
        other writers add every next entry first, for five minutes besides those of preparing, BusyError is raised.
        """
        deadline = time.monotonic() + _SECONDS_TO_WIN
        for attempt in count():
            is_known = bool(self._chain) and attempt == 0
            head = self._chain[-1] if is_known else self.head()
            chain = self._chain
            begin = time.monotonic()
            prepared = self._prepared(prepare, head)
            # It may take long, as that of an erasure does, which writes shards: no other writer is to blame for that.
            deadline += time.monotonic() - begin
            if prepared is head and not (is_known and self._has(head.sequence + 1)):
                return head
            entry = None if prepared is None or prepared is head else self._put_next(prepared, chain, frees=frees)
            if entry is not None:
                return entry
            if time.monotonic() > deadline:
                break
            # Random, so that writers that lost together do not meet again; no secret depends on it.
            pause = random.random() * min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(attempt, 20))  # noqa: S311
            time.sleep(pause)
        raise BusyError(
            f"{self.folder.url}/{paths.LOG}: for {_SECONDS_TO_WIN:g} s, other writers added every next entry first, up "
            f"to {self.head().sequence}: is a program publishing, tagging or deleting in a loop? Try again later"
        )

    def _prepared(self, prepare: Callable[[Snapshot], Snapshot], head: Snapshot) -> Snapshot | None:
        """Prepare an entry on a head; return None if that fails and the head is not the newest any more."""
        try:
            return prepare(head)
        except StorageError:
            raise
        except CacheLayerError:
            if not self._has(head.sequence + 1):
                raise
            return None

    def _put_next(self, prepared: Snapshot, chain: Sequence[Snapshot], *, frees: bool) -> Snapshot | None:
        """Put a changed head as the next entry, and return the entry; None if another entry came first.

        ``chain`` is the head before it was changed, behind those that it was read from.
        """
        sequence = prepared.sequence + 1
        # What an entry has for a base is among those that the entry before it was read from.
        bases = [each for each in chain if each.sequence <= base_of(sequence)]
        # The files that an entry deleted are listed in that entry alone: a later one drops the list that it inherits.
        deletes_files = prepared.sweeps[-1:] == (sequence,)
        entry = replace(prepared, sequence=sequence, swept=prepared.swept if deletes_files else frozenset[str]())
        raw = entry.encode(uuid.uuid4().hex, bases[-1])
        name = paths.log_entry(sequence)
        try:
            is_ours = self.folder.put_if_absent(name, raw)
        except StorageError as error:
            if not (frees and is_full(error)):
                raise
            self.folder.delete(paths.LOG_RESERVE)
            self.folder.delete(paths.LOG_HEAD)
            is_ours = self.folder.put_if_absent(name, raw)
        if not (is_ours or self.folder.read(name) == raw):
            counting.count(lost_races=1)
            fields = {"object": f"{self.folder.url}/{name}"}
            _log.info("%(object)s: another writer added it first, so this one prepares its own again", fields)
            return None
        self._chain = [*bases, entry]
        self._raw = {number: self._raw.get(number, raw) for number in chain_of(sequence)}
        _log.info("%(dataset)s: entry of the log: %(event)s", {"dataset": self.folder.url, "event": event_of(entry)})
        try:
            self.folder.put(paths.LOG_HEAD, self._pointer_to(sequence))
        except StorageError as error:
            # The entry is there: a pointer that cannot be written must not look like a failure.
            _log.warning("the pointer to the newest entry of the log stays behind: %(error)s", {"error": error})
        if not frees:
            self.keep_reserve()
        return entry

    def keep_reserve(self) -> None:
        """Keep some room on a disk, in which entries that free space can be written when it is full."""
        with suppress(StorageError, OSError):
            path = self.folder.local_path(paths.LOG_RESERVE)
            if path is None:
                return
            # The next entry may say all again that those say which the head was read from.
            names = [paths.LOG_RESERVE, *(paths.log_entry(each.sequence) for each in self._chain)]
            room, *entries = [0 if stat is None else stat.nbytes for stat in map(self.folder.stat, names)]
            nbytes = 4 * sum(entries)
            if 2 * room < nbytes:
                # Some file systems store zeros in no room at all.
                path.write_text(os.urandom(max(_RESERVE_NBYTES, nbytes) // 2).hex())


def has_log(folder: Store) -> bool:
    """Return whether a folder is a dataset: it has a log."""
    return folder.stat(paths.log_entry(1)) is not None
