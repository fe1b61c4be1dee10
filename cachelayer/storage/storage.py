"""Storage: a place for datasets, with everything that users do with their versions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Unpack, overload

from cachelayer.access.dataref import DataRef
from cachelayer.access.stored_view import PackArguments, checked_pack_arguments
from cachelayer.arguments import integer, required
from cachelayer.arrayrecord.local_shards import VERIFY, Verify
from cachelayer.errors import AlreadyExistsError, InvalidArgumentError, InvalidTypeError
from cachelayer.objects import paths
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder, folder_of
from cachelayer.objects.open_store import open_store, refuse_query, without_credentials
from cachelayer.protocols import T
from cachelayer.storage.rewrite import RewritingCatalog
from cachelayer.storage.submit import check_version, new_name, of_splits, open_source, origin_of
from cachelayer.versions.log import Log
from cachelayer.versions.reference import Reference, dataset_and_version, split_slice, split_url
from cachelayer.versions.stored_version import StoredVersion

if TYPE_CHECKING:
    from cachelayer.builds.build_options import BuildOptions, SubmitOptions
    from cachelayer.builds.sharded_source import Sharded
    from cachelayer.provenance.origin import Origin
    from cachelayer.storage.cacheable import Cacheable
    from cachelayer.storage.staleness import OnChange


class Storage(RewritingCatalog):
    """A place for versioned datasets.

    Args:
        url: a path, or a URL such as ``gs://bucket/prefix`` or ``s3://bucket/prefix``.
        local_cache: the folder for local copies of remote shards; by default ``CACHELAYER_LOCAL_CACHE``, or a folder in
            the user's cache folder.
        local_cache_bytes: the bytes that all copies in this folder may take, over all processes; None for 80 % of the
            disk space that would be free without them; 0 for no copies: records are always read over the network.
        storage_options: options of the fsspec file system for the URL, such as credentials and endpoint. Besides,
            ``timeout`` sets after how many seconds a store that does not answer is an error. They are never stored or
            shown.
        verify: ``"open"`` checks the size and the end of each shard when it is first used; ``"always"`` also the
            checksum of each record when it is read; ``"never"`` only sizes. Records from the network are checked
            in any case, except that ``"never"`` fetches some fields of large records without the rest of these.
        unsafe_commit: allow stores that cannot refuse to overwrite an object: of two builds that publish at the same
            time, one may then overwrite the other.

    Raises:
        InvalidArgumentError: if the URL or an argument is invalid.
        MissingDependencyError: if the package for such a URL is not installed.
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
            raise InvalidArgumentError(f"verify {verify!r}: it must be one of {', '.join(map(repr, VERIFY))}")
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
        pack: PackArguments | None = None,
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
        pack: PackArguments | None = None,
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
        pack: PackArguments | None = None,
        **options: Unpack[SubmitOptions],
    ) -> DataRef[Any]:
        """Return a version; build it if it does not exist. Of all threads and processes that call this, one builds.

        Args:
            source: as in :meth:`submit`; a function is called only if the version must be built.
            dataset_id, version: as in :meth:`submit`.
            hosts: ``(index, count)`` if ``count`` processes, each with its own index, make this call to build the
                version together. Each builds its share of the parts; if a process dies, the others build what is left.
            on_change: what to do if the version exists but was built from something else: other code, options,
                arguments of a partial function, attributes of an object, files, or elements of an array or a sequence
                (64 of them are compared). Values are compared by their content. Only what is known without calling a
                function or iterating is compared.
                ``"warn"`` uses the version and warns once what differs; ``"error"`` raises; ``"ignore"`` compares
                nothing.
            record: as in :meth:`submit`.
            pack: the arguments of :meth:`DataRef.packed`, as a dict such as ``{"leaves": "tokens", "length": 2048}``:
                the plan of these packs is made right away if there is none, so that no training has to wait for it.
            options: as in :meth:`submit`, but ``resume`` is True by default. They are checked on each call.

        Raises:
            StaleVersionError: if the version was built from something else, with ``on_change="error"``.
            UnknownOptionError: if there is no such option.
            BuildRevokedError: if other processes took this one for dead while it built, and one of them builds now:
                call again.
            CacheLayerError: as in :meth:`submit`.

        Warns:
            StaleVersionWarning: if the version was built from something else, with ``on_change="warn"``.
            CacheLayerWarning: if something that makes the source cannot be compared, such as code whose file was edited
                after it was imported, or an open file.
        """
        from cachelayer.builds.build_options import BuildOptions
        from cachelayer.storage.staleness import checked_on_change

        checked = BuildOptions.of({"resume": True, **options}, "version", "hosts", "on_change", "record", "pack")
        packing = None if pack is None else checked_pack_arguments(pack)
        dataset_id, name = new_name(dataset_id, version)
        reaction = checked_on_change(on_change)
        source, splits = open_source(source, dataset_id)

        def of(obj: Any, split_id: str) -> DataRef[Any]:
            ref = self._cache(obj, split_id, name, origin_of(obj, record), checked, reaction, hosts)
            if packing is not None:
                ref.packed(**packing)
            return ref

        if splits is None:
            return of(source, dataset_id)
        return of_splits({split: of(each, f"{dataset_id}.{split}") for split, each in splits.items()})

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
        from cachelayer.builds.build_parts import Hosts
        from cachelayer.builds.build_version import Publisher
        from cachelayer.storage.staleness import check_source, warn_of_incomparable

        checked_hosts = None if hosts is None else Hosts.checked(hosts)
        log = Log(self._store, dataset_id)
        ref, is_new = self._find(log, version), False
        while ref is None:
            publisher = Publisher(log, self._copies, version, source, origin, options)
            try:
                built = publisher.build_once(checked_hosts)
            except AlreadyExistsError:
                ref = self._find(log, version)
                if ref is None:
                    # The error is not about this version: the source itself raised it.
                    raise
            else:
                # None: another process published it. If it was deleted again meanwhile, the loop starts over.
                ref, is_new = (self._find(log, version), False) if built is None else (self._ref(built), True)
        if not is_new:
            check_source(ref, origin, options, on_change)
        warn_of_incomparable(ref, origin, on_change)
        return ref

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
        """Decorate a function that returns a source: a call returns the version, which the first call builds.

        The version records the arguments of the call that built it; a call with other arguments is refused. It also
        records a fingerprint of the function and of everything that it uses in its module: if they have changed, a call
        warns.

        Args:
            dataset_id: as in :meth:`submit`; or ``"cifar10@<version>"``, with a version as described below.
            version: a name; a format string such as ``"size-{size}"`` with the function's parameters as fields;
                a function that takes the same arguments and returns a name; or ``"auto"`` for ``auto-<12 hex digits>``,
                a hash of the code and the arguments.
            hosts, on_change: as in :meth:`cache`; but other arguments always raise, whatever ``on_change`` is.
            record, options: as in :meth:`cache`.

        Raises:
            ArgumentsMismatchError: (by the decorated function) if the version was built with other arguments.
            InvalidArgumentError: (by the decorated function) if a field of the format string is not a parameter of the
                function; for ``"auto"``, if the source of the code that runs is not available, or an argument has no
                content that can be compared.

        Warns:
            StaleVersionWarning: (by the decorated function) if the version was built by other code or with other
                options.
        """
        from cachelayer.builds.build_options import BuildOptions
        from cachelayer.provenance.origin import checked_record
        from cachelayer.storage.cacheable import cacheable
        from cachelayer.storage.staleness import checked_on_change

        checked = BuildOptions.of({"resume": True, **options}, "version", "hosts", "on_change", "record")
        dataset_id, naming = dataset_and_version(dataset_id, version)
        reaction, names = checked_on_change(on_change), checked_record(record)

        def cache(source: Callable[[], Any], name: str, origin: Origin) -> DataRef[Any]:
            return self._cache(source, dataset_id, check_version(name), origin, checked, reaction, hosts)

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
        """Copy a version to another storage, or under another name. The copy has the same shards and the same digest.

        After an interruption, the same call continues where it stopped. If the target has a version of this name with
        the same digest, it counts as the copy. The provenance stays that of the build.

        Args:
            dataset_id, version: as in :meth:`fetch`.
            to: the target: a storage, or the URL of one that needs no options.
            new_id, new_version: the names in the target; by default those in this storage.
            progress: as in :meth:`submit`.

        Returns:
            The version in the target.

        Raises:
            NotFoundError: if there is no such version, or it is deleted meanwhile.
            AlreadyExistsError: if another version, or a tag, has this name in the target.
            CorruptionError: if a file differs from what was published.
            StorageError: if one of the storages fails.
        """
        from cachelayer.versions.copy import VersionCopy

        reference = Reference.parse(dataset_id, version)
        target = to if isinstance(to, Storage) else Storage(required("to", to))
        info = reference.resolve(self._snapshot(reference.dataset_id))
        target_id = reference.dataset_id if new_id is None else paths.check_name("dataset id", new_id)
        name = info.version if new_version is None else check_version(new_version)
        source = StoredVersion(self._store, reference.dataset_id, info)
        return target._open(target_id, VersionCopy(source, target._store, target_id, name, progress).copy())


def open(reference: str, **storage_options: Any) -> DataRef[Any]:
    """Open a version, given its storage, dataset and version in one text.

    Args:
        reference: ``<url>/<dataset id>@<version>``. Append ``@sha256:<digest>`` to open exactly these records or fail,
            and ``[a:b]`` for a view of a slice.
        storage_options: as in :class:`Storage`.

    Raises:
        InvalidArgumentError: if it is not a reference.
        NotFoundError: if there is no such version.
        CorruptionError: if the version has another digest.
    """
    if not isinstance(reference, str):
        raise InvalidTypeError(f"open takes a reference as a str, not a {type(reference).__name__}")
    refuse_query(reference)
    text, rows = split_slice(reference)
    url, dataset_id, version = split_url(text)
    if not dataset_id or not version or not url or url.endswith(":/"):
        raise InvalidArgumentError(
            f"{without_credentials(reference)!r} is not a reference: write <url>/<dataset id>@<version>"
        )
    ref = Storage(url, **storage_options).fetch(f"{dataset_id}@{version}")
    return ref if rows is None else ref[rows]
