"""Storage: where datasets are kept, and everything that is done with their versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Unpack, overload

from cachelayer.access.dataref import DataRef
from cachelayer.arguments import given, integer
from cachelayer.arrayrecord.reader import VERIFY, Verify
from cachelayer.builds.build_options import BuildOptions, SubmitOptions
from cachelayer.builds.build_version import Publisher
from cachelayer.builds.hosts import Hosts
from cachelayer.builds.sharded_source import Sharded
from cachelayer.builds.source import splits_of
from cachelayer.errors import AlreadyExistsError, InvalidArgumentError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder, folder_of
from cachelayer.objects.open_store import open_store
from cachelayer.protocols import T
from cachelayer.provenance.origin import Origin, checked_record
from cachelayer.storage.cacheable import Cacheable, cacheable
from cachelayer.storage.staleness import OnChange, check_source, checked_on_change
from cachelayer.storage.submit import Submitting, check_splits, of_splits, origin_of
from cachelayer.storage.version_names import check_version, new_name
from cachelayer.versions.copy import VersionCopy
from cachelayer.versions.log import Log
from cachelayer.versions.reference import Reference, needed
from cachelayer.versions.stored_version import StoredVersion


class Storage(Submitting):
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

    @overload
    def cache(
        self,
        source: Mapping[Any, Any],
        dataset_id: str,
        version: str | None = None,
        *,
        hosts: tuple[int, int] | None = None,
        on_change: OnChange = "warn",
        record: Iterable[str] = (),
        **options: Unpack[SubmitOptions],
    ) -> DataRef[Any]: ...

    @overload
    def cache(
        self,
        source: Iterable[T] | Sharded[T] | Callable[[], Iterable[T] | Sharded[T]],
        dataset_id: str,
        version: str | None = None,
        *,
        hosts: tuple[int, int] | None = None,
        on_change: OnChange = "warn",
        record: Iterable[str] = (),
        **options: Unpack[SubmitOptions],
    ) -> DataRef[T]: ...

    @overload
    def cache(
        self,
        source: Any,
        dataset_id: str,
        version: str | None = None,
        *,
        hosts: tuple[int, int] | None = None,
        on_change: OnChange = "warn",
        record: Iterable[str] = (),
        **options: Unpack[SubmitOptions],
    ) -> DataRef[Any]: ...

    def cache(
        self,
        source: Any,
        dataset_id: str,
        version: str | None = None,
        *,
        hosts: tuple[int, int] | None = None,
        on_change: OnChange = "warn",
        record: Iterable[str] = (),
        **options: Unpack[SubmitOptions],
    ) -> DataRef[Any]:
        """The version, built once among all threads and processes that ask for it.

        Args:
            source: as in :meth:`submit`; a function is called only where the version has to be built.
            dataset_id, version: as in :meth:`submit`.
            hosts: ``(index, count)`` where so many processes, each with an index of its own, make this call to build
                the version together: each builds its share of the parts, and what a process that died leaves is
                built by the others.
            on_change: what happens if the version is there, but was built from something else, as far as that is
                known without calling a function or iterating anything: other code, options, arguments of a partial
                function, attributes of an object, files, or elements of an array or a sequence, of which 64 are
                compared. ``"warn"``: it is used, and a warning says what is different, once; ``"error"``: it is not
                used; ``"ignore"``: nothing is compared.
            record: as in :meth:`submit`.
            options: as in :meth:`submit`, but ``resume`` is on. They are checked on each call.

        Raises:
            StaleVersionError: if the version was built from something else, with ``on_change="error"``.
            UnknownOptionError: for an option that there is not.
            BuildRevokedError: where this process built, was taken for dead, and another builds now: ask again.
            CacheLayerError: as in :meth:`submit`.

        Warns:
            StaleVersionWarning: if the version was built from something else, with ``on_change="warn"``.
        """
        checked = BuildOptions.of({"resume": True, **options}, "version", "hosts", "on_change", "record")
        dataset_id, name = new_name(dataset_id, version)
        how = checked_on_change(on_change)

        splits = splits_of(source)
        check_splits(dataset_id, splits or ())
        if splits is None:
            return self._cache(source, dataset_id, name, origin_of(source, record), checked, how, hosts)
        return of_splits(
            {
                split: self._cache(part, f"{dataset_id}.{split}", name, origin_of(part, record), checked, how, hosts)
                for split, part in splits.items()
            }
        )

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
        log = Log(self._store, dataset_id)
        ref = self._find(log, version)
        while ref is None:
            publisher = Publisher(log, self._copies, version, source, origin, options)
            try:
                built = publisher.build_once(together)
            except AlreadyExistsError:
                ref = self._find(log, version)
                if ref is None:
                    # It is not of this version: the source has met it.
                    raise
            else:
                # Another may have published it, and deleted it at once.
                ref = self._find(log, version) if built is None else self._ref(built)
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
        version: str | Callable[..., str] | None = None,
        *,
        hosts: tuple[int, int] | None = None,
        on_change: OnChange = "warn",
        record: Iterable[str] = (),
        **options: Unpack[SubmitOptions],
    ) -> Cacheable:
        """Decorate a function that returns a source: calling it gives the version, built at the first call.

        The arguments of the call that built it are recorded; a call with others is refused. Code that changed since is
        a warning: a fingerprint is recorded of the function and of all that it uses of its own module.

        Args:
            dataset_id: as in :meth:`submit`; also ``"cifar10@v2"``, with any text below behind the @.
            version: a name; a format string such as ``"size-{size}"`` with the function's parameters as fields;
                a function that takes the same arguments and returns a name; or ``"auto"`` for ``auto-<12 hex digits>``,
                made from the code and the arguments.
            hosts, on_change: as in :meth:`cache`; other arguments are an error whatever ``on_change`` is.
            record, options: as in :meth:`cache`.

        Raises:
            InvalidArgumentError: where a field of the format string is no parameter.
            ArgumentsMismatchError: (by the decorated function) where the version was built with other arguments.
            InvalidArgumentError: (by the decorated function) where ``"auto"`` cannot know the code or an argument.

        Warns:
            StaleVersionWarning: (by the decorated function) if the version was built by other code or other options.
        """
        checked = BuildOptions.of({"resume": True, **options}, "version", "hosts", "on_change", "record")
        dataset_id, naming = needed(dataset_id, version)
        how, names = checked_on_change(on_change), checked_record(record)

        def cache(source: Callable[[], Any], name: str, origin: Origin) -> DataRef[Any]:
            return self._cache(source, dataset_id, check_version(name), origin, checked, how, hosts)

        return cacheable(cache, naming, options, names)

    @overload
    def copy(
        self,
        dataset_id: str,
        version: str | None,
        to: Storage | str | os.PathLike[str],
        *,
        new_id: str | None = None,
        new_version: str | None = None,
        progress: bool | None = None,
    ) -> DataRef[Any]: ...

    @overload
    def copy(
        self,
        dataset_id: str,
        version: str | None = None,
        *,
        to: Storage | str | os.PathLike[str],
        new_id: str | None = None,
        new_version: str | None = None,
        progress: bool | None = None,
    ) -> DataRef[Any]: ...

    def copy(
        self,
        dataset_id: str,
        version: str | None = None,
        to: Storage | str | os.PathLike[str] | None = None,
        *,
        new_id: str | None = None,
        new_version: str | None = None,
        progress: bool | None = None,
    ) -> DataRef[Any]:
        """Copy a version to another storage, or under another name: the same shards, the same digest.

        A copy that was interrupted goes on where it stopped when it is asked for again. A version that is there
        already with the same digest is the copy. The provenance stays that of the build.

        Args:
            dataset_id, version: as in :meth:`fetch`.
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
        reference = Reference.parse(dataset_id, version)
        target = to if isinstance(to, Storage) else Storage(given("to", to))
        info = reference.resolve(self._snapshot(reference.dataset_id))
        there = reference.dataset_id if new_id is None else paths.check_name("dataset id", new_id)
        name = info.version if new_version is None else check_version(new_version)
        source = StoredVersion(self._store, reference.dataset_id, info)
        return target._open(there, VersionCopy(source, target._store, there, name, progress).copy())
