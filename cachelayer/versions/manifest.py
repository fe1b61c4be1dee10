"""Manifests: what a version consists of.

A manifest is ``{format, data, provenance, token}``. ``data`` holds codec, element spec and a column for each fact about
the shards; ``data`` alone decides the digest. The digest of the shards is the SHA-256 of the canonical JSON (sorted
keys, no spaces, ASCII) of codec, element spec and the columns ``records`` and ``sha256``: the same records in the same
shard cuts have it anywhere. It is the version's, unless the version keeps only some of the records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cachelayer.elements import spec_json
from cachelayer.elements.tree import Tree
from cachelayer.errors import CorruptionError, FormatError
from cachelayer.objects import paths
from cachelayer.versions.shard_table import ShardTable

FORMAT = 1


@dataclass(frozen=True)
class Kept:
    """Which of the records of its shards a version has, in its order.

    Args:
        records: how many.
        digest: the version's digest, which is over the numbers of these records too.
        start, step: the first number, and from each to the next, where they form an arithmetic progression.
        file: otherwise the object of their numbers, little-endian int64; its name relative to the dataset.
    """

    records: int
    digest: str
    start: int = 0
    step: int = 1
    file: str | None = None

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Kept:
        """What :meth:`to_json` gave.

        Raises:
            ValueError, KeyError, TypeError: where it is something else.
        """
        if "file" in document:
            return cls(int(document["records"]), str(document["digest"]), file=str(document["file"]))
        return cls(int(document["records"]), str(document["digest"]), int(document["start"]), int(document["step"]))

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
        provenance: how the version came to be; JSON values. No part of the digest.
        token: unique to this manifest.
        segments: where records were appended, how many the shards held at first and how many came each time.
        kept: which records of the shards the version has; None for all.
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
        """Number of records in all shards."""
        return int(self.shards.records.sum())

    @property
    def records(self) -> int:
        """Number of records."""
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
        """The build attempts that wrote its files, but for its own."""
        kept = set() if self.kept is None or self.kept.file is None else {paths.attempt_of(self.kept.file)}
        return self.shards.attempts | kept

    def encode(self) -> bytes:
        """The bytes of ``manifest.json``."""
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
        """The manifest of the bytes of ``manifest.json``.

        Raises:
            FormatError: where it was written by a newer release.
            CorruptionError: where it is cut short or not a manifest.
        """
        try:
            document = json.loads(raw)
            version = document["format"]
            if isinstance(version, int) and version > FORMAT:
                raise FormatError(f"manifest of format {version}; this release reads up to {FORMAT}: update cachelayer")
            data = document["data"]
            manifest = cls(
                codec=data["codec"],
                element_spec=spec_json.from_json(data["element_spec"]),
                shards=ShardTable.from_json(data["shards"]),
                provenance=document["provenance"],
                token=document["token"],
                segments=tuple(int(records) for records in data.get("segments", ())),
                kept=Kept.from_json(data["kept"]) if "kept" in data else None,
            )
            if manifest.segments and sum(manifest.segments) != manifest.shard_records:
                raise ValueError(f"segments of {sum(manifest.segments)} records, shards of {manifest.shard_records}")
        except FormatError as error:
            raise FormatError(f"{name}: {error}") from error
        except (ValueError, KeyError, TypeError, IndexError, OverflowError, RecursionError) as error:
            raise CorruptionError(f"{name}: not a whole manifest: {error!r}") from error
        return manifest


def canonical_json(value: Any) -> bytes:
    """JSON that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()
