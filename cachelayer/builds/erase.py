"""Erase records from every version of a dataset whose shards hold them.

::

    shard aa    [0: Ann][1: Bob][2: Cleo]      versions v1 and v2 name it
    shard bb    [0: Ann][1:    ][2: Cleo]      written anew: an empty record 1, and all others keep their numbers
    log         entry n: v1 and v2 name bb; aa is one of the files of deleted versions, with a grace

The entry of the log follows its newest entry, as every entry does: if another process was first, the versions of its
entry are looked at again. Shards that were written anew are kept in mind, so that none is written twice.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial

import numpy as np

from cachelayer.arrayrecord import index
from cachelayer.arrayrecord.compression import Compression
from cachelayer.builds.extensions import column_rows, put_column_file
from cachelayer.builds.shard_pipeline import ShardTarget, shard_target
from cachelayer.errors import VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.provenance.environment import event
from cachelayer.records.codec import codec_named
from cachelayer.records.frames import Frames
from cachelayer.records.spans import Spans
from cachelayer.specs.tree import Tree
from cachelayer.support.memory import Bytes, Ints
from cachelayer.support.progress import Progress
from cachelayer.support.system_threads import Pool
from cachelayer.support.user_warnings import warn
from cachelayer.versions.derive import without_records
from cachelayer.versions.lease import Leases
from cachelayer.versions.log import Log
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.publish import NewVersion, lost_files, put_version
from cachelayer.versions.shard_set import ShardSet
from cachelayer.versions.shard_table import ShardFile, ShardTable
from cachelayer.versions.snapshot import Snapshot, VersionInfo
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.verify import checked_records

_THREADS = 16


class Erasure:
    """Erases records from a version, and from all versions of the dataset that have them in the same shards.

    Records are counted over the shards of the version. The old files stay for ``grace`` seconds, for programs that read
    them. With ``names_others``, a warning names the versions that hold equal records elsewhere.
    """

    def __init__(
        self,
        version: StoredVersion,
        numbers: Ints,
        reason: str,
        grace: float,
        progress: bool | None = None,
        *,
        names_others: bool = True,
    ) -> None:
        self._log = Log(version.folder)
        self._dataset = version.folder
        self._name = version.name
        self._version = version.info
        self._numbers = np.unique(numbers)
        self._reason = reason
        self._grace = grace
        self._progress = progress
        self._names_others = names_others
        self._versions = {version.info: version}
        """The versions whose manifests were read, or put."""
        self._written: dict[tuple[str, bytes], ShardFile] = {}
        """The shards that were written anew, by the content of the old shard and the numbers of its erased records."""

    def erase(self) -> StoredVersion:
        """Erase the records, and return the version without them."""
        name = self._version.version
        before = self._log.head()
        manifest = self._versions[self._version].manifest
        rows_of = self._rows(manifest)
        shards = [shard for shard in manifest.shards if shard.content in rows_of]
        known = [_known_by(self._dataset, shard, rows_of[shard.content]) for shard in shards]
        leases = Leases(self._dataset.folder(paths.builds(name)))
        with (
            Progress(f"erase {self._name}", None, self._progress) as progress,
            # The lease keeps gc from deleting the new shards before the log names them.
            leases.hold(),
            shard_target(self._dataset, None, before.generation) as target,
        ):
            entry = self._log.commit(lambda head: self._without(head, target, progress))
        others = self._others_with(known, before, entry, manifest.rows.element_spec) if self._names_others else []
        if others:
            warn(
                f"{self._name}: equal records, or their fields, are still in {', '.join(others)}: erase them there "
                "too; where=... with every_version=True looks for them in every version"
            )
        [erased] = self._read([entry.versions[name]])
        return erased

    def _refuse_if_replaced(self, head: Snapshot) -> None:
        """Raise if the version is not there any more. An earlier erasure does no harm: records keep their numbers."""
        now = head.versions.get(self._version.version)
        successor = head.successor(self._version.digest)
        change = head.change_of(self._version, files_matter=False)
        if change and (now is None or successor is None or now.digest != successor.digest):
            raise VersionNotFoundError(
                f"{self._name} {change} meanwhile, so nothing was erased: look again which records are meant"
            )

    def _read(self, infos: Iterable[VersionInfo]) -> list[StoredVersion]:
        """Return versions with their manifests, each of which is read once, many at a time."""
        infos = list(infos)
        unread = [StoredVersion(self._dataset, info) for info in infos if info not in self._versions]
        with Pool(_THREADS, "cachelayer-erase") as threads:
            list(threads.map(lambda version: version.manifest, unread))
        self._versions |= {version.info: version for version in unread}
        return [self._versions[info] for info in infos]

    def _rows(self, manifest: Manifest) -> dict[str, Ints]:
        """Return the numbers of the records to erase in each shard of the version, by the content of the shard.

        Records that are erased already are left out.
        """
        records = np.setdiff1d(self._numbers, np.array(manifest.erased, np.int64))
        ends = manifest.shards.records.cumsum()
        shards = ends.searchsorted(records, side="right")
        rows: dict[str, Ints] = {}
        for shard in np.unique(shards).tolist():
            begin = ends[shard] - manifest.shards.records[shard]
            content = manifest.shards[shard].content
            rows[content] = np.union1d(rows.get(content, np.empty(0, np.int64)), records[shards == shard] - begin)
        return rows

    def _without(self, head: Snapshot, target: ShardTarget, progress: Progress) -> Snapshot:
        """Put the shards and manifests of all versions without the records, and return a snapshot that names them."""
        self._refuse_if_replaced(head)
        [named] = self._read([head.versions[self._version.version]])
        rows = self._rows(named.manifest)
        if not rows:
            return head
        target = replace(target, generation=head.generation)
        holders = {
            version.info: version
            for version in self._read(head.versions_with_files)
            if any(shard.content in rows for shard in version.manifest.shards)
        }
        names = [info.version for info in head.versions.values() if info in holders]
        change = event("erase", versions=names, records=len(self._numbers), reason=self._reason)
        deletions = []
        for deletion in head.deleted:
            # A deleted version has the records too: its files go as soon.
            grace = min(deletion.grace, self._grace) if deletion.info in holders else deletion.grace
            deletions.append(replace(deletion, grace=grace))
        after = replace(head, deleted=tuple(deletions))
        for name in names:
            manifest = self._manifest_without(head, holders[head.versions[name]], rows, target)
            put = put_version(self._dataset, NewVersion(name, manifest, change), head.generation)
            progress.update(len(self._numbers), manifest.nbytes)
            self._versions[put.info] = put
            files = [file.file for file in manifest.files]
            after = after.replacing(put.info, files, change, reason=self._reason, grace=self._grace)
        return after

    def _others_with(self, known: list[Ints], before: Snapshot, entry: Snapshot, spec: Tree) -> list[str]:
        """Return the versions that still have equal records, or other fields that were made of them."""
        manifests = {version.info: version.manifest for version in self._read(entry.versions.values())}
        shards = {shard.content: shard for manifest in manifests.values() for shard in manifest.shards}
        known_records = np.concatenate([np.empty(0, np.int64), *known])
        with Pool(_THREADS, "cachelayer-erase") as threads:
            there = zip(shards, threads.map(partial(_known_by, self._dataset), shards.values()), strict=True)
            equal = {name for name, others in there if np.isin(known_records, others).any()}
        digests = [info.digest for info in before.versions.values() if info not in manifests]
        others = []
        for info, manifest in manifests.items():
            has = any(shard.content in equal for shard in manifest.shards)
            if manifest.rows.element_spec != spec and before.versions.get(info.version) == info:
                has = any(digest in str(manifest.provenance.get("base")) for digest in digests)
            if has:
                others.append(info.version)
                digests.append(info.digest)
        return others

    def _manifest_without(
        self, head: Snapshot, version: StoredVersion, rows: Mapping[str, Ints], target: ShardTarget
    ) -> Manifest:
        """Put the shards and column files of a version without the records, and return their manifest."""
        shards = version.manifest.shards
        begins = shards.records.cumsum() - shards.records
        pairs = zip(begins, shards, strict=True)
        numbers = np.concatenate([begin + rows[shard.content] for begin, shard in pairs if shard.content in rows])
        sets = [self._without_records(version, each, numbers, head, target) for each in version.manifest.sets]
        return without_records(version, numbers.tolist(), sets, self._reason)

    def _without_records(
        self, version: StoredVersion, stored: ShardSet, records: Ints, head: Snapshot, target: ShardTarget
    ) -> ShardSet:
        """Put the records of a version, or a group of its columns, without some records, and return what was put."""
        if stored.array is not None:
            rows = _with_zeros(column_rows(version, stored.array), records)
            return replace(stored, array=put_column_file(target, stored.element_spec, stored.records, rows))
        shards = list(stored.shards)
        ends = stored.shards.records.cumsum()
        shard_of_record = ends.searchsorted(records, side="right")
        for number in np.unique(shard_of_record).tolist():
            shard = shards[number]
            within = records[shard_of_record == number] - (ends[number] - shard.stats.records)
            key = (shard.content, within.tobytes())
            written = self._written.get(key)
            if written is None or lost_files([written.file], self._log, head):
                written = write_anew(version, stored, shard, within, target)
                self._written[key] = written
            shards[number] = written
        return replace(stored, shards=ShardTable(shards))


def _with_zeros(rows: Iterator[Bytes], records: Ints) -> Iterator[Bytes]:
    """Yield the rows of a file, in which those of some records are made zeros."""
    begin = 0
    for some in rows:
        end = begin + len(some)
        some[records[(records >= begin) & (records < end)] - begin] = 0
        yield some
        begin = end


def _known_by(dataset: Store, shard: ShardFile, rows: Ints | slice = slice(None)) -> Ints:
    """Return the length and the checksum of records of a shard, as one number each."""
    records = index.rows_of(dataset.read(paths.index_of(shard.name)) or bytes(index.IDENTITY_NBYTES))[rows]
    return np.asarray((records["length"].astype(np.int64) << 32) + records["crc32c"])


def write_anew(
    version: StoredVersion, stored: ShardSet, shard: ShardFile, rows: Ints, target: ShardTarget
) -> ShardFile:
    """Write a shard anew with some of its records empty, so that all others keep their numbers, and put it.

    ``stored`` are the records of the version, or the group of its columns, that the shard belongs to.
    """
    stats = shard.stats
    target.room.take(stats.nbytes)
    compression = Compression.parse(stats.compression)
    codec = codec_named(stored.codec, stored.element_spec)
    writer = target.begin_shard(compression, codec)
    try:
        # Who writes other records anew would give them a checksum that fits.
        with version.local_file(shard) as path:
            for numbers, checked in checked_records(path, shard, codec):
                records = checked.packed()
                lengths = np.where(np.isin(numbers, rows), 0, records.lengths)
                writer.write(Frames.of(Spans.in_buffer(records.buffer, records.starts, lengths)))
        return target.put(writer, target.dataset)
    except BaseException:
        writer.give_up()
        raise
