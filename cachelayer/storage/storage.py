"""Storage: a place for datasets, with everything that users do with their versions.

Each method checks what the user passed and names what is meant; the packages below do the work::

    submit, cache, cacheable, append                      builder.py, and builds/
    add_columns, derive, rewrite                          a module of this name beside this one
    fetch, datasets, versions, tags, history, builds      catalog.py, and the log in versions/
    tag, untag, delete, erase, gc                         the log; builds/erase.py, versions/gc.py
    verify, repair, diff, copy                            versions/, views/
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, overload

from cachelayer.arrayrecord.local_shards import VERIFY, Verify
from cachelayer.errors import DigestMismatchError, InvalidArgumentError, InvalidNameError, InvalidTypeError
from cachelayer.objects import paths
from cachelayer.objects.open_store import open_store
from cachelayer.objects.store import Store
from cachelayer.protocols import T
from cachelayer.storage.catalog import Catalog
from cachelayer.streams.stream_options import check_seed
from cachelayer.support.arguments import boolean, explains_options, is_choice, required
from cachelayer.support.credentials_in_urls import without_credentials
from cachelayer.versions import DEFAULT_SHARD_BYTES, GRACE_SECONDS
from cachelayer.versions.log import Log, LogEvent
from cachelayer.versions.reference import Reference, Want, names_version
from cachelayer.versions.snapshot import Snapshot, VersionInfo
from cachelayer.views.dataref import DataRef
from cachelayer.views.view import View

# The modules that build are imported when something is built: most processes only read.
if TYPE_CHECKING:
    from cachelayer.builds.build_options import SubmitOptions
    from cachelayer.builds.sharded_source import Sharded
    from cachelayer.engines import Engine
    from cachelayer.sequences.packs import PackArguments
    from cachelayer.storage.builder import Builder
    from cachelayer.storage.cacheable import Cacheable
    from cachelayer.storage.staleness import OnChange
    from cachelayer.versions.copy import RepairReport
    from cachelayer.versions.diff import Diff
    from cachelayer.versions.gc import Collected
    from cachelayer.versions.notes import UnpublishedBuild
    from cachelayer.versions.verify import VerifyReport

    class CacheOptions(SubmitOptions, total=False):
        """The keywords of :meth:`Storage.cache`."""

        hosts: tuple[int, int] | None
        on_change: OnChange
        pack: PackArguments | None
        wait: bool


@explains_options
class Storage:
    """A place for datasets: a folder, or a bucket. Its versions never change, and any number of processes share it.

    Args:
        url: a path, or a URL such as ``gs://bucket/prefix`` or ``s3://bucket/prefix``.
        local_cache: the folder for local copies of remote shards; by default ``CACHELAYER_LOCAL_CACHE``, or a folder in
            the user's cache folder.
        local_cache_bytes: the bytes that all copies in this folder may take, over all processes, such as ``"500GB"``;
            by default ``CACHELAYER_LOCAL_CACHE_BYTES``, or 80 % of the disk space that would be free without
            them; 0 for no copies: records are always read over the network.
        storage_options: options of the fsspec file system for the URL, such as credentials and endpoint; and
            ``timeout``, the seconds after which a store that does not answer is an error. They are never stored or
            shown.
        verify: what is checked of shards on a disk. ``"open"``: the size and the end of each shard, when it is first
            used; ``"always"``: also the checksum of each record, when it is read; ``"never"``: only sizes. Records from
            the network are always checked, except that ``"never"`` fetches some fields of large records without the
            rest of these records.

    Raises:
        InvalidArgumentError: if the URL or an argument is invalid.
        MissingDependencyError: if the package for such a URL is not installed.

    Examples:
        >>> storage = cachelayer.Storage(folder)  # or gs://bucket/prefix, s3://bucket/prefix, az://container/prefix
        >>> ref = storage.cache(lambda: ["a", "b"], "letters@v1")  # the function is called if there is no letters@v1
        >>> storage.datasets(), list(storage.versions("letters")), storage.fetch("letters@v1")[1]
        (['letters'], ['v1'], 'b')
    """

    @explains_options
    def __init__(
        self,
        url: str | os.PathLike[str],
        *,
        local_cache: str | os.PathLike[str] | None = None,
        local_cache_bytes: int | str | None = None,
        storage_options: Mapping[str, Any] | None = None,
        verify: Verify = "open",
    ) -> None:
        if verify not in VERIFY:
            raise InvalidArgumentError(f"verify {verify!r}: it must be one of {', '.join(map(repr, VERIFY))}")
        store = open_store(url, storage_options)
        is_remote = store.local_path("") is None
        copies = None
        # A local storage does not ask for the user's cache folder: the machine may not know the user.
        if is_remote or local_cache is not None or local_cache_bytes is not None:
            from cachelayer.objects.local_cache import CacheFolder, folder_of, limit_of

            limit = limit_of(local_cache_bytes)
            has_copies = is_remote and limit != 0
            folder = folder_of(local_cache) if has_copies or local_cache is not None else None
            copies = CacheFolder(folder, limit) if has_copies and folder is not None else None
        self._catalog = Catalog(store, copies, verify)

    def __identity__(self) -> str:
        return self.url

    @property
    def url(self) -> str:
        """The path or URL, without options."""
        return self._store.url

    @property
    def _store(self) -> Store:
        return self._catalog.store

    def _builder(
        self,
        options: Mapping[str, Any],
        *beside: str,
        hosts: tuple[int, int] | None = None,
        pack: PackArguments | None = None,
    ) -> Builder:
        """Return what makes new versions here, with the options of a call that has other keywords beside them."""
        from cachelayer.builds.build_options import BuildOptions
        from cachelayer.sequences.packs import checked_pack_arguments
        from cachelayer.storage.builder import Builder

        checked = BuildOptions.of(options, *beside, hosts=hosts)
        return Builder(self._catalog, checked, None if pack is None else checked_pack_arguments(pack))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r})"

    def _fetch(self, reference: Reference) -> DataRef[Any]:
        return self._catalog.open(self._catalog.resolve(reference))

    def _base_and_new(
        self, dataset_id: str | DataRef[Any], base: str | None, new: Any, *following: Any
    ) -> tuple[Reference, str, list[Any]]:
        """Return the version that a new one is made from, the name of the new one, and the arguments that follow."""
        reference, (new, *rest) = self._catalog.parse_before(dataset_id, base, new, *following, argument="base")
        named = self._catalog.sibling(reference.dataset_id, required("new", new, InvalidNameError), "new", "new")
        if named.dataset_id != reference.dataset_id:
            raise InvalidArgumentError(
                f"new={new!r}: the new version is one of the same dataset, {reference.dataset_id}"
            )
        return reference, named.name, rest

    def submit(
        self,
        source: Any,
        dataset_id: str,
        version: str | None = None,
        *,
        pack: PackArguments | None = None,
        **options: Unpack[SubmitOptions],
    ) -> DataRef[Any]:
        """Build a version from a source and publish it, completely or not at all.

        Args:
            source: an iterable of elements, such as a list, a generator or a ``tf.data.Dataset``; an array, or a dict
                or tuple of arrays, whose rows are the elements; a function that returns one of these; or the path,
                pattern or URL of files, or of a folder. The names of files tell which function of
                :mod:`cachelayer.adapters` reads them, with its default options.
            dataset_id, version: names of 1 to 128 of the characters ``A-Z a-z 0-9 . _ -``; or both in one text,
                ``"cifar10@v2"``.
            element_spec: the structure of an element, with leaf specs, dtypes, or objects with a shape and a dtype as
                leaves. Keys that it lacks, or all of it by default, are taken from the schema of the source, or else
                from the first elements.
            compression: ``"none"``, ``"zstd"`` or ``"zstd:<level>"``; each record is compressed separately. By default
                as the version that this one is made from, with the default level; or else not.
            shard_bytes: the approximate size of a shard file, in bytes.
            max_records: take at most this many records.
            unbatch: the elements of the source are batches, whose rows along the leading axis are stored.
            on_error: ``"skip"`` leaves out elements that do not fit the spec, and elements with images or audio that
                cannot be decoded. A warning and ``ref.provenance["left_out"]`` say how many, and why the first.
            validate: decode each image and sound once as it comes in, which takes as long as an epoch of reading them,
                or less. With False, a file that does not decode fails when it is read.
            allow_empty: if the source has no elements, publish a version without records instead of raising.
            workers: the number of processes that build, if the source comes in parts (:func:`cachelayer.sharded`) or
                can begin at any record. The shards are the same for any number of them.
            engine: what runs the workers: None or ``"processes"`` for processes of this host, ``"ray"``, ``"beam"``,
                or any object with the method of :class:`cachelayer.engines.Engine`.
            resume: go on after the parts that interrupted builds of the version have finished, and note the parts that
                this build finishes. A source that can only be read from its beginning is read again; shards that are
                stored already are not stored twice. If the code, the files, the length or the options have changed, the
                build starts from the beginning, with a warning.
            progress: None shows a bar in a terminal or a notebook, elsewhere a line every half minute; True shows it
                from the start; False shows nothing.
            description: a text that is stored with the version.
            metadata: a dict that JSON can hold; it is stored with the version.
            pack: the arguments of :meth:`DataRef.packed`, as a dict such as ``{"leaves": "tokens", "length": 2048}``:
                the plan of these packs is made now, if there is none, so that no training has to wait for it.

        Returns:
            The version. For a ``datasets.DatasetDict``, a dict of versions with the ids ``<dataset id>.<split>``.

        Raises:
            AlreadyExistsError: if the version exists; versions never change.
            ElementError: if an element does not fit; names its record number and the path of the leaf.
            SourceError: if the source fails (the message has the record number), has more or fewer elements than its
                length says, or has none.
            InvalidTypeError: if the object is not a source.
            InvalidArgumentError: if there are no files at a path, or their names do not tell how to read them.
            StorageError: if the disk is full or fails.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> rows = [{"text": "one", "label": 1}, {"text": "two", "label": 2}]
            >>> ref = storage.submit(rows, "rows@v1", compression="zstd", metadata={"language": "en"})
            >>> len(ref), ref[1]["text"], ref.metadata
            (2, 'two', {'language': 'en'})
            >>> storage.submit(rows, "rows@v1")
            Traceback (most recent call last):
            cachelayer.errors.AlreadyExistsError: rows@v1 is published already: choose another version
            >>> storage.submit([{"label": 1}, {"label": "x"}], "rows@v2")
            Traceback (most recent call last):
            cachelayer.errors.ElementError: record 1, ...
        """
        name = self._catalog.parse(dataset_id, version, "new")
        return self._builder(options, "version", "pack", pack=pack).submit(source, name)

    @overload
    def cache(
        self,
        source: Mapping[Any, Any],
        dataset_id: str,
        version: str | None = None,
        **options: Unpack[CacheOptions],
    ) -> DataRef[Any]: ...
    @overload
    def cache(
        self,
        source: Iterable[T] | Sharded[T] | Callable[[], Iterable[T] | Sharded[T]],
        dataset_id: str,
        version: str | None = None,
        **options: Unpack[CacheOptions],
    ) -> DataRef[T]: ...
    @overload
    def cache(
        self, source: Any, dataset_id: str, version: str | None = None, **options: Unpack[CacheOptions]
    ) -> DataRef[Any]: ...
    def cache(
        self,
        source: Any,
        dataset_id: str,
        version: str | None = None,
        *,
        hosts: tuple[int, int] | None = None,
        on_change: OnChange = "warn",
        pack: PackArguments | None = None,
        wait: bool = True,
        **options: Unpack[SubmitOptions],
    ) -> DataRef[Any]:
        """Return a version; build it if it does not exist. Of all threads and processes that ask for it, one builds.

        Args:
            source: as in :meth:`submit`; a function is called only if the version must be built.
            dataset_id, version: as in :meth:`submit`.
            hosts: ``(index, count)`` if ``count`` processes, each with its own index, make this call to build the
                version together, without ``engine``. Each builds its share of the parts; if a process dies, the others
                build what is left.
            on_change: what to do if the version exists but was built from something else. Code, options, arguments,
                attributes, files and elements (a sample, if there are many) are compared, as far as they are known
                without calling a function or iterating. ``"warn"`` uses the version, and warns once of what differs;
                ``"error"`` raises; ``"ignore"`` compares nothing.
            pack: as in :meth:`submit`.
            wait: False returns at once, and a process of its own builds. Elements, batches, orders, shards and states
                are those of the finished version from the first step on; what needs the whole version, such as its
                digest, waits for the end, as a program does at its own. The source has a length and items by number,
                and can be pickled; a function that makes one is called in each process.
            options: as in :meth:`submit`. They are checked on each call.

        Raises:
            StaleVersionError: if the version was built from something else, with ``on_change="error"``.
            UnknownOptionError: if there is no such option.
            BuildRevokedError: if files of the build were deleted before it published the version: call again.
            CacheLayerError: as in :meth:`submit`.

        Warns:
            StaleVersionWarning: if the version was built from something else, with ``on_change="warn"``.
            CacheLayerWarning: if something cannot be compared, such as an open file.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> def letters():
            ...     print("the function is called")
            ...     yield from "abc"
            >>> ref = storage.cache(letters, "letters@v1")
            the function is called
            >>> storage.cache(letters, "letters@v1").digest == ref.digest  # not called again
            True
            >>> def letters():
            ...     yield from "abcd"
            >>> storage.cache(letters, "letters@v1", on_change="error")
            Traceback (most recent call last):
            cachelayer.errors.StaleVersionError: letters@v1 was built by other code or values: letters changed. ...
            >>> growing = storage.cache([{"n": number} for number in range(9)], "numbers@v1", wait=False)
            >>> growing.read([8, 0])["n"].tolist(), growing.digest == storage.fetch("numbers@v1").digest
            ([8, 0], True)
        """
        from cachelayer.storage.staleness import checked_on_change

        name = self._catalog.parse(dataset_id, version, "new")
        builder = self._builder(options, "version", "hosts", "on_change", "pack", "wait", hosts=hosts, pack=pack)
        return builder.cache(source, name, checked_on_change(on_change), waits=boolean("wait", wait))

    def cacheable(
        self,
        dataset_id: str,
        version: str | None = None,
        *,
        hosts: tuple[int, int] | None = None,
        on_change: OnChange = "warn",
        pack: PackArguments | None = None,
        **options: Unpack[SubmitOptions],
    ) -> Cacheable:
        """Decorate a function that returns a source: a call returns the version, which the first call builds.

        The version records the arguments of the call that built it, and refuses a call with other arguments. It also
        records hashes of the function and of everything that the function uses: if these have changed, a call warns.

        Args:
            dataset_id: as in :meth:`submit`; or ``"cifar10@<version>"``, with a version as described below.
            version: a name; a format string such as ``"size-{size}"``, with parameters of the function in braces; or
                ``"auto"`` for ``auto-<12 hex digits>``, a hash of the code and the arguments.
            hosts, on_change: as in :meth:`cache`; but a call with other arguments raises, whatever ``on_change`` is.
            pack, options: as in :meth:`submit`.

        Raises:
            ArgumentsMismatchError: when the decorated function is called, if the version was built with other
                arguments.
            InvalidArgumentError: when the decorated function is called, if no name can be made of the arguments.

        Warns:
            StaleVersionWarning: when the decorated function is called, if the version was built by other code or with
                other options.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> @storage.cacheable("numbers@up-to-{n}")
            ... def numbers(n):
            ...     print(f"numbers({n}) is called")
            ...     return range(n)
            >>> len(numbers(3)), len(numbers(3)), len(numbers(4))
            numbers(3) is called
            numbers(4) is called
            (3, 3, 4)
            >>> list(storage.versions("numbers"))
            ['up-to-3', 'up-to-4']
        """
        from cachelayer.storage.cacheable import cacheable
        from cachelayer.storage.staleness import checked_on_change

        builder = self._builder(options, "version", "hosts", "on_change", "pack", hosts=hosts, pack=pack)
        template = self._catalog.parse(dataset_id, version, "template")
        return cacheable(builder, template, checked_on_change(on_change))

    def append(
        self,
        dataset_id: str | DataRef[Any],
        base: str | None = None,
        new: Any = None,
        source: Any = None,
        *,
        fill: Mapping[str, Any] | None = None,
        pack: PackArguments | None = None,
        **options: Unpack[SubmitOptions],
    ) -> DataRef[Any]:
        """Publish a version with the records of an existing version, followed by those of a source.

        Both versions have the shards of the base, which are not copied, and stay until both are deleted.

        Args:
            dataset_id, base: the existing version, ``"cifar10@v2"``, as in :meth:`fetch`.
            new: the name of the new version.
            source, pack, options: as in :meth:`submit`. The elements must have the element spec of the base.
            fill: by the name of each field that only the base or only the elements have, the value for the others, or
                None. A field that is new to the base is an added column (:meth:`add_columns`).

        Raises:
            AlreadyExistsError: if the new version exists, for example because another process has made it.
            InvalidArgumentError: if the source has another element spec; it names each leaf that differs.
            NotFoundError: if there is no such base.
            RefusedError: if fields are new, and the base keeps only some records of its shards, or some were erased.
            CacheLayerError: as in :meth:`submit`.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.submit(["a", "b"], "letters@v1")
            >>> longer = storage.append("letters@v1", "v2", ["c"])
            >>> list(longer), list(storage.fetch("letters@v1"))
            (['a', 'b', 'c'], ['a', 'b'])
        """
        reference, name, (source,) = self._base_and_new(dataset_id, base, new, source)
        builder = self._builder(options, "base", "new", "fill", "pack", pack=pack)
        return builder.append(required("source", source), reference, name, fill or {})

    def add_columns(
        self,
        dataset_id: str | DataRef[Any],
        base: str | None = None,
        new: Any = None,
        columns: Any = None,
        *,
        batched: bool = False,
        on: str | Sequence[str] | None = None,
        how: Literal["inner", "left"] = "inner",
        fill: Any = None,
        replace: bool = False,
        hosts: tuple[int, int] | None = None,
        **options: Unpack[SubmitOptions],
    ) -> DataRef[Any]:
        """Publish a version with the records of another and more columns. No record is copied.

        The new version shares all shards with its base; the columns are files of their own. States of streams over the
        base go on over the new version. A version has at most 16 groups of added columns; :meth:`rewrite` makes a
        version that has them in its records.

        Args:
            dataset_id, base: the existing version, ``"cifar10@v2"``, as in :meth:`fetch`.
            new: the name of the new version.
            columns: a function that takes an element and returns a dict of its columns; or a dict of arrays, a frame or
                an Arrow table, with a row for each record.
            batched: the function takes a batch, and returns columns with a row for each of its records.
            on: the key, a field or several fields: the row of a record is the one with the same values of these
                fields. Then the rows may be in any order, and there may be others. Values are compared exactly, in
                their own dtypes; None equals None.
            how: ``"inner"`` if each record must find its row; ``"left"`` if it may find none: then its columns are
                None, or what ``fill`` says. All records stay: :meth:`derive` leaves out the ones without a row.
            fill: the values of the columns of a record that finds no row, by the names of the columns; or one value for
                all columns.
            replace: allow a column with the name of a field of the base, whose place it takes.
            hosts: as in :meth:`cache`, for a function.
            options: as in :meth:`submit`. ``workers``, ``engine`` and ``resume`` are for functions.

        Raises:
            AlreadyExistsError: if the new version exists.
            InvalidArgumentError: if a field of this name exists, the base keeps only some records of its shards, two
                rows have the same key, or a record that must find a row finds none.
            NotFoundError: if there is no such base.
            SourceError: if there is not one row for each record, or the function fails; it names the record.

        Examples:
            >>> import numpy as np
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.cache({"user": np.array([7, 9, 7])}, "clicks@v1")
            >>> users = {"user": np.array([7, 8]), "age": np.array([30, 40])}
            >>> ref = storage.add_columns("clicks@v1", "v2", users, on="user", how="left", fill={"age": -1})
            >>> ref.read([0, 1, 2])["age"].tolist()
            [30, -1, 30]
        """
        from cachelayer.builds.column_sources import Join
        from cachelayer.storage.add_columns import NewColumns, add_columns

        reference, name, (columns,) = self._base_and_new(dataset_id, base, new, columns)
        builder = self._builder(options, "base", "new", "batched", "on", "how", "fill", "replace", "hosts", hosts=hosts)
        added = NewColumns(
            required("columns", columns),
            batched=boolean("batched", batched),
            join=Join.of(on, how, fill),
            replaces=boolean("replace", replace),
        )
        return add_columns(builder, self._fetch(reference), name, added)

    def derive(
        self,
        dataset_id: str | DataRef[Any],
        base: str | None = None,
        new: str | None = None,
        *,
        keep: Any = None,
        exclude: Any = None,
        allow_empty: bool = False,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> DataRef[Any]:
        """Publish a version with some of the records of another version. No record is copied.

        Args:
            dataset_id, base: the version to choose from, ``"cifar10@v2"``, as in :meth:`fetch`.
            new: the name of the new version.
            keep: the records in their new order: integers, a slice, or one bool for each record of the base; or a
                condition, as in :meth:`DataRef.where`; or a view of the base. Conditions are stored with the version.
            exclude: in place of ``keep``, the records to leave out, in any order; the others keep their order.
            allow_empty: if no records are kept, publish a version without records instead of raising.
            description, metadata: as in :meth:`submit`. The metadata is added to that of the base, whose equal keys it
                replaces.

        Returns:
            The version. It has the digest of the view ``fetch("cifar10@v2").select(keep)``, or ``.exclude(exclude)``.

        Raises:
            AlreadyExistsError: if the new version exists.
            NotFoundError: if there is no such base.
            RecordIndexError: if the base has no such record.
            InvalidArgumentError: if no records are kept and ``allow_empty`` is False, or not exactly one of ``keep``
                and ``exclude`` is passed.
            InvalidTypeError: if ``keep`` or ``exclude`` is of another type.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.submit(["a", "b", "c", "d"], "letters@v1")
            >>> list(storage.derive("letters@v1", "some", keep=[3, 0]))
            ['d', 'a']
            >>> list(storage.derive("letters@v1", "rest", exclude=[1]))
            ['a', 'c', 'd']
            >>> ref = storage.submit([{"n": 1}, {"n": 5}], "rows@v1")
            >>> storage.derive("rows@v1", "large", keep="n > 3").read([0])["n"].tolist()
            [5]
        """
        from cachelayer.provenance.environment import checked_annotations
        from cachelayer.storage.derive import Choice, derive_version

        reference, name, _ = self._base_and_new(dataset_id, base, new)
        choice = Choice(keep, exclude, boolean("allow_empty", allow_empty))
        said = checked_annotations(description, metadata)
        log = Log(self._catalog.dataset(reference.dataset_id))
        made_from = self._catalog.open(self._catalog.resolve(reference, log))
        return self._catalog.open(derive_version(log, made_from, name, choice, said))

    def rewrite(
        self,
        dataset_id: str | View[Any],
        base: str | View[Any] | None = None,
        new: str | None = None,
        *,
        shuffle_seed: int | None = None,
        compression: str | None = None,
        shard_bytes: int = DEFAULT_SHARD_BYTES,
        fields: Sequence[str] | None = None,
        workers: int = 1,
        hosts: tuple[int, int] | None = None,
        engine: str | Engine | None = None,
        resume: bool = True,
        progress: bool | None = None,
    ) -> DataRef[Any]:
        """Publish a version with the records of another in new shards: shuffled, compressed or cut in another way.

        Records are copied as they are stored, without decoding, unless ``fields`` leaves some fields out. The shards
        are the same for any number of workers and hosts, on any engine, and after any interruption. If an equal call
        has made the version, it is returned.

        Args:
            dataset_id, base: a version of this storage, ``"cifar10@v2"``, as in :meth:`fetch`; or a :class:`DataRef` of
                any storage, a view of one, what :func:`cachelayer.concat` returns, or ``fields()`` of any of these.
            new: the name of the new version; with its dataset, ``"mixed@v1"``, if that is not the one of the base.
            shuffle_seed: an integer in [0, 2**64): the records of the new version are in the order of the first epoch
                of ``base.stream(shuffle=True, seed=shuffle_seed)``. None keeps the order.
            compression, shard_bytes: as in :meth:`submit`.
            fields: keep only these fields of each element: keys of a dict, or ``"meta/url"`` for a key in a dict within
                it. None keeps all.
            workers, engine, resume, progress: as in :meth:`submit`.
            hosts: as in :meth:`Storage.cache`.

        Returns:
            The version. Its metadata and description are those of the base; ``ref.provenance`` names the base by its
            digest.

        Raises:
            AlreadyExistsError: if the new version exists and was made in another way; it says what differs.
            NotFoundError: if there is no such base, or it is deleted, replaced or erased from meanwhile.
            InvalidArgumentError, InvalidTypeError: if an argument is invalid.
            CorruptionError: if a record of the base is damaged.
            StorageError: if the disk is full, or a store fails.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.submit([{"text": text, "n": 1} for text in "abcd"], "rows@v1")
            >>> shuffled = storage.rewrite("rows@v1", "v2", shuffle_seed=0, fields=["text"])
            >>> list(shuffled) == [{"text": row["text"]} for row in ref.stream(shuffle=True, seed=0)]
            True
        """
        from cachelayer.specs.leaf_names import field_names
        from cachelayer.storage.rewrite import Rewriting, rewrite

        options = {
            "compression": compression,
            "shard_bytes": shard_bytes,
            "workers": workers,
            "engine": engine,
            "resume": resume,
            "progress": progress,
        }
        builder = self._builder(options, hosts=hosts)
        seed = None if shuffle_seed is None else check_seed(shuffle_seed, "shuffle_seed")
        how = Rewriting(seed, None if fields is None else field_names(fields))
        base, (new,) = self._catalog.moved_up(dataset_id, base, new)
        home: Any = dataset_id
        view: Any = base
        if base is None and isinstance(dataset_id, View):
            home = dataset_id.dataset_id if isinstance(dataset_id, DataRef) else None
            view = dataset_id
        elif base is None or isinstance(base, str):
            reference = self._catalog.parse(dataset_id, base, argument="base")
            home = reference.dataset_id
            view = reference.view_of(self._fetch(reference))
        named = self._catalog.sibling(home, required("new", new, InvalidNameError), "new", "new")
        return rewrite(builder, named, view, how)

    def fetch(
        self,
        dataset_id: str | DataRef[Any],
        version: str | None = None,
        *,
        erased: Literal["raise", "exclude"] = "raise",
    ) -> DataRef[Any]:
        """Open a published version.

        Args:
            dataset_id, version: the version in one text, such as ``"cifar10@v2"``: a dataset, ``@``, and a version, a
                tag, ``latest`` or ``sha256:<digest prefix>``; without them the newest version. Or a :class:`DataRef` of
                this storage, or its ``reference``. Every method that takes a version takes these.
            erased: ``"exclude"`` leaves erased records out of streams, slices that are read, and ``to_arrow()``. All
                numbers, orders and states stay: a step that had some of them is a shorter one, which
                ``remainder="keep"`` divides and ``"pad"`` fills up. To read one by its number raises as ever.

        Raises:
            DatasetNotFoundError, VersionNotFoundError: if there is no such dataset or version; the message names those
                that exist.
            CorruptionError: if the version has another digest than the reference says.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> refs = [storage.submit([text], "texts", version) for text, version in (("old", "v1"), ("new", "v2"))]
            >>> storage.tag("texts@v1", "best")
            >>> names = ["texts@v1", "texts@best", "texts", f"texts@sha256:{refs[0].digest[:12]}", refs[1].reference]
            >>> [storage.fetch(name)[0] for name in names]
            ['old', 'old', 'new', 'old', 'new']
            >>> storage.fetch("texts@v3")
            Traceback (most recent call last):
            cachelayer.errors.VersionNotFoundError: texts: no version or tag 'v3': there are v1, v2, best
        """
        if not is_choice(erased, ("raise", "exclude")):
            raise InvalidArgumentError(f"erased {erased!r}: pass 'raise' or 'exclude'")
        reference = self._catalog.parse(dataset_id, version)
        ref = self._fetch(reference)
        view: DataRef[Any] = reference.view_of(ref if erased == "raise" else ref._without_erased())
        return view

    def datasets(self) -> list[str]:
        """Return the ids of the datasets that have a version, sorted.

        A dataset that is damaged is listed too: opening it says what is wrong. If the store fails to read one, it is
        listed with a warning.

        Raises:
            StorageError: if the store fails, or none of its datasets can be read.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> storage.datasets()
            []
            >>> refs = [storage.submit(range(3), name, "v1") for name in ("b", "a")]
            >>> storage.datasets()
            ['a', 'b']
        """
        return list(self._catalog.datasets())

    def versions(self, dataset_id: str | DataRef[Any]) -> dict[str, VersionInfo]:
        """Return the versions of a dataset by name, in the order of their publication.

        Raises:
            DatasetNotFoundError: if there is no such dataset.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> refs = [storage.submit(range(n), "numbers", f"up-to-{n}") for n in (5, 3)]
            >>> {name: info.records for name, info in storage.versions("numbers").items()}
            {'up-to-5': 5, 'up-to-3': 3}
        """
        return dict(self._catalog.snapshot(self._dataset(dataset_id)).versions)

    def tags(self, dataset_id: str | DataRef[Any]) -> dict[str, str]:
        """Return the tags of a dataset, each with the version that it names.

        Raises:
            DatasetNotFoundError: if there is no such dataset.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.submit(range(3), "numbers@v1")
            >>> storage.tag("numbers@v1", "best")
            >>> storage.tags("numbers")
            {'best': 'v1'}
        """
        return dict(self._catalog.snapshot(self._dataset(dataset_id)).tags)

    def history(self, dataset_id: str | DataRef[Any]) -> list[LogEvent]:
        """Return an event for each change of a dataset, the oldest first: who published, tagged or deleted what, when.

        Raises:
            DatasetNotFoundError: if there is no such dataset.
            CorruptionError: if an entry of its log is missing or damaged.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.submit(range(3), "numbers@v1")
            >>> storage.tag("numbers@v1", "best")
            >>> [(event.kind, event.details["version"]) for event in storage.history("numbers")]
            [('publish', 'v1'), ('tag', 'v1')]
        """
        log = Log(self._catalog.dataset(self._dataset(dataset_id)))
        self._catalog.head(log)
        return log.history()

    def builds(self, dataset_id: str | DataRef[Any]) -> list[UnpublishedBuild]:
        """Return the builds of a dataset that are running or were interrupted, the oldest first.

        This waits for nothing and leaves nothing, so it may not know whether a build still runs.

        Raises:
            DatasetNotFoundError: if there is no such dataset, and no build of it.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> def letters():
            ...     print([(build.version, build.state) for build in storage.builds("letters")])
            ...     yield "a"
            >>> ref = storage.submit(letters, "letters@v1")
            [('v1', 'running')]
            >>> storage.builds("letters")  # it is published
            []
        """
        from cachelayer.versions.notes import unpublished

        log = Log(self._catalog.dataset(self._dataset(dataset_id)))
        builds = unpublished(log)
        if not builds:
            self._catalog.head(log)
        return builds

    def _dataset(self, named: str | DataRef[Any]) -> str:
        """Return the id of the dataset that a user names alone."""
        return self._catalog.parse(named, want="dataset").dataset_id

    def tag(self, dataset_id: str | DataRef[Any], version: str | None = None, tag: str | None = None) -> None:
        """Tag a version. A tag that named another version is moved.

        Args:
            dataset_id, version: the version, ``"cifar10@v2"``, as in :meth:`fetch`. With a digest behind it,
                ``"cifar10@v2@sha256:<prefix>"``, a version that was published anew under this name is an error.
            tag: the tag.

        Raises:
            VersionNotFoundError: if there is no such version.
            AlreadyExistsError: if a version has the name of the tag.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> refs = [storage.submit([text], "texts", version) for text, version in (("old", "v1"), ("new", "v2"))]
            >>> storage.tag("texts@v1", "best")
            >>> storage.tag("texts@v2", "best")  # moves it
            >>> storage.fetch("texts@best")[0], storage.tags("texts")
            ('new', {'best': 'v2'})
        """
        from cachelayer.provenance.environment import event

        named, (tag,) = self._catalog.parse_before(dataset_id, version, tag)
        chosen = paths.check_name("tag", required("tag", tag, InvalidNameError))

        def prepare(head: Snapshot) -> Snapshot:
            return head.with_tag(named.resolve(head).version, chosen, event("tag", tag=chosen))

        self._catalog.commit(named.dataset_id, prepare)

    def untag(self, tag: str) -> None:
        """Remove a tag. The version that it names stays.

        Args:
            tag: the tag and its dataset, such as ``"cifar10@best"``.

        Raises:
            VersionNotFoundError: if there is no such tag.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.submit(range(3), "numbers@v1")
            >>> storage.tag("numbers@v1", "best")
            >>> storage.untag("numbers@best")
            >>> storage.tags("numbers"), list(storage.versions("numbers"))
            ({}, ['v1'])
        """
        from cachelayer.provenance.environment import event

        named = self._catalog.parse(tag, want="name", argument="tag")
        name = str(named.name)
        self._catalog.commit(named.dataset_id, lambda head: head.without_tag(name, event("untag", tag=name)))

    def delete(
        self,
        dataset_id: str | DataRef[Any],
        version: str | None = None,
        *,
        force: bool = False,
        grace: float = GRACE_SECONDS,
    ) -> None:
        """Delete a version: it cannot be opened any more, but programs that have it open can read on for the grace.

        :meth:`gc` frees the disk space after the grace. With ``grace=0`` this call frees it at once, also of a full
        disk, unless a build of the dataset is at work. A version that was deleted may be deleted again with a shorter
        grace. Files that another version needs stay.

        Args:
            dataset_id, version: the version by its name, ``"cifar10@v2"``, perhaps with its digest; or a
                :class:`DataRef` of it. A tag or ``latest`` is refused.
            force: delete the tags of the version too.
            grace: for how many seconds the files stay, for programs that read them; a day by default.

        Raises:
            VersionNotFoundError: if there is no such version, and none of this name was deleted with a longer grace.
            RefusedError: if a tag names it and ``force`` is False.
            InvalidArgumentError: if the grace is not a number of seconds.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.submit(["a"], "letters@v1")
            >>> storage.delete("letters@v1")
            >>> ref[0], storage.datasets()  # who has it open can read on for a day
            ('a', [])
            >>> storage.delete("letters@v1", grace=0)  # frees the disk space at once
        """
        from cachelayer.provenance.environment import event
        from cachelayer.versions import gc

        named = self._catalog.parse(dataset_id, version, "name")
        name = str(named.name)
        grace = gc.checked_grace(grace)
        force = boolean("force", force)

        def prepare(head: Snapshot) -> Snapshot:
            deleted = (each for each in head.deleted if each.info.version == name)
            if name in head.versions or not any(each.grace > grace for each in deleted):
                # Raises if there is no such version, or it has another digest.
                named.resolve_name(head)
            return head.without_version(name, event("delete", version=name), force=force, grace=grace)

        self._catalog.commit(named.dataset_id, prepare, frees=grace == 0)
        if grace == 0:
            gc.collect_now(self._catalog.dataset(named.dataset_id), is_erasure=False)

    def erase(
        self,
        version: str | DataRef[Any],
        *,
        records: Sequence[int] | None = None,
        where: str | Callable[[Mapping[str, Any]], Any] | None = None,
        every_version: bool = False,
        of: str | None = None,
        reason: str,
        grace: float | None = None,
        progress: bool | None = None,
    ) -> DataRef[Any]:
        """Erase records from every version of a dataset whose shards hold them, as a request for deletion asks.

        A version without the records keeps its name and gets a new digest. Who asks for the old digest is told the new
        one, and the reason. All other records keep their numbers: orders stay the same, and states restore, with a
        warning. To read an erased record raises an :class:`ErasedRecordError`; in a stream whose function has
        ``on_error="replace"``, another record stands in for it.

        Not touched are versions with the same records in other shards, such as :meth:`rewrite` makes, checkpoints of
        models, and other storages, where :meth:`copy` replaces a version by the one without the records.

        Args:
            version: the version that ``records`` are numbers of, such as ``"cifar10@v2"``, or a :class:`DataRef` of it.
            records: the numbers of the records.
            where: a condition in place of the numbers, as :meth:`DataRef.where` takes it: all records that fit.
            every_version: erase what fits ``where`` from every version of the dataset, one after another, however it
                is stored there. A warning names the versions that lack the fields of the condition.
            of: the version, if only its dataset is named before.
            reason: why they are erased; it is stored, and shown to those who ask for the old digest.
            grace: for how many seconds the old files stay, for programs that read them. 0 deletes them at once, with
                all other files that no version names. None leaves that to the next :meth:`gc`.
            progress: as in :meth:`submit`.

        Returns:
            The version without the records.

        Raises:
            NotFoundError: if there is no such version, or it was deleted or published anew meanwhile: then nothing is
                erased.
            RecordIndexError: if the version has no such record.
            InvalidArgumentError: if no record fits the condition, or not exactly one of ``records`` and ``where`` is
                passed.
            CorruptionError: if a shard with one of the records is damaged: repair it first.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.submit(["Ann", "Bob", "Cleo"], "names@v1")
            >>> erased = storage.erase("names@v1", records=[1], reason="Bob asked for it")
            >>> erased.erased.tolist(), erased[2], erased.digest == ref.digest
            ([1], 'Cleo', False)
            >>> erased[1]
            Traceback (most recent call last):
            cachelayer.errors.ErasedRecordError: names@v1: record 1 was erased (Bob asked for it): ...
        """
        from cachelayer.storage.erase import EraseRequest
        from cachelayer.versions import gc

        every_version = boolean("every_version", every_version)
        want: Want = "version" if every_version else "base"
        reference = self._catalog.parse(version, of, want, "version" if of is None else "of")
        if not isinstance(reason, str) or not reason.strip():
            raise InvalidArgumentError(f"reason {reason!r}: say in a few words why the records are erased")
        seconds = 0.0 if grace is None else gc.checked_grace(grace)
        if (records is None) == (where is None):
            raise InvalidArgumentError("pass records=, the numbers of the records, or where=, a condition")
        request = EraseRequest(self._catalog, reason, seconds, progress)
        if every_version:
            if where is None:
                raise InvalidArgumentError("every_version=True: pass where=, as numbers are those of one version")
            erased = request.erase_from_every_version(reference, where)
        else:
            erased = request.erase(reference, records, where)
        if grace == 0:
            gc.collect_now(erased.folder, is_erasure=True)
        return self._catalog.open(erased)

    def gc(
        self, *, grace: float = GRACE_SECONDS, dry_run: bool = False, progress: bool | None = None
    ) -> list[Collected]:
        """Delete what failed or killed builds have left, and the files that only deleted versions need.

        The files of a deleted version stay for the grace that was passed to :meth:`delete`, whatever the grace here,
        because programs may be reading them: to free them sooner, delete the version again with ``grace=0``. While a
        build is at work in a dataset, nothing is deleted there.

        Args:
            grace: how many seconds ago a file must have been written, by the clock of the store, to be deleted. An
                interrupted build cannot go on after parts whose files are deleted.
            dry_run: only return what would be deleted.
            progress: as in :meth:`submit`.

        Returns:
            The name of everything that was deleted, with the reason.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.submit(range(3), "numbers@v1")
            >>> left = folder / "numbers" / "shards" / f"{32 * '0'}-0.array_record"
            >>> _ = left.write_bytes(b"what a killed build left")
            >>> storage.gc()  # it is not a day old
            []
            >>> [collected.reason for collected in storage.gc(grace=0)], left.exists()
            (['no version names it'], False)
        """
        from cachelayer.versions import gc

        checked = gc.checked_grace(grace)
        dry_run = boolean("dry_run", dry_run)
        return gc.collect_all(self._store, grace=checked, dry_run=dry_run, progress=progress)[0]

    def verify(self, version: str | DataRef[Any], *, progress: bool | None = None) -> VerifyReport:
        """Read every record of a version and check it against every checksum.

        Args:
            version: such as ``"cifar10@v2"``; as in :meth:`fetch`.
            progress: as in :meth:`submit`.

        Returns:
            A report that is true if there is no problem, and names each problem with its file.

        Raises:
            NotFoundError: if there is no such version.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.submit(range(3), "numbers@v1")
            >>> bool(storage.verify("numbers@v1"))
            True
            >>> shard = next(folder.glob("numbers/shards/*.array_record"))
            >>> _ = shard.write_bytes(shard.read_bytes()[:-1])
            >>> report = storage.verify("numbers@v1")
            >>> bool(report), len(report.problems)
            (False, 1)
        """
        from cachelayer.versions.verify import check

        return check(self._catalog.resolve(self._catalog.parse(version, want="version")), progress=progress)

    def repair(
        self,
        version: str | DataRef[Any],
        *,
        from_: Storage | DataRef[Any] | str | os.PathLike[str] | None = None,
        dry_run: bool = False,
        progress: bool | None = None,
    ) -> RepairReport:
        """Find the objects of a version that are missing or damaged, and put good ones from elsewhere in their places.

        Objects are shards, with their indices and lengths, added columns, and manifests. Each is compared with its
        checksum before it is put. Versions that share these objects are repaired too, and damaged local copies of the
        shards are removed. The log is not repaired: without its newest entry nothing is known of a version.

        Args:
            version: such as ``"cifar10@v2"``; as in :meth:`fetch`.
            from_: another storage that has the version, or its URL; or a version there, as a :class:`DataRef` or a
                reference. That may have another name, but must have the same digest.
            dry_run: only find what is damaged.
            progress: as in :meth:`submit`.

        Returns:
            What was damaged. If nothing was, nothing is put.

        Raises:
            NotFoundError: if there is no such version, here or there, or it is deleted or erased from meanwhile.
            DigestMismatchError: if the version there has another digest: then nothing is put.
            InvalidArgumentError: if ``from_`` is not passed; a dry run needs none.
            CorruptionError: if an object is damaged there too; all others are repaired.

        Examples:
            >>> storage, backup = cachelayer.Storage(folder / "cache"), cachelayer.Storage(folder / "backup")
            >>> ref = storage.submit(range(3), "numbers@v1")
            >>> ref = storage.copy("numbers@v1", backup)
            >>> next(folder.glob("cache/numbers/shards/*.array_record")).unlink()
            >>> len(storage.repair("numbers@v1", dry_run=True).damaged)
            1
            >>> storage.repair("numbers@v1", from_=backup).repaired, storage.fetch("numbers@v1")[2]
            (True, np.int64(2))
        """
        from cachelayer.versions.copy import repair

        is_dry = boolean("dry_run", dry_run)
        shows = None if progress is None else boolean("progress", progress)
        if from_ is None and not is_dry:
            raise InvalidArgumentError("repair: pass from_=, another storage that has the version; or dry_run=True")
        damaged = self._catalog.resolve(self._catalog.parse(version, want="version"))
        source = None
        if isinstance(from_, DataRef) or (isinstance(from_, str) and names_version(from_)):
            there = open(from_)
            if there.digest != damaged.info.digest:
                raise DigestMismatchError(
                    f"{there.reference} has other records than {damaged.name}, which has digest "
                    f"sha256:{damaged.info.digest[:12]}: nothing is repaired"
                )
            source = there._base.version
        elif from_ is not None:
            source = _storage_at("from_", from_)._catalog.same_as(damaged)
        return repair(damaged, None if is_dry else source, self._catalog.copies, shows)

    def diff(
        self,
        one: str | View[Any],
        other: str | View[Any],
        *,
        key: str | Sequence[str] | None = None,
        rows: bool = True,
        progress: bool | None = None,
    ) -> Diff:
        """Return how two versions differ, with the rows that came, went and changed.

        Args:
            one, other: versions of this storage, such as ``"cifar10@v2"``, as in :meth:`fetch`; or a :class:`DataRef`
                of any storage.
            key, rows, progress: as in :meth:`DataRef.diff`.

        Raises:
            NotFoundError: if there is no such version.
            InvalidArgumentError: as in :meth:`DataRef.diff`.

        Examples:
            >>> import numpy as np
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.cache({"id": np.array([1, 2, 3]), "x": np.array([5, 6, 7])}, "rows@v1")
            >>> ref = storage.cache({"id": np.array([4, 3, 2]), "x": np.array([9, 7, 0])}, "rows@v2")
            >>> print(storage.diff("rows@v1", "rows@v2", key="id").rows)
            by id: 1 came, 1 went, 1 changed, 1 are the same, in another order
            + came: 1, the first is 4 (record 0)
            - went: 1, the first is 1 (record 0)
            ~ x: 1, the first is 2 (record 1 -> 2): 6 -> 0
        """
        views = [each if isinstance(each, View) else self.fetch(each) for each in (one, other)]
        return views[0].diff(views[1], key=key, rows=rows, progress=progress)

    def copy(
        self,
        dataset_id: str | DataRef[Any],
        version: str | Storage | os.PathLike[str] | None = None,
        to: Storage | str | os.PathLike[str] | None = None,
        *,
        new: str | None = None,
        progress: bool | None = None,
    ) -> DataRef[Any]:
        """Copy a version to another storage, or under another name. The copy has the same shards and the same digest.

        Only files that are missing or damaged in the target are copied, so an equal call after an interruption goes on,
        and a call for a version that is there mends it. Files in the target are compared by their checksums, which
        buckets keep with what was put there: it is not read for that. :meth:`repair` reads it, unless the store has
        computed the checksums, as Google's does. The provenance stays that of the build.

        Args:
            dataset_id, version: the version, ``"cifar10@v2"``, as in :meth:`fetch`.
            to: the target: a storage, or the URL of a storage that needs no options.
            new: the name in the target, a version or ``"<dataset id>@<version>"``; by default the same as here.
            progress: as in :meth:`submit`.

        Returns:
            The version in the target.

        Raises:
            NotFoundError: if there is no such version, or it is deleted, replaced or erased from meanwhile.
            AlreadyExistsError: if another version, or a tag, has this name in the target.
            CorruptionError: if a file differs from what was published.
            StorageError: if one of the storages fails.

        Examples:
            >>> storage = cachelayer.Storage(folder)
            >>> ref = storage.submit(["a", "b"], "letters@v1")
            >>> there = storage.copy("letters@v1", folder / "backup", new="texts@v7")
            >>> f"{there.dataset_id}@{there.dataset_version}", list(there), there.digest == ref.digest
            ('texts@v7', ['a', 'b'], True)
        """
        from cachelayer.versions.copy import copy_version

        reference, (to,) = self._catalog.parse_before(dataset_id, version, to)
        target = _storage_at("to", required("to", to))
        source = self._catalog.resolve(reference)
        there = target._catalog.sibling(reference.dataset_id, source.info.version if new is None else new, "new", "new")
        dataset = target._catalog.dataset(there.dataset_id)
        return target._catalog.open(copy_version(source, dataset, there.name, progress))


def _storage_at(argument: str, place: Any) -> Storage:
    """Return the storage that a user passes, or names by its URL."""
    if isinstance(place, Storage):
        return place
    if isinstance(place, (str, os.PathLike)):
        return Storage(place)
    raise InvalidTypeError(f"{argument}: expected a Storage or its URL, not a {type(place).__name__}")


@explains_options
def open(
    reference: str | DataRef[Any],
    *,
    local_cache: str | os.PathLike[str] | None = None,
    local_cache_bytes: int | str | None = None,
    storage_options: Mapping[str, Any] | None = None,
    verify: Verify = "open",
) -> DataRef[Any]:
    """Open the version that a reference names: its storage, dataset and version in one text.

    Args:
        reference: ``<url>/<dataset id>@<version>``. Append ``@sha256:<digest>`` to open exactly these records or fail,
            and ``[a:b]`` to open a view of a slice. A :class:`DataRef` is returned as it is, or opened again if other
            options are passed. The ``reference`` of a :class:`Mixture` opens the mixture.
        local_cache, local_cache_bytes, storage_options, verify: as in :class:`Storage`.

    Raises:
        InvalidArgumentError: if it is not a reference.
        NotFoundError: if there is no such version.
        CorruptionError: if the version has another digest.

    Examples:
        >>> ref = cachelayer.Storage(folder).submit(["a", "b", "c"], "letters@v1")
        >>> list(cachelayer.open(f"{folder}/letters@v1")), list(cachelayer.open(f"{folder}/letters@v1[1:]"))
        (['a', 'b', 'c'], ['b', 'c'])
        >>> cachelayer.open(ref[1:].reference)[0]  # with the digest, so it opens exactly these records or fails
        'b'
    """
    if isinstance(reference, DataRef):
        if (local_cache, local_cache_bytes, storage_options, verify) == (None, None, None, "open"):
            return reference
        reference = reference.reference
    if not isinstance(reference, str):
        raise InvalidTypeError(f"open takes a reference as a str, not a {type(reference).__name__}")
    options: dict[str, Any] = {
        "local_cache": local_cache,
        "local_cache_bytes": local_cache_bytes,
        "storage_options": storage_options,
        "verify": verify,
    }
    if reference.startswith("mix("):
        from cachelayer.views.mix import open_mixture

        mixture: Any = open_mixture(reference, lambda part: open(part, **options))
        return mixture  # type: ignore[no-any-return]
    parsed = Reference.parse(reference, want="any")
    if not parsed.url:
        raise InvalidArgumentError(
            f"{without_credentials(reference)!r} is not a reference: write <url>/<dataset id>@<version>"
        )
    if parsed.name is None:
        raise InvalidNameError(
            f"{without_credentials(reference)!r} names no version: write <url>/<dataset id>@<version>"
        )
    return Storage(parsed.url, **options).fetch(reference)
