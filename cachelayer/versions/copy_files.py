"""Copy shards and column files between datasets: only files that are not there, and only what has its SHA-256."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from concurrent.futures import Future, as_completed
from dataclasses import replace
from pathlib import Path

from cachelayer.errors import CorruptionError
from cachelayer.logs import logger_of
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.progress import Progress
from cachelayer.records.codec import Codec
from cachelayer.system_threads import Pool
from cachelayer.temporary_files import sync_path, working_folder
from cachelayer.versions.damage import FILES_AT_ONCE, StoredFile, problems_of, records_of
from cachelayer.versions.log import Log
from cachelayer.versions.publish import lost_files
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.verify import checked_records

_log = logger_of("stores")


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
    skips_damaged: bool = False,
) -> dict[str, CorruptionError]:
    """Copy the objects of files that the destination does not have, or has damaged.

    With ``skips_damaged``, return the errors of files that are damaged in the source, by the names of their copies.
    """
    errors: dict[str, CorruptionError] = {}
    sets = source.manifest.sets
    codecs = {file.name: stored.codec_of(source.name) for stored in sets for file in stored.files}
    threads = Pool(FILES_AT_ONCE, "cachelayer-copy")
    is_interrupted = False
    try:
        work: dict[Future[bool], StoredFile] = {}
        for file, copy in {copy.name: (file, copy) for file, copy in files}.values():
            work[threads.submit(_copy_file, source, to, file, copy, codecs[file.name])] = copy
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


def _copy_file(source: StoredVersion, to: Store, file: StoredFile, copy: StoredFile, codec: Codec) -> bool:
    """Copy the objects of a file in their order, the shard last; return whether there was any to copy."""
    wrong = problems_of(to, copy)
    if not wrong:
        return False
    # What is put is what was hashed, together with what is there, even if the source changes meanwhile.
    with working_folder(to.working_folder()) as folder, source.naming_files(folder):
        for (name, facts), new_name in zip(file.files.items(), copy.files, strict=True):
            store, place = (source.folder, name) if new_name in wrong else (to, new_name)
            store.download(place, folder / Path(name).name, facts.nbytes)
        for _ in checked_records(folder / Path(file.name).name, copy, codec):
            pass
        for name, new_name in zip(file.files, copy.files, strict=True):
            if new_name in wrong:
                sync_path(folder / Path(name).name)
                to.move_in({folder / Path(name).name: new_name})
                level = logging.DEBUG if wrong[new_name] == "missing" else logging.WARNING
                _log.log(
                    level, "%s/%s was %s, and is put from %s", to.url, new_name, wrong[new_name], source.folder.url
                )
    return True
