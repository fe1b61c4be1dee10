"""TensorPack's ``DataFlow`` in. A flow is known by its form, so that this imports nothing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cachelayer.builds.batches import Batch
from cachelayer.builds.iterable_source import IterableSource
from cachelayer.builds.unbatch import BatchesSource
from cachelayer.errors import CacheLayerError, InvalidArgumentError, SourceError
from cachelayer.records.tree import Tree


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> DataFlowSource | None:  # noqa: ARG001
    """The source that a flow is, which has ``reset_state()`` and can be iterated; None for anything else."""
    if isinstance(obj, type) or not callable(getattr(obj, "reset_state", None)) or not hasattr(obj, "__iter__"):
        return None
    return DataFlowSource(obj, unbatch=unbatch)


class DataFlowSource:
    """The datapoints of a flow, which is reset first, as TensorPack asks for.

    Args:
        flow: the flow.
        unbatch: its datapoints are batches, as ``BatchData`` makes them.
    """

    kind = "tensorpack"
    element_spec: Tree | None = None
    length: int | None = None

    def __init__(self, flow: Any, *, unbatch: bool) -> None:
        self._flow = flow
        self._unbatch = unbatch

    @property
    def length_hint(self) -> int | None:
        """Number of datapoints, as the flow says it: TensorPack's contract is that it may not be accurate."""
        if self._unbatch:
            return None
        try:
            return len(self._flow)
        except (TypeError, NotImplementedError):
            # A flow need not know it.
            return None

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """The datapoints.

        Raises:
            InvalidArgumentError: where the flow repeats itself without end and there is no limit.
            SourceError: where the flow fails, with the number of the record.
        """
        if limit is None and _is_endless(self._flow):
            raise InvalidArgumentError(
                "the DataFlow is endless (RepeatedData with -1): take that out, or pass max_records="
            )
        points = _points(self._flow)
        source = BatchesSource(points, self.kind) if self._unbatch else IterableSource(points, self.kind, None)
        return source.batches(limit)


def _points(flow: Any) -> Iterator[Any]:
    try:
        flow.reset_state()
    except CacheLayerError:
        raise
    except Exception as error:
        raise SourceError(f"reset_state() of the DataFlow failed: {type(error).__name__}: {error}") from error
    yield from flow


def _is_endless(flow: Any) -> bool:
    """Whether a flow, or one that it takes its datapoints from, is known to have no end."""
    while flow is not None and type(flow).__name__ != "FixedSizeData":
        if type(flow).__name__ == "RepeatedData" and flow.num == -1:
            return True
        flow = getattr(flow, "ds", None)
    return False
