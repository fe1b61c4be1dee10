"""Storage: where datasets are kept, and everything that is done with their versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, overload

from cachelayer.access.composition import chosen
from cachelayer.access.dataref import DataRef
from cachelayer.access.published import Published
from cachelayer.arguments import boolean, integer
from cachelayer.arrayrecord.reader import VERIFY, Verify
from cachelayer.building.encode import OnError
from cachelayer.building.options import DEFAULT_SHARD_BYTES, BuildOptions
from cachelayer.building.parts import Sharded
from cachelayer.building.source import each_split
from cachelayer.cacheable import Cacheable, cacheable
from cachelayer.catalog import Catalog
from cachelayer.copying import VersionCopy
from cachelayer.distributing import Hosts
from cachelayer.elements.tree import Tree
from cachelayer.engines import Engine
from cachelayer.errors import AlreadyExistsError, InvalidArgumentError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.copies import CacheFolder, folder_of
from cachelayer.objects.local import LocalStore
from cachelayer.objects.opening import open_store
from cachelayer.protocols import T
from cachelayer.publishing import ALLOW_EMPTY, Publisher, derive
from cachelayer.staleness import OnChange, check_source, checked_on_change
from cachelayer.versions.log import Log
from cachelayer.versions.naming import check_version
from cachelayer.versions.origin import Origin, checked_record
from cachelayer.versions.provenance import checked_metadata
from cachelayer.versions.reference import Reference


class Storage(Catalog):
    """A place where versioned datasets are kept.

    Args:
        url: a path, or a URL such as ``gs://bucket/prefix`` or ``s3://bucket/prefix``.
        local_cache: folder for local copies of shards that are not on this host; by default
            ``CACHELAYER_LOCAL_CACHE``, or one in the user's cache folder.
        local_cache_bytes: bytes that all copies there may take, over all processes; None for 80 % of what is free on
            the disk, 0 for no copies: records are read over the network each time.
        storage_options: what fsspec's file system for the URL takes: credentials, endpoint. ``timeout`` is ours: the
            seconds after which a store that does not answer is an error. Never stored or shown.
        verify: ``"open"`` checks each shard's size and its end at first touch; ``"always"`` also each record's
            checksum when it is read; ``"never"`` sizes only. What came over the network is always checked.
        unsafe_commit: publish also in stores that cannot put an object only where there is none, so that of two
            builders at once one may overwrite the other.

    Raises:
        InvalidArgumentError: where the URL or an argument cannot be.
        MissingDependencyError: where the package for such a URL is not installed.
    """

    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        local_cache: str | os.PathLike[str] | None = None,
        local_cache_bytes: int | None = None,
        storage_options: Mapping[str, Any] | None = None,
        verify: Verify = "open",
        unsafe_commit: bool = False,
    ) -> None:
        if verify not in VERIFY:
            raise InvalidArgumentError(f"verify {verify!r}: it is one of {', '.join(map(repr, VERIFY))}")
        limit = None if local_cache_bytes is None else integer("local_cache_bytes", local_cache_bytes, 0)
        folder = folder_of(local_cache)
        store = open_store(url, storage_options, unsafe_commit)
        copies = None if limit == 0 or isinstance(store, LocalStore) else CacheFolder(folder, limit)
        super().__init__(store, copies, verify)

    def submit(
        self,
        source: Any,
        dataset_id: str,
        dataset_version: str,
        *,
        element_spec: Tree | None = None,
        compression: str | None = None,
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        max_records: int | None = None,
        unbatch: bool = False,
        on_error: OnError = "raise",
        allow_empty: bool = False,
        workers: int = 1,
        engine: str | Engine | None = None,
        resume: bool = False,
        progress: bool | None = None,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        record: Iterable[str] = (),
    ) -> DataRef[Any]:
        """Build a version and publish it whole, or not at all.

        Args:
            source: a ``tf.data.Dataset``, an iterable of elements, a function that returns one, an array, or a dict or
                tuple of arrays, whose rows are the elements.
            dataset_id, dataset_version: 1 to 128 of the characters ``A-Z a-z 0-9 . _ -``.
            element_spec: the structure of an element with leaf specs, dtypes or objects with shape and dtype; by
                default the source's own schema, else that of the first element.
            compression: None, ``"zstd"`` or ``"zstd:<level>"``, of each record by itself.
            shard_bytes: about the size of a shard file, in bytes.
            max_records: take no more than these.
            unbatch: each element of the source is a batch: take it apart along the leading axis.
            on_error: ``"skip"`` leaves out elements that do not fit the spec, and those with an image or sound that
                does not decode: a warning and ``ref.provenance["left_out"]`` say how many, and which came first.
            allow_empty: publish a version without records if the source gives none, instead of an error.
            workers: processes that build, where the source comes in parts (:func:`cachelayer.sharded`) or can begin at
                any record; of another source one process makes the elements, and a second one writes them. The shards
                are the same for any number of them.
            engine: what runs them: None or ``"processes"`` for processes of this host, ``"ray"``, ``"beam"``, or any
                object with the method of :class:`cachelayer.engines.Engine`. A source without parts is divided into
                ranges of about a shard.
            resume: go on with the shards that an attempt at the same version finished before it was interrupted, and
                leave them if this one is. If the source can begin at any record it begins there, after some records of
                each of those shards, and all of the last one, were made again and compared; otherwise it is run
                through, and all of them are. If the code, the files or the options are others, it begins anew, with a
                warning.
            progress: None shows a bar in a terminal or a notebook, elsewhere a line every half minute; True does
                so from the start; False shows nothing.
            description: a text that is kept with the version.
            metadata: a dict that JSON can hold, kept with the version.
            record: the names of arguments of a function that are stored with the version as they are. Numbers, bools
                and None are anyway; of any other value a salted hash tells later whether it changed.

        Returns:
            The version; of a ``datasets.DatasetDict`` a dict of versions, with ids ``<dataset id>.<split>``.

        Raises:
            AlreadyExistsError: where the version is there; versions never change.
            ElementError: for an element that does not fit, with its record number and the path of the leaf.
            SourceError: if the source fails, with the record number, does not have as many elements as its length says,
                or gives none.
            InvalidTypeError: where the source is none.
            StorageError: where the disk is full or fails.
        """
        options = BuildOptions.checked(
            element_spec=element_spec,
            compression=compression,
            shard_bytes=shard_bytes,
            max_records=max_records,
            unbatch=unbatch,
            on_error=on_error,
            allow_empty=allow_empty,
            workers=workers,
            engine=engine,
            resume=resume,
            progress=progress,
            description=description,
            metadata=metadata,
        )

        def submit(part: Any, part_id: str) -> DataRef[Any]:
            publisher = self._publisher(
                part, Log(self._store, part_id), dataset_version, _origin(part, record), options
            )
            return self._open(part_id, publisher.submit())

        return each_split(source, dataset_id, submit)

    def append(
        self,
        dataset_id: str,
        base_version: str,
        new_version: str,
        source: Any,
        *,
        record: Iterable[str] = (),
        **submit_options: Any,
    ) -> DataRef[Any]:
        """Publish a version that has the records of another, and those of a source behind them.

        The shards of the base are shared, not copied. They stay until the last version that names them is deleted.

        Args:
            dataset_id, base_version: the version to begin with; a tag or ``latest`` will do.
            new_version: the name of the new one.
            source, record, submit_options: as in :meth:`submit`; elements have the element spec of the base.

        Raises:
            AlreadyExistsError: where the new version is there, as after losing a race against another.
            InvalidArgumentError: where the source has another element spec, with each leaf that differs.
            NotFoundError: where there is no such base.
            CacheLayerError: as in :meth:`submit`.
        """
        options = BuildOptions.of(submit_options, "record")

        def append(part: Any, part_id: str) -> DataRef[Any]:
            base = self.fetch(part_id, base_version)._base
            origin = _origin(part, record)
            publisher = self._publisher(part, Log(self._store, part_id), new_version, origin, options, base)
            return self._open(part_id, publisher.submit())

        return each_split(source, dataset_id, append)

    def derive(
        self,
        dataset_id: str,
        base_version: str,
        new_version: str,
        *,
        keep: Any,
        allow_empty: bool = False,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> DataRef[Any]:
        """Publish a version of some of the records of another. No record is copied.

        Args:
            dataset_id, base_version: the version to choose from; a tag or ``latest`` will do.
            new_version: the name of the new one.
            keep: the records in their new order: integers, a slice, or one bool for each record of the base.
            allow_empty: publish a version without records if ``keep`` keeps none, instead of an error.
            description, metadata: as in :meth:`submit`; metadata goes over that of the base.

        Returns:
            The version; its digest is that of ``fetch(dataset_id, base_version).select(keep)``.

        Raises:
            AlreadyExistsError: where the new version is there.
            NotFoundError: where there is no such base.
            RecordIndexError: where the base has no such record.
            InvalidArgumentError: if ``keep`` keeps no record.
            InvalidTypeError: where ``keep`` is nothing of that.
        """
        check_version(new_version)
        base = self.fetch(dataset_id, base_version)
        kept = chosen(base, keep)
        if not len(kept) and not boolean("allow_empty", allow_empty):
            raise InvalidArgumentError(
                f"{dataset_id}@{new_version}: keep= keeps none of the {len(base)} records of {base_version}; "
                f"{ALLOW_EMPTY}"
            )
        stored = checked_metadata(metadata)
        info = derive(base._base, new_version, kept, description=description, metadata=stored)
        return self._open(base.dataset_id, info)

    def _publisher(
        self,
        source: Any,
        log: Log,
        version: str,
        origin: Origin,
        options: BuildOptions,
        base: Published | None = None,
    ) -> Publisher:
        paths.check_name("dataset id", log.dataset_id)
        check_version(version)
        return Publisher(log, self._copies, version, source, origin, options, base)

    @overload
    def cache(
        self,
        source: Mapping[Any, Any],
        dataset_id: str,
        dataset_version: str,
        *,
        hosts: tuple[int, int] | None = None,
        on_change: OnChange = "warn",
        record: Iterable[str] = (),
        **submit_options: Any,
    ) -> DataRef[Any]: ...

    @overload
    def cache(
        self,
        source: Iterable[T] | Callable[[], Iterable[T]],
        dataset_id: str,
        dataset_version: str,
        *,
        hosts: tuple[int, int] | None = None,
        on_change: OnChange = "warn",
        record: Iterable[str] = (),
        **submit_options: Any,
    ) -> DataRef[T]: ...

    @overload
    def cache(
        self,
        source: Any,
        dataset_id: str,
        dataset_version: str,
        *,
        hosts: tuple[int, int] | None = None,
        on_change: OnChange = "warn",
        record: Iterable[str] = (),
        **submit_options: Any,
    ) -> DataRef[Any]: ...

    def cache(
        self,
        source: Any,
        dataset_id: str,
        dataset_version: str,
        *,
        hosts: tuple[int, int] | None = None,
        on_change: OnChange = "warn",
        record: Iterable[str] = (),
        **submit_options: Any,
    ) -> DataRef[Any]:
        """The version, built once among all threads and processes that ask for it.

        Args:
            source: as in :meth:`submit`; a function is called only where the version has to be built.
            dataset_id, dataset_version: as in :meth:`submit`.
            hosts: ``(index, count)`` where so many processes, each with an index of its own, make this call to build
                the version together: each builds its share of the parts, and what a process that died leaves is
                built by the others.
            on_change: what happens if the version is there, but was built from something else, as far as that is
                known without calling a function or iterating anything: other code, options, arguments of a partial
                function, attributes of an object, files, or elements of an array or a sequence, of which 64 are
                compared. ``"warn"``: it is used, and a warning says what is different, once; ``"error"``: it is not
                used; ``"ignore"``: nothing is compared.
            record: as in :meth:`submit`.
            submit_options: as in :meth:`submit`, but ``resume`` is on. They are checked on each call.

        Raises:
            StaleVersionError: if the version was built from something else, with ``on_change="error"``.
            UnknownOptionError: for an option that there is not.
            BuildRevokedError: where this process built, was taken for dead, and another builds now: ask again.
            CacheLayerError: as in :meth:`submit`.

        Warns:
            StaleVersionWarning: if the version was built from something else, with ``on_change="warn"``.
        """
        options = BuildOptions.of({"resume": True, **submit_options}, "hosts", "on_change", "record")
        how = checked_on_change(on_change)

        def cache(part: Any, name: str) -> DataRef[Any]:
            return self._cache(part, name, dataset_version, _origin(part, record), options, how, hosts)

        return each_split(source, dataset_id, cache)

    def _cache(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        origin: Origin,
        options: BuildOptions,
        on_change: OnChange,
        hosts: tuple[int, int] | None = None,
    ) -> DataRef[Any]:
        together = None if hosts is None else Hosts.checked(hosts)
        paths.check_name("dataset id", dataset_id)
        check_version(version)
        log = Log(self._store, dataset_id)
        ref = self._find(log, version)
        if ref is None:
            publisher = self._publisher(source, log, version, origin, options)
            try:
                ref = publisher.once(lambda: self._find(log, version), partial(self._open, dataset_id), together)
            except AlreadyExistsError:
                ref = self._find(log, version)
                if ref is None:
                    # It is not of this version: the source has met it.
                    raise
        if ref.provenance.get("salt") != origin.salt:
            check_source(ref, origin, options, on_change)
        return ref

    def _find(self, log: Log, version: str) -> DataRef[Any] | None:
        head = log.head()
        info = head.versions.get(head.tags.get(version, version))
        try:
            return None if info is None else self._open(log.dataset_id, info)
        except VersionNotFoundError:
            return None

    def cacheable(
        self,
        dataset_id: str,
        dataset_version: str | Callable[..., str],
        *,
        hosts: tuple[int, int] | None = None,
        on_change: OnChange = "warn",
        record: Iterable[str] = (),
        **submit_options: Any,
    ) -> Cacheable:
        """Decorate a function that returns a source: calling it gives the version, built at the first call.

        The arguments of the call that built it are recorded; a call with others is refused. Code that changed since is
        a warning: a fingerprint is recorded of the function and of all that it uses of its own module.

        Args:
            dataset_id: as in :meth:`submit`.
            dataset_version: a name; a format string such as ``"size-{size}"`` with the function's parameters as fields;
                a function that takes the same arguments and returns a name; or ``"auto"`` for ``auto-<12 hex digits>``,
                made from the code and the arguments.
            hosts, on_change: as in :meth:`cache`; other arguments are an error whatever ``on_change`` is.
            record, submit_options: as in :meth:`cache`.

        Raises:
            InvalidArgumentError: where a field of the format string is no parameter.
            ArgumentsMismatchError: (by the decorated function) where the version was built with other arguments.
            InvalidArgumentError: (by the decorated function) where ``"auto"`` cannot know the code or an argument.

        Warns:
            StaleVersionWarning: (by the decorated function) if the version was built by other code or other options.
        """
        paths.check_name("dataset id", dataset_id)
        options = BuildOptions.of({"resume": True, **submit_options}, "hosts", "on_change", "record")
        how, names = checked_on_change(on_change), checked_record(record)

        def cache(source: Callable[[], Any], version: str, origin: Origin) -> DataRef[Any]:
            return self._cache(source, dataset_id, version, origin, options, how, hosts)

        return cacheable(cache, dataset_version, submit_options, names)

    def copy(
        self,
        dataset_id: str,
        dataset_version: str | None,
        to: Storage | str | os.PathLike[str],
        *,
        new_id: str | None = None,
        new_version: str | None = None,
        progress: bool | None = None,
    ) -> DataRef[Any]:
        """Copy a version to another storage, or under another name: the same shards, the same digest.

        A copy that was interrupted goes on where it stopped when it is asked for again. A version that is there
        already with the same digest is the copy. The provenance stays that of the build.

        Args:
            dataset_id, dataset_version: as in :meth:`fetch`.
            to: a storage, or the URL of one that needs no options.
            new_id, new_version: the names there; by default those here.
            progress: None shows a bar in a terminal or a notebook, elsewhere a line every half minute; True does
                so from the start; False shows nothing.

        Returns:
            The version there.

        Raises:
            NotFoundError: where there is no such version, or it is deleted meanwhile.
            AlreadyExistsError: where another version, or a tag, has the name there.
            CorruptionError: where a file is not what was published.
            StorageError: where one of the storages fails.
        """
        reference = Reference.parse(dataset_id, dataset_version)
        target = to if isinstance(to, Storage) else Storage(to)
        info = reference.resolve(self._snapshot(reference.dataset_id))
        there = reference.dataset_id if new_id is None else paths.check_name("dataset id", new_id)
        version = info.version if new_version is None else check_version(new_version)
        source = Published(self._store, reference.dataset_id, info)
        return target._open(there, VersionCopy(source, target._store, there, version, progress).copy())


def _origin(source: Any, record: Iterable[str]) -> Origin:
    return Origin.of(source.function if isinstance(source, Sharded) else source, record)
