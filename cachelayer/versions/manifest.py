"""Manifests: what a version consists of.

A manifest is ``{format, data, provenance, token}``. ``data`` holds codec, element spec and a column for each fact about
the shards; ``data`` alone decides the digest. The digest of the shards is the SHA-256 of the canonical JSON (sorted
keys, no spaces, ASCII) of codec, element spec, the columns ``records`` and ``sha256``, and ``erased`` if records were
erased: the same records, cut into shards at the same places, have the same digest everywhere. It is also the digest of
the version, unless the version keeps only some of the records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

from cachelayer import json_values
from cachelayer.errors import CorruptionError, InvalidArgumentError
from cachelayer.locks import cached_property
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
        start, step: the first number and the step to each next one, if the numbers form an arithmetic progression;
            else None, and a file beside the manifest holds the numbers as little-endian int64.
    """

    records: int
    digest: str
    start: int | None = None
    step: int | None = None

    @property
    def has_file(self) -> bool:
        return self.start is None

    @classmethod
    def from_json(cls, document: Mapping[str, Any], shard_records: int) -> Kept:
        """Return what :meth:`to_json` wrote, for shards that hold ``shard_records`` records."""
        digest = json_values.sha256("the digest of what is kept", document["digest"])
        if "start" not in document:
            records = json_values.whole("the number of records kept", document["records"], most=json_values.MOST // 8)
            return cls(records, digest)
        records = json_values.whole("the number of records kept", document["records"], most=shard_records)
        start = json_values.whole("the first record kept", document["start"])
        step = json_values.whole("the step of what is kept", document["step"], -json_values.MOST)
        last = start + step * (records - 1)
        if step == 0 or (records and not 0 <= min(start, last) <= max(start, last) < shard_records):
            raise ValueError(f"records {start} to {last} by {step} are kept, but the shards hold {shard_records}")
        return cls(records, digest, start, step)

    def to_json(self) -> dict[str, Any]:
        where = {} if self.has_file else {"start": self.start, "step": self.step}
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
        erased: the numbers of the erased records among those of the shards, ascending: each is a record of 0 bytes.
        supersedes: the digests of the shards of the versions that this one replaces, because records were erased, the
            oldest first; not part of the digest.
        unerased_nbytes: the bytes of the shards before any record was erased, from which sizes of blocks follow; not
            part of the digest. None if none was.
    """

    codec: str
    element_spec: Tree
    shards: ShardTable
    provenance: dict[str, Any] = field(default_factory=dict)
    token: str = ""
    segments: tuple[int, ...] = ()
    kept: Kept | None = None
    erased: tuple[int, ...] = ()
    supersedes: tuple[str, ...] = ()
    unerased_nbytes: int | None = None

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
            **({"erased": list(self.erased)} if self.erased else {}),
        }
        return hashlib.sha256(canonical_json(identity)).hexdigest()

    @property
    def digest(self) -> str:
        """SHA-256 of the data, in hexadecimal."""
        return self.shards_digest if self.kept is None else self.kept.digest

    def without_records(self, records: Iterable[int], shards: ShardTable, reason: str) -> Manifest:
        """Return the manifest that replaces this one after records were erased. It keeps all others.

        Args:
            records: the numbers of the records among those of the shards.
            shards: the same shards, those that held one of these written anew.
            reason: why they were erased.
        """
        new = sorted({*records} - {*self.erased})
        before = self.erasures.get("erasures", [])
        gone = [shard.file for shard, left in zip(self.shards, shards, strict=True) if shard.file != left.file]
        erasures = [*before, {"records": new, "reason": reason, "files": gone}]
        return replace(
            self,
            shards=shards,
            provenance={**self.provenance, "erasures": erasures},
            kept=None,
            erased=tuple(sorted([*self.erased, *new])),
            supersedes=(*self.supersedes, self.shards_digest),
            unerased_nbytes=self.nbytes if self.unerased_nbytes is None else self.unerased_nbytes,
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
    def gone(self) -> list[str]:
        """The shards that erased records were in, without suffixes, relative to the dataset."""
        return [str(file) for erasure in self.erasures.get("erasures", []) for file in erasure["files"]]

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
        if self.erased:
            data["erased"] = list(self.erased)
        if self.supersedes:
            document["supersedes"] = list(self.supersedes)
        if self.unerased_nbytes is not None:
            document["unerased_nbytes"] = self.unerased_nbytes
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
                erased=_erased(data.get("erased", []), records),
                supersedes=tuple(
                    json_values.sha256("a digest that is superseded", digest)
                    for digest in json_values.items("supersedes", document.get("supersedes", []))
                ),
                unerased_nbytes=_nbytes(document.get("unerased_nbytes")),
            )


def _check_lengths(shards: ShardTable, spec: Tree) -> None:
    leaves = len(varying_leaves(spec))
    if len(shards) and leaves != shards.length_leaves:
        raise ValueError(f"lengths of {shards.length_leaves} leaves: {leaves} leaves of the elements vary in length")


def _segments(found: Any, shard_records: int) -> tuple[int, ...]:
    segments = tuple(json_values.whole("a segment", records) for records in json_values.items("segments", found))
    if segments and sum(segments) != shard_records:
        raise ValueError(f"the segments have {sum(segments)} records, the shards {shard_records}")
    return segments


def _erased(found: Any, shard_records: int) -> tuple[int, ...]:
    numbers = json_values.items("erased", found)
    erased = tuple(json_values.whole("an erased record", each, most=shard_records - 1) for each in numbers)
    if any(later <= number for number, later in pairwise(erased)):
        raise ValueError("the numbers of the erased records do not ascend")
    return erased


def _nbytes(found: Any) -> int | None:
    return None if found is None else json_values.whole("the bytes before records were erased", found)


def _provenance(found: Any) -> dict[str, Any]:
    provenance = json_values.mapping("provenance", json_values.shallow("provenance", found))
    for name in ("metadata", "arguments"):
        json_values.mapping(name, provenance.get(name) or {})
    for erasure in json_values.items("erasures", provenance.get("erasures") or []):
        json_values.items("erased records", json_values.mapping("an erasure", erasure)["records"])
        json_values.text("the reason of an erasure", erasure["reason"])
        json_values.items("the files of an erasure", erasure["files"])
    return provenance


def canonical_json(value: Any) -> bytes:
    """Return JSON bytes that are the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
