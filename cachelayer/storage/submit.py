"""Make new versions: from a source (submit), a version and a source (append), or records of a version (derive)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack, cast, overload

from cachelayer.access.dataref import DataRef
from cachelayer.arguments import boolean, required
from cachelayer.errors import InvalidArgumentError, InvalidNameError
from cachelayer.objects import paths
from cachelayer.storage.catalog import Catalog
from cachelayer.versions.log import Log
from cachelayer.versions.reference import Reference, dataset_and_plain_version, dataset_and_version
from cachelayer.versions.stored_version import StoredVersion

AUTO = "auto"
"""The version that :meth:`Storage.cacheable` takes for a name made from the code and the arguments."""

# What builds is imported when something is built: most processes only read.
if TYPE_CHECKING:
    from cachelayer.builds.build_options import BuildOptions, SubmitOptions
    from cachelayer.provenance.origin import Origin


class BuildingCatalog(Catalog):
    """A catalog that also makes new versions."""

    def submit(
        self,
        source: Any,
        dataset_id: str,
        version: str | None = None,
        *,
        record: Iterable[str] = (),
        **options: Unpack[SubmitOptions],
    ) -> DataRef[Any]:
        """Build a version from a source and publish it, completely or not at all.

        Args:
            source: a ``tf.data.Dataset``, an iterable of elements, a function that returns one, or an array, or a dict
                or tuple of arrays: their rows are the elements. Or the path, pattern or URL of files, or of a folder:
                their names tell which function of :mod:`cachelayer.adapters` reads them, with its default options.
            dataset_id, version: names of 1 to 128 of the characters ``A-Z a-z 0-9 . _ -``; or both in one text,
                ``"cifar10@v2"``.
            element_spec: the structure of an element, with leaf specs, dtypes or objects with shape and dtype; by
                default the schema of the source, or else the spec of the first element. If a source gives elements one
                by one, dicts in it may lack keys: their specs are those of the first element.
            compression: None, ``"zstd"`` or ``"zstd:<level>"``; each record is compressed separately.
            shard_bytes: the approximate size of a shard file, in bytes.
            max_records: take at most this many records.
            unbatch: each element of the source is a batch: split it along the leading axis.
            on_error: ``"skip"`` leaves out elements that do not fit the spec, and elements with images or audio that
                cannot be decoded. A warning and ``ref.provenance["left_out"]`` say how many, and which was the first.
            allow_empty: if the source has no elements, publish a version without records instead of raising.
            workers: the number of processes that build, if the source comes in parts (:func:`cachelayer.sharded`) or
                can begin at any record. Other sources are built by one process, with a warning. The shards are the
                same for any number of workers.
            engine: what runs the workers: None or ``"processes"`` for processes of this host, ``"ray"``, ``"beam"``,
                or any object with the method of :class:`cachelayer.engines.Engine`. A source without parts is divided
                into ranges of about a shard.
            resume: continue with the shards that an interrupted build of the same version finished, and keep the
                shards of this build if it is interrupted. If the source can begin at any record, the build makes some
                records of each finished shard again, compares them, and continues after them. Otherwise it makes and
                compares all records of the finished shards. If the code, the files or the options have changed, it
                starts from the beginning, with a warning.
            progress: None shows a bar in a terminal or a notebook, elsewhere a line every half minute; True shows it
                from the start; False shows nothing.
            description: a text that is stored with the version.
            metadata: a dict that JSON can hold; it is stored with the version.
            record: the names of the function's arguments whose values are stored with the version. Numbers, bools and
                None always are. For any other value a short hash is stored, which shows later whether it changed.

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
        """
        from cachelayer.builds.build_options import BuildOptions

        dataset_id, name = new_name(dataset_id, version)
        checked = BuildOptions.of(options, "version", "record")
        source, splits = open_source(source, dataset_id)
        if splits is None:
            return self._submit(source, dataset_id, name, record, checked)
        return of_splits(
            {
                split: self._submit(each, f"{dataset_id}.{split}", name, record, checked)
                for split, each in splits.items()
            }
        )

    def _submit(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        record: Iterable[str],
        options: BuildOptions,
        base: StoredVersion | None = None,
    ) -> DataRef[Any]:
        from cachelayer.builds.build_version import Publisher

        log, origin = Log(self._store, dataset_id), origin_of(source, record)
        return self._ref(Publisher(log, self._copies, version, source, origin, options, base).submit())

    @overload
    def append(
        self,
        dataset_id: str,
        base_version: str,
        new_version: str,
        source: Any,
        *,
        record: Iterable[str] = (),
        **options: Unpack[SubmitOptions],
    ) -> DataRef[Any]: ...

    @overload
    def append(
        self,
        dataset_id: str,
        base_version: str | None = None,
        *,
        new_version: str,
        source: Any,
        record: Iterable[str] = (),
        **options: Unpack[SubmitOptions],
    ) -> DataRef[Any]: ...

    def append(
        self,
        dataset_id: str,
        base_version: str | None = None,
        new_version: str | None = None,
        source: Any = None,
        *,
        record: Iterable[str] = (),
        **options: Unpack[SubmitOptions],
    ) -> DataRef[Any]:
        """Publish a version with the records of an existing version, followed by those of a source.

        The versions share the shards of the base; they are not copied. They stay until the last version that needs them
        is deleted.

        Args:
            dataset_id, base_version: the existing version, such as ``"cifar10@v2"``; a tag or ``latest`` is accepted.
            new_version: the name of the new version.
            source, record, options: as in :meth:`submit`. The elements must have the element spec of the base.

        Raises:
            AlreadyExistsError: if the new version exists, for example because another process made it meanwhile.
            InvalidArgumentError: if the source has another element spec; names each leaf that differs.
            NotFoundError: if there is no such base.
            CacheLayerError: as in :meth:`submit`.
        """
        from cachelayer.builds.build_options import BuildOptions

        reference = Reference.parse(*dataset_and_version(dataset_id, base_version, "base_version"))
        name = check_version(required("new_version", new_version, InvalidNameError))
        checked = BuildOptions.of(options, "base_version", "new_version", "record")
        source, splits = open_source(required("source", source), reference.dataset_id)

        def append(split: Any, split_id: str) -> DataRef[Any]:
            base = self._fetch(replace(reference, dataset_id=split_id))._base.version
            return self._submit(split, split_id, name, record, checked, base)

        if splits is None:
            return append(source, reference.dataset_id)
        return of_splits({split: append(each, f"{reference.dataset_id}.{split}") for split, each in splits.items()})

    def derive(
        self,
        dataset_id: str,
        base_version: str | None = None,
        new_version: str | None = None,
        *,
        keep: Any = None,
        exclude: Any = None,
        allow_empty: bool = False,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> DataRef[Any]:
        """Publish a version with some of the records of another version. This copies no records.

        Args:
            dataset_id, base_version: the version to choose from, such as ``"cifar10@v2"``; a tag or ``latest`` is
                accepted.
            new_version: the name of the new version.
            keep: the records in their new order: integers, a slice, or one bool for each record of the base.
            exclude: in place of ``keep``, the records to leave out, in any order; the others keep their order.
            allow_empty: if no records are kept, publish a version without records instead of raising.
            description, metadata: as in :meth:`submit`. The metadata is added to that of the base, and replaces equal
                keys.

        Returns:
            The version; its digest is that of ``fetch(dataset_id, base_version).select(keep)``, or of
            ``.exclude(exclude)``.

        Raises:
            AlreadyExistsError: if the new version exists.
            NotFoundError: if there is no such base.
            RecordIndexError: if the base has no such record.
            InvalidArgumentError: if no records are kept and ``allow_empty`` is False, or not exactly one of ``keep``
                and ``exclude`` is passed.
            InvalidTypeError: if ``keep`` or ``exclude`` is of another type.
        """
        from cachelayer.builds.build_version import ALLOW_EMPTY
        from cachelayer.provenance.environment import checked_metadata
        from cachelayer.versions.derive import derive

        reference = Reference.parse(*dataset_and_version(dataset_id, base_version, "base_version"))
        name = check_version(required("new_version", new_version, InvalidNameError))
        if (keep is None) == (exclude is None):
            raise InvalidArgumentError("pass keep=, the records to keep, or exclude=, those to leave out")
        base, chosen = self._fetch(reference), "keep" if exclude is None else "exclude"
        selection = base._selection.select(keep) if exclude is None else base._selection.exclude(exclude)
        if not len(selection) and not boolean("allow_empty", allow_empty):
            raise InvalidArgumentError(
                f"{base.dataset_id}@{name}: {chosen}= keeps none of the {len(base)} records of {base.dataset_version}; "
                f"{ALLOW_EMPTY}"
            )
        checked = checked_metadata(metadata)
        return self._ref(derive(base._base.version, name, selection, description=description, metadata=checked))


def check_version(name: object) -> str:
    """Return the name of a new version if it is valid.

    Raises:
        InvalidNameError: if it is invalid.
    """
    _refuse_auto(name)
    return paths.check_name("version", name)


def _refuse_auto(name: object) -> None:
    if name == AUTO:
        raise InvalidNameError(
            f"version {AUTO!r} stands for a name made from the code and the arguments of a function: decorate the "
            f'function that returns the source with storage.cacheable(dataset_id, "{AUTO}"), or choose another name'
        )


def new_name(dataset_id: str, version: str | None) -> tuple[str, str]:
    """Return the dataset and the name of a new version, from a pair or from ``"id@version"``.

    Raises:
        InvalidNameError: if one of them is invalid, or no version is named.
        InvalidArgumentError: if two versions are named.
    """
    dataset_id, name = dataset_and_plain_version(dataset_id, version)
    _refuse_auto(name)
    return dataset_id, name


def open_source(source: Any, dataset_id: str) -> tuple[Any, Mapping[str, Any] | None]:
    """Return a source, which may be a path, and its splits if it has some.

    Raises:
        InvalidArgumentError: if there are no files at a path.
        InvalidNameError: if the name of a split makes an invalid dataset id.
    """
    from cachelayer.builds.path_source import at_path
    from cachelayer.builds.source import sources_by_split

    source = at_path(source)
    splits = sources_by_split(source)
    for split in splits or ():
        paths.check_name("dataset id", f"{dataset_id}.{split}")
    return source, splits


def of_splits(refs: dict[str, DataRef[Any]]) -> DataRef[Any]:
    """Return the DataRefs by split name. They are typed as one DataRef: no type tells which mappings are splits."""
    return cast(DataRef[Any], refs)


def origin_of(source: Any, record: Iterable[str]) -> Origin:
    """Return the origin of a source: the code, arguments and files that it comes from, as far as they are known."""
    from cachelayer.builds.sharded_source import Sharded
    from cachelayer.provenance.origin import Origin

    return Origin.of(source.function if isinstance(source, Sharded) else source, record)
