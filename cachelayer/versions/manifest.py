"""What a version consists of: its codec, element spec and shards, in columns.

::

    {"format": 1,
     "data": {"codec": "typed/1", "element_spec": {...},
              "shards": {"files": [[attempt, first number, count], ...], "records": [...], "bytes": [...],
                         "crc32c": [...], "sha256": [...], "index_bytes": [...], "index_crc32c": [...]}},
     "provenance": {...}, "token": "..."}

The digest of a version is the SHA-256 of the canonical JSON (sorted keys, no spaces, ASCII) of codec, element spec and
the columns ``records`` and ``sha256``: the same records in the same shard cuts have it anywhere.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from cachelayer.arrayrecord.writer import ShardStats
from cachelayer.elements import spec_json
from cachelayer.elements.tree import Tree
from cachelayer.errors import CorruptionError, FormatError
from cachelayer.objects import paths

FORMAT = 1
_COLUMNS = {
    "records": "records",
    "bytes": "nbytes",
    "crc32c": "crc32c",
    "sha256": "sha256",
    "index_bytes": "index_nbytes",
    "index_crc32c": "index_crc32c",
}


@dataclass(frozen=True)
class ShardFile:
    """A shard and where it lies.

    Args:
        attempt: the build attempt that wrote it.
        number: its number within the attempt.
        stats: what it holds.
    """

    attempt: str
    number: int
    stats: ShardStats

    @property
    def name(self) -> str:
        """Its name, relative to the dataset."""
        return paths.shard(self.attempt, self.number)


@dataclass(frozen=True)
class Manifest:
    """What a version consists of.

    Args:
        codec: name of the codec.
        element_spec: the element spec.
        shards: the shards, in the order of their records.
        provenance: how the version came to be; JSON values. No part of the digest.
        token: unique to this manifest.
    """

    codec: str
    element_spec: Tree
    shards: Sequence[ShardFile]
    provenance: dict[str, Any] = field(default_factory=dict)
    token: str = ""

    @property
    def records(self) -> int:
        """Number of records."""
        return sum(shard.stats.records for shard in self.shards)

    @property
    def nbytes(self) -> int:
        """Bytes of all shards, without indices."""
        return sum(shard.stats.nbytes for shard in self.shards)

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the data, in hexadecimal."""
        identity = {
            "codec": self.codec,
            "element_spec": spec_json.to_json(self.element_spec),
            "records": [shard.stats.records for shard in self.shards],
            "sha256": [shard.stats.sha256 for shard in self.shards],
        }
        return hashlib.sha256(canonical_json(identity)).hexdigest()

    def encode(self) -> bytes:
        """The bytes of ``manifest.json``."""
        columns: dict[str, Any] = {"files": _runs(self.shards)}
        for name, attribute in _COLUMNS.items():
            columns[name] = [getattr(shard.stats, attribute) for shard in self.shards]
        data = {"codec": self.codec, "element_spec": spec_json.to_json(self.element_spec), "shards": columns}
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
            columns = data["shards"]
            files = ((run[0], run[1] + offset) for run in columns["files"] for offset in range(run[2]))
            stats = [ShardStats(*row) for row in zip(*(columns[column] for column in _COLUMNS), strict=True)]
            shards = [ShardFile(*file, stat) for file, stat in zip(files, stats, strict=True)]
            spec = spec_json.from_json(data["element_spec"])
            return cls(data["codec"], spec, shards, document["provenance"], document["token"])
        except FormatError as error:
            raise FormatError(f"{name}: {error}") from error
        except (ValueError, KeyError, TypeError, IndexError, RecursionError) as error:
            raise CorruptionError(f"{name}: not a whole manifest: {error!r}") from error


def canonical_json(value: Any) -> bytes:
    """JSON that is the same for equal values."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False).encode()


def _runs(shards: Sequence[ShardFile]) -> list[list[Any]]:
    runs: list[list[Any]] = []
    for shard in shards:
        if runs and runs[-1][0] == shard.attempt and runs[-1][1] + runs[-1][2] == shard.number:
            runs[-1][2] += 1
        else:
            runs.append([shard.attempt, shard.number, 1])
    return runs
