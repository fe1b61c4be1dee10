"""What makes new versions: of a source, of another version and a source, or of records of another version."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

from cachelayer.access.dataref import DataRef
from cachelayer.arguments import boolean
from cachelayer.builds.build_options import DEFAULT_SHARD_BYTES, BuildOptions
from cachelayer.builds.encode import OnError
from cachelayer.builds.publish import ALLOW_EMPTY, Publisher
from cachelayer.builds.sharded_source import Sharded
from cachelayer.builds.source import splits_of
from cachelayer.engines import Engine
from cachelayer.errors import InvalidArgumentError
from cachelayer.objects import paths
from cachelayer.provenance.environment import checked_metadata
from cachelayer.provenance.origin import Origin
from cachelayer.records.tree import Tree
from cachelayer.storage.catalog import Catalog
from cachelayer.storage.version_names import check_version
from cachelayer.versions.derive import derive
from cachelayer.versions.log import Log
from cachelayer.versions.stored_version import StoredVersion


class Submitting(Catalog):
    """The versions of the datasets in a store, and new ones."""

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
        check_names(dataset_id, dataset_version, splits or ())
        if splits is None:
            return self._submit(source, dataset_id, dataset_version, record, options)
        return of_splits(
            {
                split: self._submit(part, f"{dataset_id}.{split}", dataset_version, record, options)
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
            AlreadyExistsError: if the new version is there, as after losing a race against another.
            InvalidArgumentError: if the source has another element spec, with each leaf that differs.
            NotFoundError: if there is no such base.
            CacheLayerError: as in :meth:`submit`.
        """
        options = BuildOptions.of(submit_options, "record")

        splits = splits_of(source)
        if splits is None:
            check_names(dataset_id, new_version)
            base = self.fetch(dataset_id, base_version)._base.version
            return self._submit(source, dataset_id, new_version, record, options, base)
        return of_splits(
            {
                split: self.append(
                    f"{dataset_id}.{split}", base_version, new_version, part, record=record, **submit_options
                )
                for split, part in splits.items()
            }
        )

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
            AlreadyExistsError: if the new version is there.
            NotFoundError: if there is no such base.
            RecordIndexError: if the base has no such record.
            InvalidArgumentError: if ``keep`` keeps no record.
            InvalidTypeError: if ``keep`` is nothing of that.
        """
        check_version(new_version)
        base = self.fetch(dataset_id, base_version)
        kept = base._selection.select(keep)
        if not len(kept) and not boolean("allow_empty", allow_empty):
            raise InvalidArgumentError(
                f"{dataset_id}@{new_version}: keep= keeps none of the {len(base)} records of {base_version}; "
                f"{ALLOW_EMPTY}"
            )
        stored = checked_metadata(metadata)
        derived = derive(base._base.version, new_version, kept, description=description, metadata=stored)
        return self._ref(derived)


def check_names(dataset_id: str, version: str, splits: Iterable[str] = ()) -> None:
    """Raise if a dataset, one of its splits or a version cannot have such a name.

    Raises:
        InvalidArgumentError: with the name and what it may be.
    """
    paths.check_name("dataset id", dataset_id)
    for split in splits:
        paths.check_name("dataset id", f"{dataset_id}.{split}")
    check_version(version)


def of_splits(refs: dict[str, DataRef[Any]]) -> DataRef[Any]:
    """Return the refs of splits by name. No type says which mappings are splits, so it is declared as one ref."""
    return cast(DataRef[Any], refs)


def origin_of(source: Any, record: Iterable[str]) -> Origin:
    """Return what is known of where a source comes from."""
    return Origin.of(source.function if isinstance(source, Sharded) else source, record)
