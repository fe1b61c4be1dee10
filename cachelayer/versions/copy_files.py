"""Copy shards and column files between datasets: only files that are not there, and only bytes with their checksums."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import replace

from cachelayer.errors import CorruptionError
from cachelayer.logs import logger_of
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.progress import Progress
from cachelayer.system_threads import Pool
from cachelayer.versions.column_file import ColumnFile
from cachelayer.versions.damage import FILES_AT_ONCE, problems_of, records_of
from cachelayer.versions.log import Log
from cachelayer.versions.publish import lost_files
from cachelayer.versions.shard_table import FileChecksum, ShardFile

_log = logger_of("stores")
StoredFile = ShardFile | ColumnFile


def named_there(files: Sequence[StoredFile], log: Log, expected: Iterable[StoredFile] = ()) -> list[StoredFile]:
    """Return files of one dataset under the names that the same files have, or will have, in another dataset.

    Args:
        expected: files that versions of the other dataset name, though they may be missing.
    """
    names = log.folder.names(paths.SHARDS)
    stems = {f"{paths.SHARDS}/{name.removesuffix('.array_record').removesuffix('.npy')}" for name in names}
    known = {*filter(paths.is_file, stems), *(file.file for file in expected)}
    head = log.head()
    good = sorted(known - lost_files(known, log, head), key=paths.generation_of)
    last = {paths.content_of(file): paths.generation_of(file) for file in good}
    return [replace(file, generation=last.get(file.content, head.generation)) for file in files]


def copy_files(
    source: Store,
    to: Store,
    files: Iterable[tuple[StoredFile, StoredFile]],
    progress: Progress,
    *,
    skips_damaged: bool = False,
) -> dict[str, CorruptionError]:
    """Copy the objects of files that the destination does not have, or has damaged.

    Args:
        files: each file with its copy.
        skips_damaged: if a file is damaged in the source, go on with the others; else raise its error.

    Returns:
        The errors of files that are damaged in the source, by the names of their copies.
    """
    errors: dict[str, CorruptionError] = {}
    threads = Pool(FILES_AT_ONCE, "cachelayer-copy")
    is_interrupted = False
    try:
        work: dict[Future[bool], StoredFile] = {}
        for file, copy in {copy.name: (file, copy) for file, copy in files}.values():
            work[threads.submit(_copy_file, source, to, file, copy)] = copy
        for done in as_completed(work):
            copy = work[done]
            try:
                is_new = done.result()
            except CorruptionError as error:
                if not skips_damaged:
                    raise
                errors[copy.name] = error
                continue
            if is_new:
                progress.update(records_of(copy), sum(facts.nbytes for facts in copy.files.values()))
            else:
                progress.skip(records_of(copy))
    except KeyboardInterrupt:
        is_interrupted = True
        raise
    finally:
        # On Ctrl-C, do not wait for a network that may not answer.
        threads.shutdown(wait=not is_interrupted, cancel_futures=True)
    return errors


def _copy_file(source: Store, to: Store, file: StoredFile, copy: StoredFile) -> bool:
    """Copy the objects of a file in their order, the shard last; return whether there was any to copy."""
    wrong = problems_of(to, copy)
    for (name, facts), new_name in zip(file.files.items(), copy.files, strict=True):
        if new_name in wrong:
            _copy_object(source, to, name, facts, new_name)
            level = logging.DEBUG if wrong[new_name] == "missing" else logging.WARNING
            _log.log(level, "%s/%s was %s, and is put from %s", to.url, new_name, wrong[new_name], source.url)
    return bool(wrong)


def _copy_object(source: Store, to: Store, name: str, facts: FileChecksum, new_name: str) -> None:
    local = source.local_path(name)

    def check(checksum: int | None) -> None:
        if checksum != facts.crc32c:
            raise CorruptionError(
                f"{source.url}/{name}: what was read does not match its checksum: restore it, or build again"
            )

    if local is None:
        to.write_atomically(new_name, lambda path: check(source.download(name, path, facts.nbytes)))
    else:
        check(source.crc32c(name))
        to.upload(local, new_name)
