"""Views whose elements are made of the records of others: what windows, packs and padded records share."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.record_base import Read, RecordBase, chosen_leaves
from cachelayer.access.sequences.documents import Documents
from cachelayer.protocols import Failed, ReadingCost
from cachelayer.records.memory import rows_apart, splits_of
from cachelayer.records.tree import Tree
from cachelayer.versions.manifest import canonical_json


def derived_digest(digest: str, name: str, parameters: dict[str, Any]) -> str:
    """Return the digest of what is made of records.

    It is SHA-256 over the name, the digest of the records (32 bytes), and the canonical JSON of the parameters.
    """
    return hashlib.sha256(name.encode() + bytes.fromhex(digest) + canonical_json(parameters)).hexdigest()


class ArraysBase(ABC):
    """A :class:`cachelayer.access.view.ViewBase` whose elements are dicts of arrays of fixed shape.

    Attributes:
        documents: what they are made of.
    """

    reading_cost: ReadingCost = "stored"
    documents: Documents

    @property
    def metadata(self) -> Mapping[str, Any]:
        return self.documents.view.metadata

    @property
    @abstractmethod
    def digest(self) -> str:
        """The digest of the elements, in hexadecimal."""

    @property
    @abstractmethod
    def element_spec(self) -> Tree:
        """The spec of the elements."""

    @abstractmethod
    def __len__(self) -> int: ...

    @property
    @abstractmethod
    def record_nbytes(self) -> int:
        """Approximate bytes of an element."""

    @property
    @abstractmethod
    def records_per_read(self) -> int:
        """Number of elements that a stream with smaller batches should read at once."""

    @property
    def stored_records(self) -> RecordBase | None:
        return self.documents.view._base

    @property
    def segments(self) -> tuple[int, ...]:
        """The number of elements of each segment: a single one, unless a subclass knows better."""
        return (len(self),)

    @abstractmethod
    def arrays(self, numbers: NDArray[np.int64], read: Read | None = None) -> dict[str, NDArray[Any]]:
        """Return the elements of these numbers, stacked on a leading axis.

        Args:
            numbers: the elements.
            read: reads the records that they are made of, if not their own base.
        """

    def element(self, number: int) -> Any:
        return {name: values[0] for name, values in self.arrays(np.array([number])).items()}

    def elements(
        self,
        numbers: NDArray[np.int64],
        read: Read | None = None,
        failed: Failed | None = None,  # noqa: ARG002
    ) -> list[Any]:
        columns = {name: rows_apart(values) for name, values in self.arrays(numbers, read).items()}
        return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]

    def batch(self, numbers: NDArray[np.int64], names: Sequence[str] | None, read: Read | None = None) -> Any:
        if names is not None:
            chosen_leaves(self.element_spec, names)
        return {name: values for name, values in self.arrays(numbers, read).items() if names is None or name in names}

    def batches(self, batches: Sequence[NDArray[np.int64]], read: Read | None = None) -> list[Any]:
        splits = splits_of(np.array([len(batch) for batch in batches], np.int64)).tolist()
        arrays = self.arrays(np.concatenate([*batches, np.empty(0, np.int64)]), read)
        return [{name: values[start:stop] for name, values in arrays.items()} for start, stop in pairwise(splits)]
