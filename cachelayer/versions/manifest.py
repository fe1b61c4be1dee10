"""Manifests: what a version consists of.

A manifest is ``{format, data, provenance, token}``. ``data`` holds the rows, a :class:`ShardSet`, and a further one for
each group of added columns; ``data`` alone decides the digest. The digest of the rows is the SHA-256 of the canonical
JSON (sorted keys, no spaces, ASCII) of their identity, and of ``erased`` if records were erased: the same records, cut
into shards at the same places, have the same digest everywhere. It is also the digest of the version, unless the
version keeps only some of the records, or columns were added to it. States of streams depend on the rows alone, so they
know the digest of the rows.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import numpy as np

from cachelayer import json_values
from cachelayer.errors import InvalidArgumentError
from cachelayer.json_values import Count, Sha256
from cachelayer.locks import cached_property
from cachelayer.records.tree import Tree
from cachelayer.versions.column_file import ColumnFile
from cachelayer.versions.shard_set import ShardSet, merged_spec
from cachelayer.versions.shard_table import ShardFile, ShardTable

FORMAT = 1


@dataclass(frozen=True)
class Kept:
    """The records of its shards that a version keeps, in the order of the version.

    Args:
        records: number of records kept.
        digest: the digest of the version, which covers the numbers of these records too.
        start, step: the first number and the step to each next one, if the numbers form an arithmetic progression;
            else None, and a file beside the manifest holds the numbers as little-endian int64.
    """

    records: Count
    digest: Sha256
    start: Count | None = None
    step: Annotated[int, partial(json_values.integer, least=-json_values.MOST)] | None = None

    @property
    def has_file(self) -> bool:
        return self.start is None

    def check(self, shard_records: int) -> None:
        """Raise if these cannot be records of shards that hold so many."""
        if (self.start is None) != (self.step is None) or self.records > json_values.MOST // 8:
            raise ValueError("what is kept is no progression, or too much")
        if self.start is not None and self.step is not None:
            ends = sorted([self.start, self.start + self.step * (self.records - 1)])
            if self.step == 0 or (self.records and not 0 <= ends[0] <= ends[1] < shard_records):
                raise ValueError(f"records {ends[0]} to {ends[1]} are kept, and the shards hold {shard_records}")


@dataclass(frozen=True)
class _Erasure:
    """What the provenance says of the records that were erased at one time."""

    records: tuple[Count, ...]
    reason: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """What a version consists of.

    Args:
        rows: the records.
        provenance: how the version was made, as JSON values; not part of the digest.
        token: unique to this manifest.
        segments: if records were appended, the number of records of the first build and of each append.
        kept: the records of the shards that the version keeps; None for all.
        erased: the numbers of the erased records among those of the shards, ascending: each is a record of 0 bytes.
        supersedes: the digests of the shards of the versions that this one replaces, because records were erased, the
            oldest first; not part of the digest.
        unerased_nbytes: the bytes of the shards before any record was erased, from which sizes of blocks follow; not
            part of the digest. None if none was.
        columns: the groups of columns that were added, the oldest first.
        numbers: of a manifest that is to be published, the numbers of the records that it keeps, if these need a file.
    """

    rows: ShardSet
    provenance: dict[str, Any] = field(default_factory=dict)
    token: str = ""
    segments: tuple[int, ...] = ()
    kept: Kept | None = None
    erased: tuple[int, ...] = ()
    supersedes: tuple[str, ...] = ()
    unerased_nbytes: int | None = None
    columns: tuple[ShardSet, ...] = ()
    numbers: bytes | None = field(default=None, compare=False, repr=False)

    @property
    def shards(self) -> ShardTable:
        """The shards of the records."""
        return self.rows.shards

    @property
    def sets(self) -> list[ShardSet]:
        """The rows and the groups of columns."""
        return [self.rows, *self.columns]

    @property
    def records(self) -> int:
        return self.rows.records if self.kept is None else self.kept.records

    @property
    def nbytes(self) -> int:
        """Bytes of all shards, without indices, and of added columns."""
        return sum(each.nbytes for each in self.sets)

    @property
    def files(self) -> list[ShardFile | ColumnFile]:
        """All shards and column files."""
        return [file for each in self.sets for file in each.files]

    def with_files(self, files: Iterable[ShardFile | ColumnFile]) -> Manifest:
        """Return the manifest of the same records in other files, in the order of :attr:`files`."""
        left = iter(files)
        rows, *columns = [each.with_files([next(left) for _ in each.files]) for each in self.sets]
        return replace(self, rows=rows, columns=tuple(columns))

    @cached_property
    def shards_digest(self) -> str:
        """SHA-256 of the rows, without added columns, in hexadecimal."""
        identity = {**self.rows.identity, **({"erased": list(self.erased)} if self.erased else {})}
        return hashlib.sha256(canonical_json(identity)).hexdigest()

    @property
    def merged_spec(self) -> Tree:
        """The spec of elements with the added columns."""
        if not self.columns:
            return self.rows.element_spec
        return merged_spec([each.element_spec for each in self.sets])

    @cached_property
    def whole_digest(self) -> str:
        """SHA-256 of all records with their columns, in hexadecimal."""
        if not self.columns:
            return self.shards_digest
        identity = {"rows": self.shards_digest, "columns": [group.identity for group in self.columns]}
        return hashlib.sha256(canonical_json(identity)).hexdigest()

    @property
    def digest(self) -> str:
        """SHA-256 of the data, in hexadecimal."""
        return self.whole_digest if self.kept is None else self.kept.digest

    def prefix_digest(self, records: int) -> str | None:
        """Return what :attr:`shards_digest` is of the first shards; None if no shard ends after so many records."""
        ends = np.cumsum(self.shards.records)
        last = int(ends.searchsorted(records))
        if last == len(ends) or ends[last] != records:
            return None
        erased = tuple(record for record in self.erased if record < records)
        rows = replace(self.rows, shards=ShardTable(self.shards[: last + 1]))
        return replace(self, rows=rows, erased=erased).shards_digest

    def without_records(
        self, records: Iterable[int], rows: ShardSet, columns: Sequence[ShardSet], reason: str
    ) -> Manifest:
        """Return the manifest that replaces this one after records were erased. It keeps all others.

        Args:
            records: the numbers of the records among those of the shards.
            rows: the same rows, without these records.
            columns: the same columns, without these records.
            reason: why they were erased.
        """
        new = sorted({*records} - {*self.erased})
        before = self.erasures.get("erasures", [])
        left = {file.file for each in (rows, *columns) for file in each.files}
        gone = [file.file for file in self.files if file.file not in left]
        erasures = [*before, {"records": new, "reason": reason, "files": gone}]
        return replace(
            self,
            rows=rows,
            columns=tuple(columns),
            provenance={**self.provenance, "erasures": erasures},
            kept=None,
            erased=tuple(sorted([*self.erased, *new])),
            supersedes=(*self.supersedes, self.shards_digest),
            unerased_nbytes=self.shards.nbytes if self.unerased_nbytes is None else self.unerased_nbytes,
        )

    @property
    def erasures(self) -> dict[str, Any]:
        """What its provenance says of erased records; empty if there are none."""
        return {"erasures": self.provenance["erasures"]} if self.provenance.get("erasures") else {}

    def reason_of(self, record: int) -> str:
        """Return why a record was erased; empty if that is not known."""
        for erasure in self.erasures.get("erasures", []):
            if record in erasure["records"]:
                return str(erasure["reason"])
        return ""

    @property
    def erased_files(self) -> list[str]:
        """The shards that erased records were in, without suffixes, relative to the dataset."""
        return [str(file) for erasure in self.erasures.get("erasures", []) for file in erasure["files"]]

    def as_stored(self) -> Manifest:
        """Return the manifest as it will be read back: JSON has no tuples."""
        return replace(self, provenance=json.loads(json.dumps(self.provenance)), numbers=None)

    def encode(self) -> bytes:
        try:
            json_values.shallow("provenance", self.provenance)
        except ValueError as error:
            raise InvalidArgumentError(f"{error}: pass flatter metadata") from error
        data = {
            "rows": self.rows.to_json(),
            "segments": list(self.segments),
            "kept": None if self.kept is None else json_values.encoded(self.kept),
            "erased": list(self.erased),
            "columns": [group.to_json() for group in self.columns],
        }
        document = {
            "format": FORMAT,
            "data": data,
            "provenance": self.provenance,
            "token": self.token,
            "supersedes": list(self.supersedes),
            "unerased_nbytes": self.unerased_nbytes,
        }
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, raw: bytes, name: str) -> Manifest:
        """Return the manifest in the bytes of ``manifest.json``."""
        with json_values.decoding(name, "manifest"):
            document = json_values.parsed(raw)
            json_values.check_format(document, FORMAT, "manifest")
            data = json_values.mapping("data", document["data"])
            manifest = cls(
                rows=ShardSet.from_json(data["rows"]),
                provenance=_provenance(document["provenance"]),
                token=json_values.text("token", document["token"]),
                segments=json_values.decoded(tuple[Count, ...], "segments", data["segments"]),
                kept=json_values.decoded(Kept | None, "kept", data["kept"]),
                erased=json_values.decoded(tuple[Count, ...], "erased", data["erased"]),
                columns=tuple(map(ShardSet.from_json, json_values.items("columns", data["columns"]))),
                supersedes=json_values.decoded(tuple[Sha256, ...], "supersedes", document["supersedes"]),
                unerased_nbytes=json_values.decoded(Count | None, "unerased_nbytes", document["unerased_nbytes"]),
            )
            records = manifest.rows.records
            if manifest.segments and sum(manifest.segments) != records:
                raise ValueError(f"the segments have {sum(manifest.segments)} records, the shards {records}")
            if manifest.rows.array is not None:
                raise ValueError("the records are no shards")
            if not all(group.spec["kind"] == "dict" for group in manifest.columns):
                raise ValueError("a group of columns is no dict")
            if any(group.records != records for group in manifest.columns):
                raise ValueError(f"added columns do not have {records} rows")
            if list(manifest.erased) != sorted({*manifest.erased}) or max(manifest.erased, default=-1) >= records:
                raise ValueError("the numbers of the erased records do not ascend, or are not those of records")
            if manifest.kept is not None:
                manifest.kept.check(records)
            return manifest


def _provenance(found: Any) -> dict[str, Any]:
    provenance = json_values.mapping("provenance", json_values.shallow("provenance", found))
    for name in ("metadata", "arguments"):
        json_values.mapping(name, provenance.get(name) or {})
    json_values.decoded(tuple[_Erasure, ...], "erasures", provenance.get("erasures") or [])
    return provenance


def canonical_json(value: Any) -> bytes:
    """Return JSON bytes that are the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
