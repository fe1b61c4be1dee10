"""Make versions that hold the records of other versions in shards of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from cachelayer.access.dataref import DataRef
from cachelayer.access.view import View
from cachelayer.arguments import required
from cachelayer.arrayrecord.compression import Compression
from cachelayer.builds.shard_cuts import DEFAULT_SHARD_BYTES, RECORD_OVERHEAD
from cachelayer.errors import AlreadyExistsError, InvalidArgumentError, InvalidNameError
from cachelayer.objects import paths
from cachelayer.records.leaf_names import field_names
from cachelayer.storage.submit import BuildingCatalog, check_version
from cachelayer.streams.stream_options import check_seed
from cachelayer.user_warnings import warn
from cachelayer.versions.log import Log
from cachelayer.versions.reference import Reference, dataset_and_version

if TYPE_CHECKING:
    from cachelayer.access.stored_records import StoredRecords
    from cachelayer.builds.build_options import BuildOptions
    from cachelayer.builds.build_parts import Hosts
    from cachelayer.builds.rewrite_parts import RewriteParts
    from cachelayer.engines import Engine

AS_BASE = "as base"
"""The compression of the base."""
_LARGE_RECORD = 1 << 20
"""From this size on, a request for each record is what reading in order takes too."""


class RewritingCatalog(BuildingCatalog):
    """A catalog that also writes versions again."""

    def rewrite(
        self,
        dataset_id: str,
        base: str | View[Any] | None = None,
        new: str | None = None,
        *,
        shuffle_seed: int | None = None,
        compression: str | None = AS_BASE,
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        fields: Sequence[str] | None = None,
        workers: int = 1,
        hosts: tuple[int, int] | None = None,
        engine: str | Engine | None = None,
        resume: bool = True,
        progress: bool | None = None,
    ) -> DataRef[Any]:
        """Publish a version with the records of another in shards of its own: shuffled, compressed or cut otherwise.

        Records are copied as they are stored, without decoding, unless ``fields`` leaves some of each out. The shards
        are the same for any number of workers and hosts, on any engine, and after any interruption. If the version
        exists and was made in this way, it is returned.

        Args:
            dataset_id: the dataset of the new version; or the dataset and the base in one text, ``"cifar10@v2"``.
            base: a version of the dataset, a tag or ``latest``; or a :class:`DataRef` of any storage, a view of one,
                what :func:`cachelayer.concat` returns, or ``fields()`` of any of these.
            new: the name of the new version.
            shuffle_seed: an integer in [0, 2**64): record i of the new version is the one that the first epoch of
                ``base.stream(shuffle=True, seed=shuffle_seed)`` has at place i. None keeps the order.
            compression: None, ``"zstd"`` or ``"zstd:<level>"``; by default as in the first shard of the base, with the
                default level if that is zstd.
            shard_bytes: the approximate size of a shard file, in bytes.
            fields: keep only these fields of each element: keys of a dict, or ``"meta/url"`` for a key in a dict within
                it. None keeps all.
            workers, engine, resume, progress: as in :meth:`submit`.
            hosts: as in :meth:`Storage.cache`.

        Returns:
            The version. Its metadata and description are those of the base; ``ref.provenance`` names the base by its
            digest.

        Raises:
            AlreadyExistsError: if the new version exists and was made in another way; says what differs.
            NotFoundError: if there is no such base, or it is deleted meanwhile and its files are gone.
            InvalidArgumentError, InvalidTypeError: if an argument is invalid.
            CorruptionError: if a record of the base is damaged.
            StorageError: if the disk is full, or a store fails.
        """
        from cachelayer.access.stored_records import StoredRecords
        from cachelayer.builds.build_options import BuildOptions
        from cachelayer.builds.build_parts import Hosts
        from cachelayer.engines import Processes

        seed = None if shuffle_seed is None else check_seed(shuffle_seed, "shuffle_seed")
        names = None if fields is None else field_names(fields)
        checked_hosts = None if hosts is None else Hosts.checked(hosts)
        options = BuildOptions.checked(
            compression=None if compression == AS_BASE else compression,
            shard_bytes=shard_bytes,
            workers=workers,
            engine=engine,
            resume=resume,
            progress=progress,
        )
        dataset_id, view = self._viewed(dataset_id, base)
        name = check_version(required("new", new, InvalidNameError))
        is_alone = hosts is None and (engine in (None, "processes") or isinstance(engine, Processes))
        records = StoredRecords.of(view, names, reads_copies=is_alone)
        self._refuse(f"{dataset_id}@{name}", records, view)
        kind = records.compression if compression == AS_BASE else compression
        found = records.provenance
        kept = {"description": found.get("description"), "metadata": found.get("metadata") or {}}
        options = replace(options, compression=Compression.parse(kind), allow_empty=True, kept=kept)
        made_by = {
            "shuffle_seed": seed,
            "compression": options.compression.name,
            "shard_bytes": options.shard_bytes,
            "fields": None if names is None else list(names),
        }
        return self._rewritten(_Rewrite(dataset_id, name, records, seed, made_by), options, checked_hosts)

    def _viewed(self, dataset_id: str, base: Any) -> tuple[str, Any]:
        """Return the dataset and the base that a user names."""
        if base is not None and not isinstance(base, str):
            return paths.check_name("dataset id", dataset_id), base
        reference = Reference.parse(*dataset_and_version(dataset_id, base, "base"))
        return reference.dataset_id, self._fetch(reference)

    def _refuse(self, name: str, records: StoredRecords, view: Any) -> None:
        """Raise if the new version is the base, or an empty view.

        Raises:
            InvalidArgumentError: with what to do.
        """
        if any((version.store.url, version.name) == (self.url, name) for version in records.versions):
            raise InvalidArgumentError(f"{name} cannot be written again under its own name: versions never change")
        if not len(view) and len(view._elements):
            raise InvalidArgumentError(f"{name}: the view has no records")

    def _rewritten(self, wanted: _Rewrite, options: BuildOptions, hosts: Hosts | None) -> DataRef[Any]:
        from cachelayer.builds.build_version import Publisher
        from cachelayer.provenance.origin import Origin

        log = Log(self._store, wanted.dataset_id)
        while True:
            found = self._find(log, wanted.version)
            if found is not None:
                wanted.refuse_other(found)
                return found
            parts = wanted.parts(options.shard_bytes)
            publisher = Publisher(log, self._copies, wanted.version, parts, Origin(), options)
            try:
                built = publisher.build_once(hosts)
            except AlreadyExistsError:
                if self._find(log, wanted.version) is None:
                    raise
            else:
                if built is not None:
                    return self._ref(built)


@dataclass(frozen=True)
class _Rewrite:
    """A version that is to be made.

    Args:
        dataset_id, version: its name.
        records: its records.
        seed: shuffles them; None for none.
        made_by: what decides it besides the records, as JSON.
    """

    dataset_id: str
    version: str
    records: StoredRecords
    seed: int | None
    made_by: dict[str, Any]

    @property
    def base(self) -> dict[str, Any]:
        """What the provenance says of the base."""
        versions = self.records.versions
        return {
            "version": " + ".join(version.info.version for version in versions),
            "digest": self.records.digest,
            "records": len(self.records),
            "references": [version.reference for version in versions],
        }

    def parts(self, shard_bytes: int) -> RewriteParts:
        """Return its records in parts of about a shard, which are the same on all hosts."""
        from cachelayer.builds.rewrite_parts import RewriteParts
        from cachelayer.builds.sharded_source import FILLED

        records = self.records
        nbytes = records.mean_nbytes()
        if self.seed is not None and not records.is_local and nbytes < _LARGE_RECORD:
            warn(
                f"{self.dataset_id}@{self.version}: the base is in a bucket, so shuffling takes a request for each "
                "record: make local copies first, with fetch(...).mirror()"
            )
        # If all records have one size, the shards are those of a build in one piece.
        filled = shard_bytes if records.fixed_nbytes is not None else shard_bytes * FILLED
        part_records = max(1, int(filled // (nbytes + RECORD_OVERHEAD)))
        return RewriteParts(records, self.seed, part_records, nbytes, self.made_by, self.base)

    def refuse_other(self, found: DataRef[Any]) -> None:
        """Raise if a version of this name was made in another way.

        Raises:
            AlreadyExistsError: with what differs.
        """
        made_by, base = found.provenance.get("rewrite"), found.provenance.get("base")
        name = f"{self.dataset_id}@{self.version}"
        if not isinstance(made_by, dict) or not isinstance(base, dict):
            raise AlreadyExistsError(f"{name} is published already, and no rewrite made it: choose another version")
        before = [(key, made_by.get(key), now) for key, now in self.made_by.items()]
        differ = [f"{key} was {then!r} and is {now!r}" for key, then, now in before if then != now]
        if base.get("digest") != self.records.digest:
            differ.insert(0, f"it was made of {base.get('version')}, sha256:{str(base.get('digest'))[:12]}")
        if differ:
            raise AlreadyExistsError(f"{name} is published already: {'; '.join(differ)}. Choose another version")
