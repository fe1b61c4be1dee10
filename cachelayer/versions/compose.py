"""What a version that shares shards with another consists of: records put behind its own, or some of them alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from cachelayer.access.dataref import DataRef
from cachelayer.access.published import Published
from cachelayer.errors import InvalidArgumentError
from cachelayer.objects import paths
from cachelayer.records import tree
from cachelayer.records.common_spec import common_spec
from cachelayer.records.selection import Selection
from cachelayer.records.spec import ArraySpec, EncodedSpec, LeafSpec
from cachelayer.records.tree import Tree
from cachelayer.versions.manifest import Kept, Manifest


@dataclass(frozen=True)
class Composition:
    """A manifest, and the objects beside it.

    Args:
        manifest: the manifest.
        objects: bytes by name, relative to the dataset.
    """

    manifest: Manifest
    objects: Mapping[str, bytes]


def appended(base: Published, added: Manifest, attempt: str) -> Composition:
    """The records of a version and behind them those of a manifest of the same spec.

    Raises:
        InvalidArgumentError: where the specs differ by more than by leaves that may be None.
    """
    before = base.manifest
    if before.records == 0 and before.kept is None:
        return Composition(replace(added, segments=()), {})
    spec = common_spec([(base.name, before.element_spec), ("what is appended", added.element_spec)])
    if before.codec != added.codec:
        raise InvalidArgumentError(f"{base.name} has records of codec {before.codec}, not {added.codec}")
    came = (added.records,) if added.records else ()
    whole = replace(
        added,
        element_spec=spec,
        shards=before.shards.then(added.shards),
        segments=(*base.segments, *came) if came else before.segments,
    )
    if before.kept is None:
        return Composition(whole, {})
    more = np.arange(before.shard_records, whole.shard_records)
    return _keeping(whole, Selection(np.concatenate([*base.kept.pieces(), more])), attempt)


def subset(base: Published, kept: Selection, attempt: str, provenance: dict[str, Any], token: str) -> Composition:
    """Some of the records of the shards of a version.

    Args:
        base: the version.
        kept: the records, as their numbers in its shards.
        attempt: the build attempt that writes the manifest.
        provenance, token: of the manifest.
    """
    return _keeping(replace(base.manifest, provenance=provenance, token=token, kept=None), kept, attempt)


def _keeping(whole: Manifest, kept: Selection, attempt: str) -> Composition:
    digest = kept.digest(whole.shards_digest, whole.shard_records)
    progression = kept.progression()
    if progression == (0, 1, whole.shard_records):
        return Composition(whole, {})
    if progression is not None and progression[1] != 0:
        start, step, records = progression
        return Composition(replace(whole, kept=Kept(records, digest, start, step)), {})
    name = paths.kept(attempt)
    objects = {name: b"".join(piece.astype("<i8").tobytes() for piece in kept.pieces())}
    return Composition(replace(whole, kept=Kept(len(kept), digest, file=name)), objects)


def chosen(base: DataRef[Any], keep: Any) -> Selection:
    """Return the records of a version that a slice, a mask or their indices tell, as their numbers in its shards.

    Raises:
        RecordIndexError: if there is no such record.
        InvalidArgumentError, InvalidTypeError: if it is nothing of that, or a mask of another length.
    """
    return base._selection.select(keep)


def check_fits(name: str, spec: Tree, added: Tree | None) -> None:
    """Whether a source of this spec can be appended to a version of that.

    Args:
        name: the version.
        spec: its spec; a dimension that is None takes any.
        added: the source's own spec; None where it declares none.

    Raises:
        InvalidArgumentError: with each leaf that differs.
    """
    differences = [] if added is None else _differences(dict(tree.leaves(spec)), dict(tree.leaves(added)))
    if differences:
        raise InvalidArgumentError(
            f"this source cannot be appended to {name}, whose elements are otherwise: {'; '.join(differences)}. "
            "Convert its elements, or build a new dataset of all"
        )


def _differences(ours: Mapping[str, LeafSpec], theirs: Mapping[str, LeafSpec]) -> list[str]:
    gone = [f"{_leaf(path)} is missing" for path in ours if path not in theirs]
    new = [f"{_leaf(path)} is {leaf!r} and not in the version" for path, leaf in theirs.items() if path not in ours]
    changed = [
        f"{_leaf(path)} is {theirs[path]!r}, in the version {leaf!r}"
        for path, leaf in ours.items()
        if path in theirs and not _fits(leaf, theirs[path])
    ]
    return [*gone, *new, *changed]


def _leaf(path: str) -> str:
    return f"leaf {path}" if path else "the element"


def _fits(ours: LeafSpec, theirs: LeafSpec) -> bool:
    """Whether elements of their spec are stored under ours; a dimension that they do not know shows in each element."""
    if isinstance(ours, EncodedSpec) and isinstance(theirs, ArraySpec):
        return theirs.dtype is bytes
    if type(ours) is not type(theirs) or len(ours.shape) != len(theirs.shape):
        return False
    if isinstance(ours, EncodedSpec):
        return ours.as_nullable() == theirs.as_nullable()
    dims = zip(ours.shape, theirs.shape, strict=True)
    return all(mine is None or dim is None or mine == dim for mine, dim in dims) and ours == replace(
        theirs, shape=ours.shape, nullable=ours.nullable
    )
