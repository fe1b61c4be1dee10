"""Read TensorPack's ``DataFlow`` as a source. A flow is recognised by its methods, so TensorPack is not imported."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from cachelayer.builds.batches import Batch
from cachelayer.builds.iterable_source import IterableSource
from cachelayer.builds.unbatch import BatchesSource
from cachelayer.errors import CacheLayerError, InvalidArgumentError, SourceError
from cachelayer.records.tree import Tree


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> DataFlowSource | None:  # noqa: ARG001
    """Return the source of a flow: an iterable object with ``reset_state()``; None for anything else."""
    if isinstance(obj, type) or not callable(getattr(obj, "reset_state", None)) or not hasattr(obj, "__iter__"):
        return None
    return DataFlowSource(obj, unbatch=unbatch)


class DataFlowSource:
    """The datapoints of a flow, which is reset first, as TensorPack requires.

    Args:
        flow: the flow.
        unbatch: whether its datapoints are batches, as ``BatchData`` makes them.
    """

    kind = "tensorpack"
    element_spec: Tree | None = None
    length: int | None = None

    def __init__(self, flow: Any, *, unbatch: bool) -> None:
        self._flow = flow
        self._unbatch = unbatch

    @property
    def length_hint(self) -> int | None:
        """The number of datapoints that the flow reports. TensorPack allows it to be inaccurate."""
        if self._unbatch:
            return None
        try:
            return len(self._flow)
        except (TypeError, NotImplementedError):
            # A flow need not know its length.
            return None

    def batches(self, limit: int | None) -> Iterator[Batch]:
        """Return an iterator over the datapoints, in batches.

        Raises:
            InvalidArgumentError: if the flow repeats forever and there is no limit.
            SourceError: if the flow fails; names the record.
        """
        if limit is None and _is_endless(self._flow):
            raise InvalidArgumentError(
                "the DataFlow is endless (RepeatedData with -1): remove RepeatedData, or pass max_records="
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
    """Return whether a flow, or one that it reads from, is known to have no end."""
    while flow is not None and type(flow).__name__ != "FixedSizeData":
        if type(flow).__name__ == "RepeatedData" and flow.num == -1:
            return True
        flow = getattr(flow, "ds", None)
    return False
