"""The origins of a dataset that is made of others: of some rows of one, of several, or of rows made of its records."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cachelayer.errors import InvalidTypeError
from cachelayer.protocols import Digests, Origins, ShardRows
from cachelayer.records.selection import Selection
from cachelayer.support.memory import Ints, by_part, splits_of
from cachelayer.versions.manifest import canonical_json


def derived_digest(digest: str, name: str, parameters: Mapping[str, Any]) -> str:
    """Return SHA-256 over a name, the digest of records (32 bytes), and the canonical JSON of parameters.

    It is the digest of what the name calls, such as windows, made of these records with these parameters.
    """
    return hashlib.sha256(name.encode() + bytes.fromhex(digest) + canonical_json(parameters)).hexdigest()


def selected_origins(origins: Origins, selection: Selection) -> Origins:
    """Return the origins of some rows."""
    records = sum(origins.segments)
    segments = selection.segment_sizes(origins.segments)

    def earlier(count: int) -> str | None:
        # A selection that mixes the segments is one segment: none of theirs comes first in it.
        digest = origins.earlier_digest(count) if len(segments) == len(origins.segments) else None
        if digest is None:
            return None
        return selection.slice(slice(sum(segments[:count]))).digest(digest, sum(origins.segments[:count]))

    return Origins(
        digests=origins.digests.derived(lambda digest: selection.digest(digest, records)),
        segments=segments,
        references=origins.references,
        home=origins.home,
        erased=selection.rows_of(origins.erased),
        earlier=earlier,
        placed=lambda numbers: origins.in_shards(selection.numbers_of(numbers)),
    )


def joined_origins(every: Sequence[Origins]) -> Origins:
    """Return the origins of rows one after another."""
    splits = splits_of(np.array([sum(origins.segments) for origins in every], np.int64))
    erased = [origins.erased + first for origins, first in zip(every, splits[:-1].tolist(), strict=True)]
    return Origins(
        digests=_joined_digests([origins.digests for origins in every]),
        segments=tuple(size for origins in every for size in origins.segments),
        references=tuple(dict.fromkeys(reference for origins in every for reference in origins.references)),
        home=every[0].home if all(origins.home is not None for origins in every) else None,
        erased=np.concatenate(erased),
        earlier=partial(_earlier_of_joined, every),
        placed=partial(_placed_of_joined, every, splits),
    )


def _joined_digests(digests: Sequence[Digests]) -> Digests:
    """Return the digests of the only part; of several, of ``concat`` and the digests of all."""
    return digests[0] if len(digests) == 1 else Digests.joined(b"concat", digests)


def _earlier_of_joined(every: Sequence[Origins], count_of_segments: int) -> str | None:
    digests: list[Digests] = []
    for origins in every:
        count = len(origins.segments)
        digest = origins.digests.rows if count_of_segments >= count else origins.earlier_digest(count_of_segments)
        if digest is None:
            return None
        digests.append(Digests.of(digest))
        count_of_segments -= count
        if count_of_segments <= 0:
            break
    return _joined_digests(digests).rows


def _placed_of_joined(every: Sequence[Origins], splits: Ints, numbers: Ints) -> Iterator[ShardRows]:
    for part, rows, own in by_part(splits, numbers):
        for places, segments, there in every[part].in_shards(own):
            yield ShardRows(rows[places], segments, there)


def digests_of_rows(
    elements: str, rows: str, kind: str, parameters: Mapping[str, Any], others: Mapping[str, Any]
) -> Digests:
    """Return the digests of rows that are made of values of records.

    ``rows`` is the digest of what decides, with the ``parameters``, which values of which records a row has; the
    ``others`` decide what else rows have.
    """
    digest = derived_digest(rows, kind, parameters)
    # After an erasure rows may have other numbers.
    return Digests.of(digest)._replace(elements=derived_digest(elements, kind, {**parameters, **others}))


def origins_of_rows(records_origins: Origins, title: str, kind: str, **own: Any) -> Origins:
    """Return the origins of rows that are made of values of records, such as windows.

    ``own`` are the digests and segments of the rows, and their digests before later segments were appended.
    """

    def refuse(numbers: Ints) -> Iterator[ShardRows]:  # noqa: ARG001
        raise InvalidTypeError(
            f"{title}: its elements share records, which a split or a fold would put into several parts: split "
            f"the records first, and call {kind}() of each part, such as ref.split(..., seed=0)['train']"
            f".{kind}(...)"
        )

    return Origins(references=records_origins.references, placed=refuse, **own)


def of_other_rows(origins: Origins, digests: Digests) -> Origins:
    """Return the origins of rows that have other digests, also before records were appended."""
    return replace(origins, digests=digests, earlier=None)
