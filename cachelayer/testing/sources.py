"""What every source promises: its elements are cached as they are, and named if they fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from cachelayer import Ragged, Storage
from cachelayer.builds.as_source import as_source
from cachelayer.builds.batches import ElementBatch, RowBatch
from cachelayer.builds.source import Source
from cachelayer.builds.source_records import SourceRecords
from cachelayer.errors import SourceError
from cachelayer.records.codec import codec_for
from cachelayer.records.infer import infer_spec
from cachelayer.specs import tree
from cachelayer.specs.tree import Tree


def _assert_same(mine: Any, theirs: Any, place: str) -> None:
    """Raise unless two leaves have the same values and types."""
    if theirs is None or isinstance(theirs, (str, bytes)):
        assert (type(mine), mine) == (type(theirs), theirs), place
    elif isinstance(theirs, Ragged):
        for part, expected in zip(mine.nested_row_splits, theirs.nested_row_splits, strict=True):
            np.testing.assert_array_equal(part, expected, place, strict=True)
        np.testing.assert_array_equal(mine.flat_values, theirs.flat_values, place, strict=True)
    else:
        np.testing.assert_array_equal(mine, theirs, place, strict=True)


def _assert_seeks(source: Source, spec: Tree | None = None) -> None:
    """Raise unless a source of 50 elements or more yields from each of its starts what the whole of it yields there."""
    assert source.starts is not None
    spec = spec or spec_of(source)
    records = records_of(source, spec)
    assert len(records) == source.length
    for start in {source.starts[place] for place in (0, 1, len(source.starts) // 2, -1) if place < len(source.starts)}:
        assert records_of(source, spec, start) == records[start:]
        assert records_of(source, spec, start, start + 19) == records[start : start + 19]
    # By number, as they are read while a version is built.
    numbers = np.random.default_rng(0).permutation(len(records))[:40]
    by_number, _ = SourceRecords(source, len(records), spec)(numbers)
    assert by_number.to_list() == [records[number] for number in numbers]


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
    records = []
    for batch in source.batches(start, stop):
        frames = codec.encode(batch.columns(codec))
        places = zip(frames.starts.tolist(), frames.lengths.tolist(), strict=True)
        records += [frames.buffer[start : start + length].tobytes() for start, length in places]
    return records


class SourceTests:
    """A source: the values, types, order and number of its elements are those that are read from the cache.

    Examples:
        Subclass it in a file of tests: say how to make a source of some elements, and what each element is.

        >>> import numpy as np
        >>> from cachelayer.testing import SourceTests
        >>> class TestSquares(SourceTests):
        ...     def source(self, count, folder):
        ...         return [{"square": number**2} for number in range(count)]
        ...
        ...     def element(self, number):
        ...         return {"square": np.int64(number**2)}
        >>> TestSquares().test_values_types_order_and_length_are_those_of_the_source(folder, 100)
    """

    options: ClassVar[dict[str, Any]] = {}
    """Options of ``submit`` that the source needs, such as ``element_spec``."""
    seeks: ClassVar[bool] = True
    """Whether it can be read again and again, and from other records than the first; False for what is iterated over
    once, such as a generator."""

    def source(self, count: int, folder: Path) -> Any:
        """Return a source of ``count`` elements, which may write files into the folder."""
        raise NotImplementedError

    def element(self, number: int) -> Any:
        """Return element ``number`` as it must be read: numpy arrays and scalars, str, bytes, None."""
        raise NotImplementedError

    @pytest.mark.parametrize("count", [1, 1100])
    def test_values_types_order_and_length_are_those_of_the_source(self, tmp_path: Path, count: int) -> None:
        ref = Storage(tmp_path / "cache").cache(self.source(count, tmp_path), "d@v1", **self.options)
        assert len(ref) == count
        for number, element in enumerate(ref.stream()):
            mine, theirs = tree.leaf_values(element), tree.leaf_values(self.element(number))
            assert [path for path, _ in mine] == [path for path, _ in theirs]
            for (path, value), (_, expected) in zip(mine, theirs, strict=True):
                _assert_same(value, expected, f"element {number}, leaf {path}")

    def test_the_same_source_gives_the_same_digest(self, tmp_path: Path) -> None:
        digests = set()
        for name in ("a", "b"):
            (tmp_path / name).mkdir()
            ref = Storage(tmp_path / name / "cache").cache(self.source(50, tmp_path / name), "d@v1", **self.options)
            digests.add(ref.digest)
        assert len(digests) == 1

    def test_no_more_than_max_records_are_taken(self, tmp_path: Path) -> None:
        ref = Storage(tmp_path / "cache").cache(self.source(60, tmp_path), "d@v1", max_records=41, **self.options)
        assert len(ref) == 41

    def test_it_is_read_from_any_of_its_starts_if_it_has_some(self, tmp_path: Path) -> None:
        source = as_source(self.source(100, tmp_path), **self.options)
        assert (source.starts is not None) == self.seeks, f"set seeks = {not self.seeks} in {type(self).__name__}"
        if self.seeks:
            _assert_seeks(source, self.options.get("element_spec"))


class FailingSourceTests(SourceTests):
    """A source that runs code for each element: an element that fails is named, and is not taken for the end.

    Examples:
        >>> import numpy as np
        >>> from cachelayer.testing import FailingSourceTests
        >>> class TestSquares(FailingSourceTests):
        ...     seeks = False
        ...
        ...     def source(self, count, folder):
        ...         return map(self.element, range(count))
        ...
        ...     def element(self, number):
        ...         if number == 17 and self.error:
        ...             raise self.error
        ...         return np.int64(number**2)
        >>> TestSquares().test_an_element_that_fails_is_named_and_is_no_end(folder)
    """

    error: Exception | None = None
    """What element 17 of the source must raise; None for nothing."""
    named: ClassVar[str] = "17"
    """How the error names the element, or the first of its batch."""
    errors: ClassVar[list[Exception]] = [ValueError("no such element"), IndexError(), StopIteration()]
    """The errors that are tried."""

    def test_an_element_that_fails_is_named_and_is_no_end(self, tmp_path: Path) -> None:
        for error in self.errors:
            self.error = error
            with pytest.raises(SourceError, match=self.named):
                Storage(tmp_path / "cache").cache(self.source(40, tmp_path), "d@v1", **self.options)
        assert Storage(tmp_path / "cache").datasets() == []
