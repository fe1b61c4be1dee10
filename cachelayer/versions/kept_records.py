"""Records of a slow build that lie in no finished shard yet, so that a kill loses little of them.

::

    <id>/_unfinished/<version>/<attempt>/0000000120-0000000180.kept    records 120 to 179 of the source

Each piece is written whole, once. It begins with a line of JSON, whose SHA-256 covers the records, their numbers, the
attempt, the plan of the build and the element spec. So a piece that was damaged, edited or moved counts as absent.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelayer import json_values
from cachelayer.errors import CorruptionError, FormatError
from cachelayer.objects import paths
from cachelayer.objects.store import ObjectStore
from cachelayer.records.memory import splits_of
from cachelayer.records.record_buffers import PREFIX, Frames
from cachelayer.versions.manifest import canonical_json

_NAME = re.compile(r"([0-9]{10,18})-([0-9]{10,18})[.]kept", re.ASCII)


@dataclass(frozen=True, order=True)
class Piece:
    """The place of some records in their source.

    Args:
        first: the number of the first record.
        stop: the number after that of the last.
    """

    first: int
    stop: int

    @property
    def name(self) -> str:
        """The name of its object."""
        return f"{self.first:010}-{self.stop:010}.kept"


def pieces_in(names: Collection[str]) -> tuple[Piece, ...]:
    """Return the pieces among the objects of an attempt's notes, in order."""
    found = (Piece(int(name[1]), int(name[2])) for name in map(_NAME.fullmatch, names) if name)
    return tuple(sorted(piece for piece in found if piece.first < piece.stop))


@dataclass(frozen=True)
class KeptRecords:
    """The kept records of one attempt.

    Args:
        store: the store.
        dataset_id, version, attempt: the attempt.
        plan: what it builds, and how.
        element_spec: the spec of its elements, as JSON.
    """

    store: ObjectStore
    dataset_id: str
    version: str
    attempt: str
    plan: Mapping[str, Any]
    element_spec: Any

    def put(self, piece: Piece, frames: Sequence[Frames], nullable: Collection[int]) -> None:
        """Write a piece.

        Args:
            piece: the numbers of its records.
            frames: the records, some at a time.
            nullable: the numbers of the leaves that were None in some element up to these.
        """
        # A slice has no bytes around its records.
        body = b"".join(each[0 : len(each)].memory() for each in frames)
        head = {"lengths": [n for each in frames for n in each.lengths.tolist()], "nullable": sorted(nullable)}
        line = canonical_json({**head, "sha256": self._digest(piece, head, body)})
        self.store.put(self._name(piece), line + b"\n" + body)

    def read(self, piece: Piece) -> tuple[Frames, frozenset[int]]:
        """Return the records of a piece, and the leaves that were None in some element up to these.

        Raises:
            CorruptionError, FormatError: if it is missing, or is not what this attempt wrote.
        """
        name = f"{self.store.url}/{self._name(piece)}"
        raw = self.store.read(self._name(piece)) or b""
        with json_values.decoding(name, "piece of kept records"):
            line, _, body = raw.partition(b"\n")
            head = json_values.parsed(line)
            found = head.pop("sha256")
            lengths = [json_values.whole("a length", each) for each in json_values.items("lengths", head["lengths"])]
            if len(lengths) != piece.stop - piece.first or sum(lengths) + PREFIX * len(lengths) != len(body):
                raise ValueError(f"it does not hold records {piece.first} to {piece.stop - 1}")
            if found != self._digest(piece, head, body):
                raise ValueError("it does not match its checksum")
            nullable = frozenset(json_values.whole("a leaf", each) for each in head["nullable"])
        sizes = np.array(lengths, np.int64)
        starts = splits_of(sizes + PREFIX)[:-1] + PREFIX
        return Frames(np.frombuffer(body, np.uint8), starts, sizes), nullable

    def take(self, piece: Piece, other: KeptRecords) -> bool:
        """Copy a piece of another attempt; return False if it is not what that attempt wrote."""
        try:
            frames, nullable = other.read(piece)
        except (CorruptionError, FormatError):
            return False
        self.put(piece, [frames], nullable)
        return True

    def delete(self, piece: Piece) -> None:
        """Delete a piece."""
        self.store.delete(self._name(piece))

    def _name(self, piece: Piece) -> str:
        return f"{paths.unfinished(self.dataset_id, self.version)}/{self.attempt}/{piece.name}"

    def _digest(self, piece: Piece, head: Mapping[str, Any], body: bytes) -> str:
        of = [self.dataset_id, self.version, self.attempt, self.plan, self.element_spec, piece.first, piece.stop, head]
        digest = hashlib.sha256(canonical_json(of) + b"\n")
        digest.update(body)
        return digest.hexdigest()
