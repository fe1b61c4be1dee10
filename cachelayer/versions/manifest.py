"""Manifests: what a version consists of.

A manifest is ``{format, data, provenance, token}``. ``data`` holds codec, element spec and a column for each fact about
the shards; ``data`` alone decides the digest. The digest of the shards is the SHA-256 of the canonical JSON (sorted
keys, no spaces, ASCII) of codec, element spec and the columns ``records`` and ``sha256``: the same records, cut into
shards at the same places, have the same digest everywhere. It is also the digest of the version, unless the version
keeps only some of the records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cachelayer import json_values
from cachelayer.errors import CorruptionError, InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.objects import paths
from cachelayer.records import spec_json
from cachelayer.records.tree import Tree
from cachelayer.records.varying_leaves import varying_leaves
from cachelayer.versions.shard_table import ShardTable

FORMAT = 1


@dataclass(frozen=True)
class Kept:
    """The records of its shards that a version keeps, in the order of the version.

    Args:
        records: number of records kept.
        digest: the digest of the version, which covers the numbers of these records too.
        start, step: the first number and the step to each next one, if the numbers form an arithmetic progression.
        file: otherwise the object that holds the numbers as little-endian int64, named relative to the dataset.
    """

    records: int
    digest: str
    start: int = 0
    step: int = 1
    file: str | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any], shard_records: int) -> Kept:
        """Return what :meth:`to_json` wrote, for shards that hold ``shard_records`` records."""
        digest = json_values.sha256("the digest of what is kept", document["digest"])
        if "file" in document:
            records = json_values.whole("the number of records kept", document["records"], most=json_values.MOST // 8)
            file = json_values.text("the file of what is kept", document["file"])
            if file != paths.kept(paths.attempt_of(file)):
                raise ValueError(f"{file[:200]!r} is not the name of a file of record numbers")
            return cls(records, digest, file=file)
        records = json_values.whole("the number of records kept", document["records"], most=shard_records)
        start = json_values.whole("the first record kept", document["start"])
        step = json_values.whole("the step of what is kept", document["step"], -json_values.MOST)
        last = start + step * (records - 1)
        if step == 0 or (records and not 0 <= min(start, last) <= max(start, last) < shard_records):
            raise ValueError(f"records {start} to {last} by {step} are kept, but the shards hold {shard_records}")
        return cls(records, digest, start, step)

    def to_json(self) -> dict[str, Any]:
        where = {"start": self.start, "step": self.step} if self.file is None else {"file": self.file}
        return {"records": self.records, "digest": self.digest, **where}


@dataclass(frozen=True)
class Manifest:
    """What a version consists of.

    Args:
        codec: name of the codec.
        element_spec: the element spec.
        shards: the shards, in the order of their records.
        provenance: how the version was made, as JSON values; not part of the digest.
        token: unique to this manifest.
        segments: if records were appended, the number of records of the first build and of each append.
        kept: the records of the shards that the version keeps; None for all.
    """

    codec: str
    element_spec: Tree
    shards: ShardTable
    provenance: dict[str, Any] = field(default_factory=dict)
    token: str = ""
    segments: tuple[int, ...] = ()
    kept: Kept | None = None

    @cached_property
    def shard_records(self) -> int:
        return int(self.shards.records.sum())

    @property
    def records(self) -> int:
        return self.shard_records if self.kept is None else self.kept.records

    @property
    def nbytes(self) -> int:
        """Bytes of all shards, without indices."""
        return self.shards.nbytes

    @cached_property
    def shards_digest(self) -> str:
        """SHA-256 of the records of all shards, in hexadecimal."""
        identity = {
            "codec": self.codec,
            "element_spec": spec_json.to_json(self.element_spec),
            "records": self.shards.records.tolist(),
            "sha256": self.shards.sha256,
        }
        return hashlib.sha256(canonical_json(identity)).hexdigest()

    @property
    def digest(self) -> str:
        """SHA-256 of the data, in hexadecimal."""
        return self.shards_digest if self.kept is None else self.kept.digest

    @property
    def attempts(self) -> set[str]:
        """The build attempts that wrote its shards and its file of kept record numbers."""
        kept = set() if self.kept is None or self.kept.file is None else {paths.attempt_of(self.kept.file)}
        return self.shards.attempts | kept

    def as_stored(self) -> Manifest:
        """Return the manifest as it will be read back: JSON has neither tuples nor a user's classes."""
        spec = spec_json.from_json(spec_json.to_json(self.element_spec))
        return replace(self, element_spec=spec, provenance=json.loads(json.dumps(self.provenance)))

    def encode(self) -> bytes:
        try:
            json_values.shallow("provenance", self.provenance)
        except ValueError as error:
            raise InvalidArgumentError(f"{error}: pass flatter metadata") from error
        try:
            _check_lengths(self.shards, self.element_spec)
        except ValueError as error:
            raise CorruptionError(f"the notes of the build are damaged: {error}: build with resume=False") from error
        data: dict[str, Any] = {
            "codec": self.codec,
            "element_spec": spec_json.to_json(self.element_spec),
            "shards": self.shards.to_json(),
        }
        if self.segments:
            data["segments"] = list(self.segments)
        if self.kept is not None:
            data["kept"] = self.kept.to_json()
        document = {"format": FORMAT, "data": data, "provenance": self.provenance, "token": self.token}
        return json.dumps(document, separators=(",", ":")).encode()

    @classmethod
    def decode(cls, raw: bytes, name: str) -> Manifest:
        """Return the manifest in the bytes of ``manifest.json``."""
        with json_values.decoding(name, "manifest"):
            document = json_values.parsed(raw)
            json_values.check_format(document, FORMAT, "manifest")
            data = json_values.mapping("data", document["data"])
            shards = ShardTable.from_json(json_values.mapping("shards", data["shards"]))
            records = int(shards.records.sum())
            spec = spec_json.from_json(data["element_spec"])
            _check_lengths(shards, spec)
            return cls(
                codec=json_values.text("codec", data["codec"]),
                element_spec=spec,
                shards=shards,
                provenance=_provenance(document["provenance"]),
                token=json_values.text("token", document["token"]),
                segments=_segments(data.get("segments", []), records),
                kept=Kept.from_json(json_values.mapping("kept", data["kept"]), records) if "kept" in data else None,
            )


@dataclass(frozen=True)
class Composition:
    """A manifest, and the objects that go beside it.

    Args:
        manifest: the manifest.
        objects: bytes by name, relative to the dataset.
    """

    manifest: Manifest
    objects: Mapping[str, bytes]


def _check_lengths(shards: ShardTable, spec: Tree) -> None:
    leaves = len(varying_leaves(spec))
    if len(shards) and leaves != shards.length_leaves:
        raise ValueError(f"lengths of {shards.length_leaves} leaves: {leaves} leaves of the elements vary in length")


def _segments(found: Any, shard_records: int) -> tuple[int, ...]:
    segments = tuple(json_values.whole("a segment", records) for records in json_values.items("segments", found))
    if segments and sum(segments) != shard_records:
        raise ValueError(f"the segments have {sum(segments)} records, the shards {shard_records}")
    return segments


def _provenance(found: Any) -> dict[str, Any]:
    provenance = json_values.mapping("provenance", json_values.shallow("provenance", found))
    for name in ("metadata", "arguments"):
        json_values.mapping(name, provenance.get(name) or {})
    return provenance


def canonical_json(value: Any) -> bytes:
    """Return JSON bytes that are the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
