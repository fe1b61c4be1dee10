"""Erase records of a version, or of every version of a dataset; see :meth:`cachelayer.Storage.erase`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cachelayer.builds.erase import Erasure
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.errors import InvalidArgumentError
from cachelayer.storage.catalog import Catalog
from cachelayer.support.memory import Ints
from cachelayer.support.user_warnings import warn
from cachelayer.versions.reference import Reference
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.views.dataref import DataRef
from cachelayer.views.where import Condition, mask_of


@dataclass(frozen=True)
class EraseRequest:
    """A request to erase records from a dataset."""

    catalog: Catalog
    reason: str
    grace: float
    progress: bool | None

    def erase(self, reference: Reference, records: Sequence[int] | None, where: Any) -> StoredVersion:
        """Erase the records of a version that have some numbers, or fit a condition; return the version without them.

        All versions that hold them in the same shards lose them too.
        """
        ref = self._open(reference)
        chosen: Any = records
        if records is None:
            chosen = np.flatnonzero(mask_of(ref._records, Condition.of(where)))
            if not len(chosen):
                name = f"{ref.dataset_id}@{ref.dataset_version}"
                raise InvalidArgumentError(f"where={where!r} fits no record of {name}: nothing is erased")
        numbers = ref._records.selection.select(chosen)
        rows = np.concatenate([*numbers.pieces(), np.empty(0, np.int64)])
        return self._erasure(ref, rows).erase()

    def erase_from_every_version(self, reference: Reference, where: Any) -> StoredVersion:
        """Erase what fits a condition from every version of a dataset, and return the one that is named.

        Records of the shards that a version does not keep are looked at too.
        """
        condition = Condition.of(where)
        named = Reference(reference.dataset_id, self.catalog.resolve(reference).info.version)
        names = list(self.catalog.snapshot(reference.dataset_id).versions)
        refused: dict[str, InvalidArgumentError] = {}
        erased = 0
        for name in names:
            ref = self._open(Reference(reference.dataset_id, name))
            try:
                rows = np.flatnonzero(mask_of(DatasetView.all(ref._records.base), condition))
            except InvalidArgumentError as error:
                refused[name] = error
                continue
            erased += len(rows)
            if len(rows):
                self._erasure(ref, rows, names_others=False).erase()
        if len(refused) == len(names):
            raise next(iter(refused.values()))
        if not erased:
            raise InvalidArgumentError(f"where={where!r} fits no record of {reference.dataset_id}: nothing is erased")
        if refused:
            reasons = "; ".join(f"{name}: {error}" for name, error in refused.items())
            warn(
                f"{reference.dataset_id}: the condition does not tell which records of {', '.join(refused)} are meant, "
                f"so nothing was looked for there: erase them by their numbers, or delete the versions ({reasons})"
            )
        return self.catalog.resolve(named)

    def _open(self, reference: Reference) -> DataRef[Any]:
        return self.catalog.open(self.catalog.resolve(reference))

    def _erasure(self, ref: DataRef[Any], rows: Ints, *, names_others: bool = True) -> Erasure:
        version = ref._base.version
        return Erasure(version, rows, self.reason, self.grace, self.progress, names_others=names_others)
