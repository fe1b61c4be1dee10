"""The blobs of a version: which are missing, which are damaged, and how they come into a store.

::

    missing    asks for sizes                         builds that go on, and publishing
    damaged    asks for sizes, and compares sums      verify, repair, copy
    put_files  puts what is not there                 builds
    copy       puts what is missing or damaged        repair, copy

So "it is there" and "it is good" mean one thing to all of them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Literal

import google_crc32c

from cachelayer.errors import CorruptionError
from cachelayer.objects.paths import WORKING
from cachelayer.objects.store import Blob, Stat, Store
from cachelayer.support.logs import logger_of
from cachelayer.support.system_threads import Pool
from cachelayer.support.temporary_files import sync_path, working_folder

Problem = Literal["missing", "damaged"]
_log = logger_of("stores")
_THREADS = 16
_READ_NBYTES = 32 << 20


def missing(store: Store, blobs: Collection[Blob]) -> set[Blob]:
    """Return the blobs that a store does not have with their sizes. Each is asked for."""
    with Pool(_THREADS, "cachelayer-files") as threads:
        facts = threads.map(store.stat, [blob.name for blob in blobs])
        pairs = zip(blobs, facts, strict=True)
        return {blob for blob, stat in pairs if stat is None or stat.nbytes != blob.nbytes}


def damaged(store: Store, blobs: Iterable[Blob], *, trusts_sent: bool = False) -> dict[str, Problem]:
    """Return the blobs that a store does not have, or has with other bytes, by their names.

    This reads the bytes of each blob whose checksum the store has not computed; with ``trusts_sent``, unless the one
    that was sent with the object is right.
    """
    problems: dict[str, Problem] = {}
    for blob in blobs:
        stat = store.stat(blob.name)
        if stat is None:
            problems[blob.name] = "missing"
        elif trusts_sent and _is_as_sent(stat, blob):
            continue
        elif stat.nbytes != blob.nbytes or _crc32c_of(store, blob, stat) != blob.crc32c:
            problems[blob.name] = "damaged"
    return problems


def put_files(store: Store, files: Mapping[Path, Blob]) -> None:
    """Turn durable files into blobs, one after the other, unless they are there. The files may be gone afterwards.

    As the last is put last, it is asked for first: without it, nobody has put all of them. A blob whose checksum the
    store does not know is put again: to compare it would take a download.
    """
    *_, last = files.values()
    is_new = store.stat(last.name) is None
    for path, blob in files.items():
        stat = None if is_new else store.stat(blob.name)
        if stat is None or not _is_as_sent(stat, blob):
            store.put_file(path, blob)


def copy(
    source: Store, to: Store, pairs: Mapping[Blob, Blob], check: Callable[[Path], object], *, trusts_sent: bool
) -> bool:
    """Copy what the destination does not have, or has damaged as :func:`damaged` says; return whether there was any.

    ``pairs`` are in the order in which blobs are put. ``check`` raises if one of the files in a folder is not what its
    name says. What is put is what was checked, together with what is there, even if the source changes meanwhile.
    """
    wrong = damaged(to, pairs.values(), trusts_sent=trusts_sent)
    if not wrong:
        return False
    with working_folder(to.local_path(WORKING)) as folder:
        paths = {blob: folder / Path(blob.name).name for blob in pairs}
        for blob, new in pairs.items():
            if new.name in wrong:
                source.download(blob.name, paths[blob], blob.nbytes)
            else:
                to.download(new.name, paths[blob], blob.nbytes)
        check(folder)
        for blob, new in pairs.items():
            if new.name in wrong:
                sync_path(paths[blob])
                to.put_file(paths[blob], new)
                level = logging.DEBUG if wrong[new.name] == "missing" else logging.WARNING
                _log.log(level, "%s/%s was %s, and is put from %s", to.url, new.name, wrong[new.name], source.url)
    return True


def _is_as_sent(stat: Stat, blob: Blob) -> bool:
    return stat.nbytes == blob.nbytes and blob.crc32c in {stat.crc32c, stat.sent_crc32c}


def _crc32c_of(store: Store, blob: Blob, stat: Stat) -> int | None:
    """Return the CRC32C of an object, which is read if the store has not computed it; None if it is gone meanwhile."""
    if stat.crc32c is not None:
        return stat.crc32c
    checksum = 0
    try:
        for start in range(0, blob.nbytes, _READ_NBYTES):
            place = blob.name, start, min(start + _READ_NBYTES, blob.nbytes)
            for body in store.read_ranges([place]):
                checksum = google_crc32c.extend(checksum, bytes(body))
    except CorruptionError:
        return None
    return checksum
