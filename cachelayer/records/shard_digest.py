"""The digest of a shard: SHA-256 over its records, each after its length as a little-endian uint64."""

from __future__ import annotations

import hashlib

from cachelayer.records.record_buffers import Frames


class ShardDigest:
    """The digest of the records that were added so far, in order."""

    def __init__(self) -> None:
        self._sha256 = hashlib.sha256()

    def add(self, frames: Frames) -> None:
        """Add encoded records; their frames have the form that is hashed."""
        self._sha256.update(frames.memory())

    def hexdigest(self) -> str:
        return self._sha256.hexdigest()
