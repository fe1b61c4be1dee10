"""What makes new versions: of a source, of another version and a source, or of records of another version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Unpack, cast, overload

from cachelayer.access.dataref import DataRef
from cachelayer.arguments import boolean, given
from cachelayer.builds.build_options import DEFAULT_SHARD_BYTES, BuildOptions, SubmitOptions
from cachelayer.builds.build_version import ALLOW_EMPTY, Publisher
from cachelayer.builds.encode import OnError
from cachelayer.builds.sharded_source import Sharded
from cachelayer.builds.source import splits_of
from cachelayer.engines import Engine
from cachelayer.errors import InvalidArgumentError, InvalidNameError
from cachelayer.objects import paths
from cachelayer.provenance.environment import checked_metadata
from cachelayer.provenance.origin import Origin
from cachelayer.records.tree import Tree
from cachelayer.storage.catalog import Catalog
from cachelayer.storage.version_names import check_version, new_name
from cachelayer.versions.derive import derive
from cachelayer.versions.log import Log
from cachelayer.versions.reference import Reference, needed
from cachelayer.versions.stored_version import StoredVersion


class Submitting(Catalog):
    """The versions of the datasets in a store, and new ones."""

    def submit(
        self,
        source: Any,
        dataset_id: str,
        version: str | None = None,
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
            dataset_id, version: names of 1 to 128 of the characters ``A-Z a-z 0-9 . _ -``; also one text,
                ``"cifar10@v2"``.
            element_spec: the structure of an element with leaf specs, dtypes or objects with shape and dtype; by
                default the source's own schema, else that of the first element.
            compression: None, ``"zstd"`` or ``"zstd:<level>"``, of each record by itself.
            shard_bytes: about the size of a shard file, in bytes.
            max_records: take no more than these.
            unbatch: each element of the source is a batch: take it apart along the leading axis.
            on_error: ``"skip"`` leaves out elements that do not fit the spec, and those with an image or sound that
                does not decode: a warning and ``ref.provenance["left_out"]`` say how many, and which came first.
            allow_empty: publish a version without records if the source gives none, instead of an error.
            workers: processes that build, if the source comes in parts (:func:`cachelayer.sharded`) or can begin at any
                record; of another source one process makes the elements, and a second one writes them. The shards
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
            AlreadyExistsError: if the version is there; versions never change.
            ElementError: for an element that does not fit, with its record number and the path of the leaf.
            SourceError: if the source fails, with the record number, does not have as many elements as its length says,
                or gives none.
            InvalidTypeError: if it is no source.
            StorageError: if the disk is full or fails.
        """
        dataset_id, name = new_name(dataset_id, version)
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

        splits = splits_of(source)
        check_splits(dataset_id, splits or ())
        if splits is None:
            return self._submit(source, dataset_id, name, record, options)
        return of_splits(
            {
                split: self._submit(part, f"{dataset_id}.{split}", name, record, options)
                for split, part in splits.items()
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
        """Publish a version that has the records of another, and those of a source behind them.

        The shards of the base are shared, not copied. They stay until the last version that names them is deleted.

        Args:
            dataset_id, base_version: the version to begin with, such as ``"cifar10@v2"``; a tag or ``latest`` will do.
            new_version: the name of the new one.
            source, record, options: as in :meth:`submit`; elements have the element spec of the base.

        Raises:
            AlreadyExistsError: if the new version is there, as after losing a race against another.
            InvalidArgumentError: if the source has another element spec, with each leaf that differs.
            NotFoundError: if there is no such base.
            CacheLayerError: as in :meth:`submit`.
        """
        reference = Reference.parse(*needed(dataset_id, base_version, "base_version"))
        name = check_version(given("new_version", new_version, InvalidNameError))
        checked = BuildOptions.of(options, "base_version", "new_version", "record")

        splits = splits_of(given("source", source))
        check_splits(reference.dataset_id, splits or ())

        def append(part: Any, part_id: str) -> DataRef[Any]:
            base = self._fetch(replace(reference, dataset_id=part_id))._base.version
            return self._submit(part, part_id, name, record, checked, base)

        if splits is None:
            return append(source, reference.dataset_id)
        return of_splits({split: append(part, f"{reference.dataset_id}.{split}") for split, part in splits.items()})

    def derive(
        self,
        dataset_id: str,
        base_version: str | None = None,
        new_version: str | None = None,
        *,
        keep: Any,
        allow_empty: bool = False,
        description: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> DataRef[Any]:
        """Publish a version of some of the records of another. No record is copied.

        Args:
            dataset_id, base_version: the version to choose from, such as ``"cifar10@v2"``; a tag or ``latest`` will
                do.
            new_version: the name of the new one.
            keep: the records in their new order: integers, a slice, or one bool for each record of the base.
            allow_empty: publish a version without records if ``keep`` keeps none, instead of an error.
            description, metadata: as in :meth:`submit`; metadata goes over that of the base.

        Returns:
            The version; its digest is that of ``fetch(dataset_id, base_version).select(keep)``.

        Raises:
            AlreadyExistsError: if the new version is there.
            NotFoundError: if there is no such base.
            RecordIndexError: if the base has no such record.
            InvalidArgumentError: if ``keep`` keeps no record.
            InvalidTypeError: if ``keep`` is nothing of that.
        """
        reference = Reference.parse(*needed(dataset_id, base_version, "base_version"))
        name = check_version(given("new_version", new_version, InvalidNameError))
        base = self._fetch(reference)
        kept = base._selection.select(keep)
        if not len(kept) and not boolean("allow_empty", allow_empty):
            raise InvalidArgumentError(
                f"{base.dataset_id}@{name}: keep= keeps none of the {len(base)} records of {base.dataset_version}; "
                f"{ALLOW_EMPTY}"
            )
        stored = checked_metadata(metadata)
        derived = derive(base._base.version, name, kept, description=description, metadata=stored)
        return self._ref(derived)


def check_splits(dataset_id: str, splits: Iterable[str]) -> None:
    """Raise if a dataset cannot have the name of one of its splits.

    Raises:
        InvalidNameError: with the name and what it may be.
    """
    for split in splits:
        paths.check_name("dataset id", f"{dataset_id}.{split}")


def of_splits(refs: dict[str, DataRef[Any]]) -> DataRef[Any]:
    """Return the refs of splits by name. No type says which mappings are splits, so it is declared as one ref."""
    return cast(DataRef[Any], refs)


def origin_of(source: Any, record: Iterable[str]) -> Origin:
    """Return what is known of where a source comes from."""
    return Origin.of(source.function if isinstance(source, Sharded) else source, record)
