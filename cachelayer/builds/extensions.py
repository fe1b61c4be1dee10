"""The additions of builds: records, to none or to those of a base, or columns to the records of a base.

::

    AddedRecords     base records | records    the shards of the base are shared, if there is a base
    AddedColumns     base records              the shards of the base are shared; the columns are files of their own
                     + columns

If the base has added columns, new records are written in two places: their fields of the records to new shards, and
their columns to copies of the column files that are longer. Fields that the base lacks are an added column too, whose
first rows have the value of ``fill``::

    base      id  text               id  text  lang
    source    id  text  lang    ->   0   ...   None    fill={"lang": None}
                                     1   ...   3
"""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, ClassVar, Protocol

import numpy as np

from cachelayer.builds.batches import stacked_records
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.element_specs import check_fits
from cachelayer.builds.encode import Encoder
from cachelayer.builds.shard_pipeline import ShardPipeline, ShardTarget
from cachelayer.builds.source import Source
from cachelayer.errors import CorruptionError, ElementError, InvalidArgumentError, RefusedError, SourceError
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.frames import PREFIX, Frames
from cachelayer.records.leaf_columns import Column, Columns
from cachelayer.records.spans import Records
from cachelayer.specs import tree
from cachelayer.specs.spec import LeafSpec
from cachelayer.specs.tree import Tree
from cachelayer.support.memory import Bytes
from cachelayer.support.progress import Progress, current
from cachelayer.versions.blobs import copy, missing, put_files
from cachelayer.versions.column_file import CHECKED_NBYTES, ColumnFile, write_column_file
from cachelayer.versions.derive import append, with_columns
from cachelayer.versions.manifest import Manifest
from cachelayer.versions.shard_set import ShardSet, layout_nbytes
from cachelayer.versions.shard_table import ShardTable
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.versions.verify import checked_records

_RANGE_NBYTES = 128 * CHECKED_NBYTES
"""The bytes of a column file that are copied at once."""


class Extension(Protocol):
    """The addition of a build to a base, or to nothing."""

    @property
    def base(self) -> StoredVersion | None:
        """The version that is extended; None for none."""

    @property
    def spec(self) -> Tree | None:
        """The spec that the elements of the source must have; None for any."""

    @property
    def new_fields(self) -> Collection[str]:
        """The keys that elements have besides those of the spec."""

    def puts_again(self, spec: Tree | None) -> bool:
        """Return whether :meth:`finish` writes records of a spec, which may not be known, into other files."""

    def finish(
        self, built: ShardSet, provenance: dict[str, Any], target: ShardTarget, options: BuildOptions
    ) -> Manifest:
        """Return the manifest of the new version, after putting the files that it needs besides."""


def _refuse_nested(spec: Mapping[str, Tree], names: Collection[str]) -> None:
    """Raise if a name of ``fill`` leads into a dict that the elements of a base have."""
    outer_keys = [key for key, child in spec.items() if not isinstance(child, LeafSpec)]
    for name in names:
        outer = next((key for key in outer_keys if name.startswith((f"{key}/", f"{key}."))), None)
        if outer is not None:
            raise InvalidArgumentError(
                f"fill={{{name!r}: ...}}: fill has values of whole fields, and {name!r} lies within {outer!r}: append "
                f"elements that have every key of it; for a new key, make {outer!r} anew before, with "
                "add_columns(..., replace=True), and rewrite() that version"
            )


@dataclass(frozen=True)
class AddedRecords:
    """Records that follow those of a base, or are all that a version has."""

    base: StoredVersion | None = None
    fill: Mapping[str, Any] = field(default_factory=dict)
    """The values of fields that the new records lack, or the records of the base, by name."""

    def __post_init__(self) -> None:
        if self.base is not None and self.new_fields:
            _refuse_columns(self.base)
            _refuse_nested(self.base.manifest.merged_spec, self.new_fields)

    @property
    def spec(self) -> Tree | None:
        if self.base is None or (self.base.manifest.records == 0 and not self.base.manifest.columns):
            return None
        spec = self.base.manifest.merged_spec
        if not isinstance(spec, dict) or not self.fill:
            return spec
        return {key: child for key, child in spec.items() if key not in self.fill}

    @property
    def new_fields(self) -> Collection[str]:
        if self.base is None or self.spec is None:
            return []
        known = self.base.manifest.merged_spec
        return [name for name in self.fill if not isinstance(known, dict) or name not in known]

    def puts_again(self, spec: Tree | None) -> bool:  # noqa: ARG002
        return self.base is not None and self.spec is not None and bool(self.base.manifest.columns or self.fill)

    def finish(
        self, built: ShardSet, provenance: dict[str, Any], target: ShardTarget, options: BuildOptions
    ) -> Manifest:
        if self.base is None:
            return Manifest(built, provenance, unerased_nbytes=built.shards.plain_nbytes)
        if self.spec is not None:
            # Elements of some sources show their fields only when they are read.
            check_fits(self.base.name, self.spec, self.new_fields, built.element_spec)
        if not self.puts_again(self.spec):
            return append(self.base, built, (), provenance)
        return _AppendedFields(self.base, self.fill, built, target, options).manifest(self.new_fields, provenance)


NEW_RECORDS = AddedRecords()


@dataclass(frozen=True)
class _AppendedFields:
    """Puts records that were built where the fields of a base are: in shards, and in groups of columns."""

    base: StoredVersion
    fill: Mapping[str, Any]
    built: ShardSet
    target: ShardTarget
    options: BuildOptions

    def manifest(self, new_fields: Collection[str], provenance: dict[str, Any]) -> Manifest:
        """Return the records of the base, followed by those that were built."""
        before = self.base.manifest
        keys = [key for each in before.sets for key in each.element_spec]
        if len(set(keys)) < len(keys):
            twice = next(key for key in keys if keys.count(key) > 1)
            raise InvalidArgumentError(
                f"{self.base.name}: its field {twice!r} was replaced, so records cannot be appended: storage.rewrite() "
                "makes a version with the new field alone"
            )
        spec = self._widened(before.rows.element_spec)
        codec = codec_for(spec)
        rows = ShardSet.of(codec.name, spec, self._put_shards(codec, self._fields_of_built(codec)))
        columns = [self._columns(group.element_spec, group) for group in before.columns]
        if new_fields:
            columns.append(self._columns({name: self.built.element_spec[name] for name in new_fields}, None))
        return append(self.base, rows, columns, provenance)

    def _columns(self, fields: Mapping[str, Tree], group: ShardSet | None) -> ShardSet:
        """Put the rows of a group of columns, or of ``fill`` without one, followed by those of the new records."""
        spec = self._widened(fields)
        codec = codec_for(spec)
        new = self._fields_of_built(codec)
        if group is None:
            new = chain(self._filled(codec), new)
        has_file = layout_nbytes(spec) is not None if group is None else group.array is not None
        if not has_file:
            shards = self._put_shards(codec, new)
            return ShardSet.of(codec.name, spec, shards if group is None else group.shards.then(shards))
        rows: Iterable[Bytes] = map(rows_of, new)
        if group is not None and group.array is not None:
            rows = chain(column_rows(self.base, group.array), rows)
        count = self.base.manifest.rows.records + self.built.records
        return ShardSet.of(codec.name, spec, ShardTable([]), put_column_file(self.target, spec, count, rows))

    def _widened(self, spec: Mapping[str, Tree]) -> dict[str, Tree]:
        """Return the spec of some fields, in which leaves that are None in new records are nullable."""
        built_spec = self.built.element_spec
        filled = {name: spec[name] for name in spec if name in self.fill}
        codec = codec_for(filled)
        empty = codec.null_bits_in(_repeated(self.fill, codec, 1))
        return {**spec, **{name: built_spec[name] for name in spec if name in built_spec}, **codec.schema.marked(empty)}

    def _filled(self, codec: Codec) -> Iterator[Frames]:
        """Yield a record for each of the base, with the values of ``fill`` for the fields of a codec."""
        count = self.base.manifest.rows.records
        nbytes = len(codec.encode(_repeated(self.fill, codec, 1)).buffer)
        at_once = stacked_records(nbytes, len(codec.leaves))
        for first in range(0, count, at_once):
            yield codec.encode(_repeated(self.fill, codec, min(at_once, count - first)))

    def _fields_of_built(self, codec: Codec) -> Iterator[Frames]:
        """Yield the new records with the fields of a codec alone; fields that they lack have the values of ``fill``."""
        built_codec = codec_for(self.built.element_spec)
        fill_codec = codec_for({name: codec.spec[name] for name in codec.spec if name not in built_codec.spec})
        for records in _records_of(self.base, self.built, self.target):
            decoded = [(built_codec, built_codec.decode(records))]
            if fill_codec.spec:
                decoded.append((fill_codec, _repeated(self.fill, fill_codec, len(records))))
            columns_by_path: dict[str, Column] = {}
            nulls: dict[str, Any] = {}
            for own, columns in decoded:
                columns_by_path |= zip((leaf.path for leaf in own.schema.leaves), columns.leaves, strict=True)
                nulls |= columns.nulls
            leaves = [columns_by_path[leaf.path] for leaf in codec.schema.leaves]
            yield codec.encode(Columns(leaves, len(records), nulls))

    def _put_shards(self, codec: Codec, frames: Iterator[Frames]) -> ShardTable:
        """Write records as shards, put these, and return them."""
        with (
            Progress("", None, enabled=False),
            ShardPipeline(self.target, self.target.dataset, self.options) as pipeline,
        ):
            pipeline.write_part(0, Encoder(codec), frames)
            return ShardTable(pipeline.finish()[0].shards)


@dataclass(frozen=True)
class AddedColumns:
    """Columns that are added to the records of a base."""

    base: StoredVersion
    replaces: bool = False
    """Whether a column may have the name of a field of the base, whose place it takes."""
    spec: ClassVar[Tree | None] = None
    new_fields: ClassVar[tuple[str, ...]] = ()

    def __post_init__(self) -> None:
        _refuse_columns(self.base)

    def puts_again(self, spec: Tree | None) -> bool:
        return spec is None or layout_nbytes(spec) is not None

    def write_at_once(self, source: Source, options: BuildOptions, target: ShardTarget) -> ShardSet | None:
        """Write columns to one file, without shards, if they have a fixed size and a known spec; else return None."""
        spec = options.element_spec
        if spec is None or source.element_spec is None or layout_nbytes(self._checked(spec)) is None:
            return None
        return write_columns(source, spec, self.base.manifest.rows.records, target)

    def finish(
        self,
        built: ShardSet,
        provenance: dict[str, Any],
        target: ShardTarget,
        options: BuildOptions,  # noqa: ARG002
    ) -> Manifest:
        records = self.base.manifest.rows.records
        spec = self._checked(built.element_spec)
        group = built
        if built.array is None:
            if built.records != records:
                raise SourceError(f"the columns have {built.records} rows, and {self.base.name} {records} records")
            if layout_nbytes(spec) is not None:
                rows = (some.take(0, int(some.lengths[0])) for some in _records_of(self.base, built, target))
                array = put_column_file(target, spec, built.records, rows)
                group = replace(built, array=array, shards=ShardTable([]))
            elif target.parts is not target.dataset:
                # The spec was not known before.
                for shard in built.shards:
                    blobs = {blob: blob for blob in shard.blobs}
                    copy(target.parts, target.dataset, blobs, lambda _: None, trusts_sent=True)
        return with_columns(self.base, group, provenance)

    def _checked(self, spec: Tree) -> dict[str, Tree]:
        """Return the spec of the columns; raise if they cannot be added."""
        if not isinstance(spec, dict):
            raise InvalidArgumentError(f"columns: expected a dict of columns by name, got {tree.describe(spec)}")
        known = self.base.manifest.merged_spec
        there = [key for key in spec if key in known]
        if there and not self.replaces:
            raise InvalidArgumentError(
                f"{self.base.name} has a field {there[0]!r} already: choose another name, or pass replace=True"
            )
        return spec


def _refuse_columns(base: StoredVersion) -> None:
    """Raise unless columns can be added to a version."""
    manifest = base.manifest
    if not isinstance(manifest.rows.element_spec, dict):
        raise InvalidArgumentError(
            f"{base.name} has elements {tree.describe(manifest.rows.element_spec)}: columns are added to dicts"
        )
    if manifest.erased:
        # The columns would have a row for the erased record, which must not be stored.
        raise RefusedError(
            f"{base.name} has erased records, to which no columns are added: storage.rewrite() the view without them, "
            "ref.exclude(ref.erased), first"
        )
    if manifest.kept is not None:
        raise RefusedError(
            f"{base.name} keeps some records of other versions: add the columns to the version that it was derived "
            "from, or storage.rewrite() it first"
        )


def _repeated(values: Mapping[str, Any], codec: Codec, rows: int) -> Columns:
    """Return the columns of equal elements, whose fields have these values."""
    try:
        return codec.columns([{name: values[name] for name in codec.spec}] * rows)
    except ElementError as error:
        raise InvalidArgumentError(f"fill: {error.at(record=None)}") from error


def _records_of(base: StoredVersion, built: ShardSet, target: ShardTarget) -> Iterator[Records]:
    """Yield all records that were built, some MiB at a time."""
    for shard in built.shards:
        with replace(base, folder=target.parts).local_file(shard) as path:
            for _, records in checked_records(path, shard, built.codec_of(base.name)):
                yield records


def write_columns(source: Source, spec: Tree, count: int, target: ShardTarget) -> ShardSet:
    """Write columns of fixed size to one file, and put it."""
    codec = codec_for(spec)
    encoder = Encoder(codec)
    within = frozenset(codec.schema.bits_of_values.values())

    def rows() -> Iterator[Bytes]:
        for batch in source.batches():
            frames = encoder.encode(batch)
            if encoder.result.nullable & within:
                raise InvalidArgumentError(
                    f"columns {', '.join(spec)}: a value within an array is None, and the spec says that none is: "
                    "declare nullable_values=True"
                )
            encoded = rows_of(frames)
            current().update(len(encoded), encoded.nbytes)
            yield encoded

    array = put_column_file(target, spec, count, rows())
    return ShardSet.of(codec.name, codec.schema.marked(encoder.result.nullable), ShardTable([]), array)


def put_column_file(target: ShardTarget, spec: Tree, count: int, rows: Iterable[Bytes]) -> ColumnFile:
    """Write rows to a column file, put it, and return it."""
    path = target.folder / f"{uuid.uuid4().hex}.npy"

    def rows_with_room() -> Iterator[Bytes]:
        for some in rows:
            target.room.take(some.nbytes)
            yield some

    file = write_column_file(path, spec, count, rows_with_room(), target.generation)
    put_files(target.dataset, dict(zip([path], file.blobs, strict=True)))
    return file


def rows_of(frames: Frames) -> Bytes:
    """Return records of equal size as rows: uint8 of shape ``[rows, bytes]``."""
    nbytes = int(frames.lengths[0]) if len(frames) else 0
    return frames.buffer.reshape(-1, PREFIX + nbytes)[:, PREFIX:]


def column_rows(version: StoredVersion, file: ColumnFile) -> Iterator[Bytes]:
    """Yield the rows of a column file of a version, a range of the file at a time: uint8 of shape ``[rows, bytes]``."""
    name = f"{version.folder.url}/{file.name}"
    if missing(version.folder, file.blobs):
        raise CorruptionError(f"{name}: it is missing, or has other bytes than {file.nbytes}")
    unread = file.begin
    rest = np.empty(0, np.uint8)
    for begin in range(0, file.nbytes, _RANGE_NBYTES):
        [raw] = version.folder.read_ranges([(file.name, begin, min(begin + _RANGE_NBYTES, file.nbytes))])
        file.check_ranges(raw, begin // CHECKED_NBYTES, name)
        # A row may lie in two ranges.
        rest = np.concatenate([rest, np.frombuffer(raw, np.uint8)[unread:]])
        unread = 0
        whole = len(rest) - len(rest) % file.record_nbytes
        yield rest[:whole].reshape(-1, file.record_nbytes)
        rest = rest[whole:]
