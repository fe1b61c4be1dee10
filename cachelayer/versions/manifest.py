"""Manifests: what a version consists of.

::

    {"format": 1,
     "data": {"rows": ShardSet,            the shards of the records, and the element spec
              "segments": [1000, 24],      records of the first build and of each append
              "kept": KeptRecords,         the records of the shards that the version has; null for all
              "erased": [3, 17],           records of the shards that have 0 bytes now
              "columns": [ShardSet]},      one for each group of columns that were added
     "provenance": {...},                  how the version was made
     "token": "...", "supersedes": [...], "unerased_nbytes": null}

Only ``data`` decides the digest. The digest of the rows is the SHA-256 of the canonical JSON (sorted keys, no spaces,
ASCII) of their identity, and of ``erased`` if records were erased: the same records, cut into shards at the same
places, have the same digest everywhere. A version that keeps some of the records, or has added columns, has a digest of
its own. States of streams hold the digest of the rows, because the order of records depends on nothing else.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np

from cachelayer.errors import InvalidArgumentError
from cachelayer.records.selection import Selection
from cachelayer.specs.tree import Tree
from cachelayer.support import json_values
from cachelayer.support.json_values import Count, Sha256
from cachelayer.support.locks import cached_property
from cachelayer.versions.shard_set import ShardSet, merged_spec
from cachelayer.versions.shard_table import ShardFile, ShardTable

if TYPE_CHECKING:
    from cachelayer.versions.column_file import ColumnFile

FORMAT = 1
_MEMBERS = "format", "data", "provenance", "token", "supersedes", "unerased_nbytes"
_MEMBERS_OF_DATA = "rows", "segments", "kept", "erased", "columns"


@dataclass(frozen=True)
class KeptRecords:
    """The records of the shards that a version has, in the order of the version.

    Their numbers are an arithmetic progression, or are in a file beside the manifest, as little-endian int64.
    """

    records: Count
    """How many records."""
    digest: Sha256
    """The digest of the version, which covers the numbers of these records too."""
    start: Count | None = None
    """The first number of the progression; None if the numbers are in a file."""
    step: Annotated[int, partial(json_values.integer, least=-json_values.MOST)] | None = None
    """The difference between neighbours of the progression; None if the numbers are in a file."""

    @property
    def has_file(self) -> bool:
        return self.start is None

    @property
    def progression(self) -> range | None:
        """The numbers of the progression; None if the numbers are in a file."""
        if self.start is None or self.step is None:
            return None
        return range(self.start, self.start + self.step * self.records, self.step)

    def check(self, shard_records: int, shards_digest: str) -> None:
        """Raise if these cannot be records of shards with so many records and this digest."""
        if (self.start is None) != (self.step is None) or self.records > json_values.MOST // 8:
            raise ValueError("what is kept is no progression, or too much")
        numbers = self.progression
        if numbers is None:
            # Whoever reads the file compares its numbers with the digest.
            return
        if numbers and not 0 <= min(numbers[0], numbers[-1]) <= max(numbers[0], numbers[-1]) < shard_records:
            raise ValueError(f"{numbers} are kept, and the shards hold {shard_records} records")
        if Selection(numbers).digest(shards_digest, shard_records) != self.digest:
            raise ValueError(f"the digest is not that of {numbers}, which are kept")


@dataclass(frozen=True)
class _Erasure:
    """One erasure of records, as the provenance describes it."""

    records: tuple[Count, ...]
    reason: str
    files: tuple[str, ...]


@dataclass(frozen=True)
class Manifest:
    """A manifest: the shards, columns, spec and provenance of one version."""

    rows: ShardSet
    """The records, without added columns."""
    provenance: dict[str, Any] = field(default_factory=dict)
    """How the version was made, as JSON values; not part of the digest."""
    token: str = ""
    """A text that no other manifest has."""
    segments: tuple[int, ...] = ()
    """The number of records of the first build and of each append; empty if none were appended."""
    kept: KeptRecords | None = None
    """The records of the shards that the version has; None for all."""
    erased: tuple[int, ...] = ()
    """The numbers of the erased records among the records of the shards, ascending. Each has 0 bytes now."""
    supersedes: tuple[str, ...] = ()
    """The :attr:`shards_digest` of each version that an erasure replaced with this one; not part of the digest."""
    unerased_nbytes: int | None = None
    """The bytes of the shards without compression, before any record was erased; None if they are those of the shards.

    The default sizes of blocks follow from it. Not part of the digest.
    """
    columns: tuple[ShardSet, ...] = ()
    """The groups of columns that were added, the oldest first."""
    kept_numbers: bytes | None = field(default=None, compare=False, repr=False)
    """The content of the file of :attr:`kept`, until the manifest is published; None if it needs no such file."""

    @property
    def shards(self) -> ShardTable:
        return self.rows.shards

    @property
    def sets(self) -> list[ShardSet]:
        """The rows, then the groups of columns."""
        return [self.rows, *self.columns]

    @property
    def records(self) -> int:
        return self.rows.records if self.kept is None else self.kept.records

    @property
    def nbytes(self) -> int:
        """Bytes of all shards, without indices, and of added columns."""
        return sum(stored.nbytes for stored in self.sets)

    @property
    def plain_nbytes(self) -> int:
        """Bytes of the shards without compression, before any record was erased."""
        return self.shards.nbytes if self.unerased_nbytes is None else self.unerased_nbytes

    @property
    def files(self) -> list[ShardFile | ColumnFile]:
        """All shards and column files."""
        return [file for stored in self.sets for file in stored.files]

    def with_files(self, files: Iterable[ShardFile | ColumnFile]) -> Manifest:
        """Return the manifest of the same records in other files, in the order of :attr:`files`."""
        remaining = iter(files)
        rows, *columns = [stored.with_files([next(remaining) for _ in stored.files]) for stored in self.sets]
        return replace(self, rows=rows, columns=tuple(columns))

    @cached_property
    def shards_digest(self) -> str:
        """SHA-256 of all rows of the shards, without added columns, in hexadecimal."""
        identity = self.rows.identity
        if self.erased:
            identity["erased"] = list(self.erased)
        return hashlib.sha256(canonical_json(identity)).hexdigest()

    @property
    def merged_spec(self) -> Tree:
        """The spec of elements with the added columns."""
        if not self.columns:
            return self.rows.element_spec
        return merged_spec([stored.element_spec for stored in self.sets])

    @cached_property
    def unsliced_digest(self) -> str:
        """SHA-256 of all rows of the shards with the added columns, in hexadecimal."""
        if not self.columns:
            return self.shards_digest
        identity = {"rows": self.shards_digest, "columns": [group.identity for group in self.columns]}
        return hashlib.sha256(canonical_json(identity)).hexdigest()

    @property
    def digest(self) -> str:
        """SHA-256 of the records of the version, in hexadecimal."""
        return self.unsliced_digest if self.kept is None else self.kept.digest

    def prefix_digest(self, records: int) -> str | None:
        """Return the :attr:`shards_digest` of the first records alone; None if no shard ends after so many."""
        ends = np.cumsum(self.shards.records)
        last = int(ends.searchsorted(records))
        if last == len(ends) or ends[last] != records:
            return None
        erased = tuple(record for record in self.erased if record < records)
        rows = replace(self.rows, shards=ShardTable(self.shards[: last + 1]))
        return replace(self, rows=rows, erased=erased).shards_digest

    @property
    def erasures(self) -> list[dict[str, Any]]:
        """The erasures of records, as the provenance describes them."""
        return self.provenance.get("erasures") or []

    def reason_of(self, record: int) -> str:
        """Return why a record was erased; an empty text if that is not known."""
        for erasure in self.erasures:
            if record in erasure["records"]:
                return str(erasure["reason"])
        return ""

    @property
    def erased_files(self) -> list[str]:
        """The files that had erased records, without suffixes, relative to the dataset."""
        return [str(file) for erasure in self.erasures for file in erasure["files"]]

    def as_stored(self) -> Manifest:
        """Return the manifest as it will be read back: JSON has no tuples."""
        return replace(self, provenance=json.loads(json.dumps(self.provenance)), kept_numbers=None)

    def encode(self) -> bytes:
        """Return the bytes of the manifest; raise if it could not be read back: too large, or nested too deep."""
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
        raw = json.dumps(document, separators=(",", ":")).encode()
        if len(raw) > json_values.MOST_NBYTES:
            raise InvalidArgumentError(
                f"the manifest of {len(self.files)} shards has {len(raw)} bytes, and at most {json_values.MOST_NBYTES} "
                "are read back: pass a larger shard_bytes=, or less metadata"
            )
        return raw

    @classmethod
    def decode(cls, raw: bytes, name: str) -> Manifest:
        """Return the manifest in the bytes that :meth:`encode` returned, with its URL for errors."""
        with json_values.decoding(name, "manifest"):
            document = json_values.parsed(raw)
            json_values.check_format(document, FORMAT, "manifest")
            json_values.check_members("manifest", document, _MEMBERS)
            data = json_values.mapping("data", document["data"])
            json_values.check_members("data", data, _MEMBERS_OF_DATA)
            manifest = cls(
                rows=ShardSet.from_json(data["rows"]),
                provenance=_provenance(document["provenance"]),
                token=json_values.text("token", document["token"]),
                segments=json_values.decoded(tuple[Count, ...], "segments", data["segments"]),
                kept=json_values.decoded(KeptRecords | None, "kept", data["kept"]),
                erased=json_values.decoded(tuple[Count, ...], "erased", data["erased"]),
                columns=tuple(map(ShardSet.from_json, json_values.items("columns", data["columns"]))),
                supersedes=json_values.decoded(tuple[Sha256, ...], "supersedes", document["supersedes"]),
                unerased_nbytes=json_values.decoded(Count | None, "unerased_nbytes", document["unerased_nbytes"]),
            )
            manifest._check()
            return manifest

    def _check(self) -> None:
        """Raise if the parts of the manifest contradict each other."""
        records = self.rows.records
        if self.segments and sum(self.segments) != records:
            raise ValueError(f"the segments have {sum(self.segments)} records, the shards {records}")
        if self.rows.array is not None:
            raise ValueError("the records are no shards")
        if not all(group.spec["kind"] == "dict" for group in self.columns):
            raise ValueError("a group of columns is no dict")
        if any(group.records != records for group in self.columns):
            raise ValueError(f"added columns do not have {records} rows")
        if list(self.erased) != sorted({*self.erased}) or max(self.erased, default=-1) >= records:
            raise ValueError("the numbers of the erased records do not ascend, or are not those of records")
        if self.kept is not None:
            self.kept.check(records, self.unsliced_digest)


def _provenance(value: Any) -> dict[str, Any]:
    provenance = json_values.mapping("provenance", json_values.shallow("provenance", value))
    for name in ("metadata", "arguments", "base", "options", "code", "identity"):
        json_values.mapping(name, provenance.get(name) or {})
    # States of a version that was being built hold it in place of a digest.
    json_values.decoded(Sha256 | None, "plan", provenance.get("plan"))
    json_values.decoded(tuple[_Erasure, ...], "erasures", provenance.get("erasures") or [])
    return provenance


def canonical_json(value: Any) -> bytes:
    """Return JSON bytes that are the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
