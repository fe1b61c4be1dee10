"""Elements and batches of encoded records, wherever these lie."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NoReturn, Self

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import CacheLayerError, CorruptionError, ElementError, InvalidArgumentError
from cachelayer.locks import cached_property
from cachelayer.protocols import ReadingCost
from cachelayer.records import tree
from cachelayer.records.codec import Codec
from cachelayer.records.media import decoding
from cachelayer.records.memory import splits_of
from cachelayer.records.record_buffers import Records
from cachelayer.records.tree import Tree


class RecordBase(ABC):
    """What views show, where it is kept as records of one codec."""

    @property
    @abstractmethod
    def codec(self) -> Codec:
        """What encoded the records."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What error messages call it."""

    @property
    @abstractmethod
    def record_nbytes(self) -> int:
        """About the bytes of a record."""

    @property
    @abstractmethod
    def read_together(self) -> int:
        """How many records, in batches of fewer, had best be read at once."""

    @property
    @abstractmethod
    def segments(self) -> tuple[int, ...]:
        """Numbers of records that came to it one after another."""

    @abstractmethod
    def record(self, number: int) -> bytearray:
        """One record, the caller's own."""

    @abstractmethod
    def records(self, numbers: NDArray[np.int64]) -> Records:
        """The records of these numbers, all within the base."""

    @abstractmethod
    def stored(self) -> Self:
        """Return the same records as they are stored: encoded images and sounds as their bytes."""

    @property
    def decodes(self) -> bool:
        """Whether encoded images and sounds are handed out decoded."""
        return True

    @cached_property
    def shown(self) -> Codec:
        """The codec of what is handed out."""
        return decoding(self.codec) if self.decodes else self.codec

    @property
    def reading_cost(self) -> ReadingCost:
        """What is known beforehand of the cost of a record."""
        return "stored" if self.shown is self.codec else "decoded"

    @property
    def element_spec(self) -> Tree:
        return self.shown.spec

    def element(self, number: int) -> Any:
        try:
            return self.shown.element(self.record(number))
        except ValueError as error:
            self._raise_damage(error, [number])

    def elements(self, numbers: NDArray[np.int64]) -> list[Any]:
        try:
            return self.shown.elements(self.shown.decode(self.records(numbers), apart=True), len(numbers))
        except ValueError as error:
            self._raise_damage(error, numbers)

    def batch(self, numbers: NDArray[np.int64], names: Sequence[str] | None) -> Any:
        chosen = None if names is None else chosen_leaves(self.element_spec, names)
        try:
            batch = self.shown.batch(self.shown.decode(self.records(numbers), chosen))
        except ValueError as error:
            self._raise_damage(error, numbers)
        return batch if names is None else {name: batch[name] for name in self.element_spec if name in names}

    def batches(self, parts: Sequence[NDArray[np.int64]]) -> list[Any]:
        splits = splits_of(np.array([len(part) for part in parts], np.int64)).tolist()
        numbers = np.concatenate([*parts, np.empty(0, np.int64)])
        try:
            columns = self.shown.decode(self.records(numbers))
            return [
                self.shown.batch([column and column.rows(start, stop) for column in columns])
                for start, stop in pairwise(splits)
            ]
        except ValueError as error:
            self._raise_damage(error, numbers)

    def _raise_damage(self, error: ValueError, numbers: Sequence[int] | NDArray[np.int64]) -> NoReturn:
        """Raise what numpy says of bytes that no element has as an error of ours; files are named by their records."""
        if isinstance(error, ElementError) and error.record is not None:
            raise error.at(record=int(numbers[error.record])) from error.__cause__
        if isinstance(error, CacheLayerError):
            raise error
        raise CorruptionError(f"{self.name}: a record does not decode: {error}. verify() tells which shard") from error


def chosen_leaves(spec: Tree, names: Sequence[str]) -> set[int]:
    """The numbers of the leaves below these keys of a dict.

    Raises:
        InvalidArgumentError: where a field does not exist.
    """
    if isinstance(names, str) or not isinstance(spec, dict):
        raise InvalidArgumentError(f"fields={names!r}: pass a tuple of keys; elements are {tree.describe(spec)}")
    unknown = [name for name in names if name not in spec]
    if unknown:
        raise InvalidArgumentError(f"no field {unknown[0]!r}: the element is {tree.describe(spec)}")
    chosen: set[int] = set()
    first = 0
    for name, child in spec.items():
        count = len(tree.leaves(child))
        if name in names:
            chosen.update(range(first, first + count))
        first += count
    return chosen
