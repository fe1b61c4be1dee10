"""Copy shards and column files between datasets: only files that are not there, and only what has its SHA-256."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from cachelayer.errors import CorruptionError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.support.progress import Progress
from cachelayer.support.system_threads import Pool
from cachelayer.versions.blobs import copy
from cachelayer.versions.log import Log
from cachelayer.versions.publish import lost_files
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.verify import FILES_AT_ONCE, StoredFile, checked_records, records_of


def named_there(files: Sequence[StoredFile], log: Log, expected: Iterable[StoredFile] = ()) -> list[StoredFile]:
    """Return files of one dataset under the names that they have, or will have, in another that names ``expected``."""
    names = log.folder.names(paths.SHARDS)
    stems = {f"{paths.SHARDS}/{name.removesuffix('.array_record').removesuffix('.npy')}" for name in names}
    known = {*filter(paths.is_file, stems), *(file.file for file in expected)}
    head = log.head()
    good = sorted(known - lost_files(known, log, head), key=paths.generation_of)
    last = {paths.content_of(file): paths.generation_of(file) for file in good}
    return [replace(file, generation=last.get(file.content, head.generation)) for file in files]


def copy_files(
    source: StoredVersion,
    to: Store,
    files: Iterable[tuple[StoredFile, StoredFile]],
    progress: Progress,
    *,
    mends: bool = False,
) -> dict[str, CorruptionError]:
    """Copy the objects of files that the destination does not have, or has damaged.

    To mend a version, read what the destination has, though its checksums were sent along; and return the errors of
    files that are damaged in the source, by the names of their copies.
    """
    codecs = {file.name: stored.codec_of(source.name) for stored in source.manifest.sets for file in stored.files}
    pairs = list({new.name: (file, new) for file, new in files}.values())
    errors: dict[str, CorruptionError] = {}

    def copy_one(pair: tuple[StoredFile, StoredFile]) -> bool:
        file, new = pair

        def check(folder: Path) -> None:
            with source.naming_files(folder):
                for _ in checked_records(folder / Path(file.name).name, new, codecs[file.name]):
                    pass

        try:
            pairs = dict(zip(file.blobs, new.blobs, strict=True))
            return copy(source.folder, to, pairs, check, trusts_sent=not mends)
        except CorruptionError as error:
            if not mends:
                raise
            errors[new.name] = error
            return False

    threads = Pool(FILES_AT_ONCE, "cachelayer-copy")
    is_interrupted = False
    try:
        for (_, new), is_new in zip(pairs, threads.map(copy_one, pairs), strict=True):
            if is_new:
                progress.update(records_of(new), sum(blob.nbytes for blob in new.blobs))
            else:
                progress.skip(records_of(new))
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:
        # On Ctrl-C, do not wait for a network that may not answer.
        threads.shutdown(wait=not is_interrupted, cancel_futures=True)
    return errors
