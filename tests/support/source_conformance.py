"""What every source that an adapter takes is held to: subclass it, say how to make a source and what is in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cachelayer import Ragged, Storage
from cachelayer.builds.as_source import as_source
from cachelayer.builds.batches import Batch, ElementBatch, RowBatch
from cachelayer.builds.source import Source
from cachelayer.errors import SourceError
from cachelayer.records import tree
from cachelayer.records.codec import codec_for
from cachelayer.records.infer import infer_spec
from cachelayer.records.tree import Tree


def same(mine: Any, theirs: Any) -> bool:
    """Return whether two leaves have the same values and types; None equals None."""
    if mine is None or theirs is None:
        return mine is theirs
    if isinstance(theirs, (str, bytes)):
        return type(mine) is type(theirs) and bool(mine == theirs)
    if isinstance(theirs, Ragged):
        left, right = _arrays_of(mine), _arrays_of(theirs)
        return len(left) == len(right) and all(map(same, left, right))
    left, right = np.asarray(mine), np.asarray(theirs)
    if left.dtype != right.dtype or left.shape != right.shape:
        return False
    return bool(np.array_equal(left, right, equal_nan=left.dtype.kind in "fc"))


def _arrays_of(value: Any) -> list[Any]:
    return [value.flat_values, *value.nested_row_splits] if isinstance(value, Ragged) else []


def assert_seeks(source: Source, spec: Tree | None = None) -> None:
    """Raise unless a source that is read from any of its starts yields what the whole of it yields from there on.

    Args:
        source: a source of 50 elements or more.
        spec: the spec of its elements, if neither the source nor its first elements show it.
    """
    assert source.starts is not None
    spec = spec or spec_of(source)
    records = records_of(source, spec)
    assert len(records) == source.length
    for start in {source.starts[place] for place in (0, 1, len(source.starts) // 2, -1) if place < len(source.starts)}:
        assert records_of(source, spec, start) == records[start:]
        assert records_of(source, spec, start, start + 19) == records[start : start + 19]


def noted(source: Source, fails_after: tuple[int, ...] = ()) -> tuple[Source, list[int]]:
    """Return a source that notes how many elements it gave, and may fail; and the note.

    Args:
        source: the source.
        fails_after: how many it gives before it fails, once; empty for never.
    """
    given, fails = [0], [*fails_after]

    def read(start: int, stop: int | None) -> Iterator[Batch]:
        for batch in source.batches(start, stop):
            if fails and given[0] >= fails[0]:
                fails.pop()
                raise SourceError("the source went away")
            yield batch
            given[0] += len(batch)

    # A source that is made anew has files that were written anew.
    return replace(source, read=read, elements=None, files=list), given


def assert_resumes(make: Callable[[], Any], folder: Path, records: int, shard_bytes: int) -> None:
    """Raise unless a failed build resumes without the whole source, and makes the version of a single run.

    Args:
        make: makes a new source whose elements take eight shards or more.
        records: number of elements.
    """
    options: Any = {"shard_bytes": shard_bytes, "on_change": "ignore"}
    whole = Storage(folder / "whole").cache(noted(as_source(make()))[0], "d", "v1", **options)
    assert len(whole._base.version.manifest.shards) >= 8
    storage = Storage(folder / "resumed")
    with pytest.raises(SourceError, match="went away"):
        storage.cache(noted(as_source(make()), (records // 2,))[0], "d", "v1", **options)
    source, given = noted(as_source(make()))
    ref = storage.cache(source, "d", "v1", **options)
    assert ref.digest == whole.digest
    assert given[0] < records - shard_bytes * records // (2 * whole.nbytes)
    assert storage.verify("d", "v1", progress=False)


def spec_of(source: Source) -> Tree:
    """Return the spec of a source, or else of its first elements."""
    if source.element_spec is not None:
        return source.element_spec
    first = next(source.batches())
    first = first.elements() if isinstance(first, RowBatch) else first
    assert isinstance(first, ElementBatch)
    return infer_spec(first.items)


def records_of(source: Source, spec: Tree, start: int = 0, stop: int | None = None) -> list[bytes]:
    """Return the records of the elements of a source, or of some of them."""
    codec = codec_for(spec)
    found = []
    for batch in source.batches(start, stop):
        frames = codec.encode(batch.columns(codec), len(batch))
        places = zip(frames.starts.tolist(), frames.lengths.tolist(), strict=True)
        found += [frames.buffer[start : start + length].tobytes() for start, length in places]
    return found


class SourceConformance:
    """Values, types, order and length of a source survive its cache."""

    options: ClassVar[dict[str, Any]] = {}
    """Options of ``submit`` that the source needs."""
    seeks: ClassVar[bool] = True
    """Whether it can be read again and again, from some records."""

    def source(self, count: int, folder: Path) -> Any:
        """Return a source of ``count`` elements, which may write files into the folder."""
        raise NotImplementedError

    def element(self, number: int) -> Any:
        """Return element ``number`` as it must be read: numpy arrays and scalars, str, bytes, None."""
        raise NotImplementedError

    @pytest.mark.parametrize("count", [1, 1100])
    def test_values_types_order_and_length_are_those_of_the_source(self, tmp_path: Path, count: int) -> None:
        ref = Storage(tmp_path / "cache").cache(self.source(count, tmp_path), "d", "v1", **self.options)
        assert len(ref) == count
        for number, element in enumerate(ref.stream()):
            mine, theirs = tree.leaf_values(element), tree.leaf_values(self.element(number))
            assert [path for path, _ in mine] == [path for path, _ in theirs]
            for (path, value), (_, expected) in zip(mine, theirs, strict=True):
                assert same(value, expected), f"element {number}, leaf {path}: {value!r} instead of {expected!r}"

    def test_the_same_source_gives_the_same_digest(self, tmp_path: Path) -> None:
        digests = set()
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            ref = Storage(tmp_path / name / "cache").cache(self.source(50, tmp_path / name), "d", "v1", **self.options)
            digests.add(ref.digest)
        assert len(digests) == 1

    def test_no_more_than_max_records_are_taken(self, tmp_path: Path) -> None:
        ref = Storage(tmp_path / "cache").cache(self.source(60, tmp_path), "d", "v1", max_records=41, **self.options)
        assert len(ref) == 41

    def test_it_is_read_from_any_of_its_starts_if_it_has_some(self, tmp_path: Path) -> None:
        source = as_source(self.source(100, tmp_path), **self.options)
        assert (source.starts is not None) == self.seeks
        if self.seeks:
            assert_seeks(source, self.options.get("element_spec"))


class FallibleSource(SourceConformance):
    """A source of which element 17 raises ``error``, if there is one: it is named, whatever it is, and is no end."""

    error: Exception | None = None
    named: ClassVar[str] = "17"
    """How the error names the element, or the first of its batch."""
    errors: ClassVar[list[Exception]] = [ValueError("no such element"), IndexError(), StopIteration()]

    def test_an_element_that_fails_is_named_and_is_no_end(self, tmp_path: Path) -> None:
        for error in self.errors:
            self.error = error
            with pytest.raises(SourceError, match=self.named):
                Storage(tmp_path / "cache").cache(self.source(40, tmp_path), "d", "v1", **self.options)
        assert Storage(tmp_path / "cache").datasets() == []
