"""The pages of records: a table of records, by number or by a condition, and one record in full."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from starlette.requests import Request
from starlette.responses import Response

from cachelayer.drawing.drawn_records import DrawOptions, are_tokens, drawn_leaf, drawn_records
from cachelayer.drawing.pixels import png
from cachelayer.drawing.pixels import sound as decoded_sound
from cachelayer.errors import CacheLayerError, InvalidArgumentError, RecordIndexError, StorageError
from cachelayer.page.distributions import MOST_FIELDS, SAMPLE, columns_of
from cachelayer.page.render import open_versions_of, page, query_integer, ref_of
from cachelayer.protocols import records_of
from cachelayer.specs import tree
from cachelayer.specs.schema import Schema
from cachelayer.specs.spec import AudioSpec, LeafSpec
from cachelayer.views.dataref import DataRef
from cachelayer.views.where import Condition, mask_of

COUNT = 50
MOST = 200
SECONDS = 5.0
"""A request searches for so many seconds; the next one searches on."""
THUMBNAIL = 96
FULL = 1600
LEAVES = 8
_COLUMNS = 24
_ONE_NBYTES = 1 << 28
_BATCH_NBYTES = 4 << 20
_BATCH_RECORDS = 65_536


class Search:
    """A search for the records that a condition chooses, batch by batch. Thread-safe."""

    def __init__(self, ref: DataRef[Any], where: str) -> None:
        self.searched = 0
        self.numbers: NDArray[np.int64] = np.empty(0, np.int64)
        self._raw = ref.raw()
        self._condition = Condition.of(where)
        self._batch_size = max(1, min(_BATCH_RECORDS, _BATCH_NBYTES // max(1, records_of(ref).info.read_nbytes)))
        self._lock = threading.Lock()

    @property
    def is_done(self) -> bool:
        """True if all records were searched."""
        return self.searched == len(self._raw)

    def search_on(self, count: int) -> None:
        """Search at least a batch: until so many records are found, or all were searched, or it takes too long."""
        until = time.monotonic() + SECONDS
        with self._lock:
            while len(self.numbers) < count and not self.is_done:
                start = self.searched
                stop = min(self.searched + self._batch_size, len(self._raw))
                rows = np.flatnonzero(mask_of(self._raw[start:stop]._records, self._condition))
                self.numbers = np.append(self.numbers, start + rows)
                self.searched = stop
                if time.monotonic() > until:
                    break


def records(request: Request) -> Response:
    """Show a table of records from a number on.

    The query may choose records: ``where`` by a condition, ``at`` by their numbers, such as the numbers that a stream
    lists for a step.
    """
    ref = ref_of(request)
    query = request.query_params
    where = query.get("where", "").strip()
    at = query.get("at", "").strip()
    search = None
    shown: Sequence[int] | NDArray[np.int64] = range(len(ref))
    if at:
        shown = [query_integer({"at": text}, "at", 0, 0, max(0, len(ref) - 1)) for text in at.split(",")]
    count = query_integer(query, "count", COUNT, 1, MOST)
    start = query_integer(query, "from", 0, 0, max(0, len(ref) - 1))
    if where and not at:
        # The same search as before, which goes on where it stopped.
        search = request.app.state.search(ref, where)
        # One more, to know whether there are records after these.
        search.search_on(start + count + 1)
        shown = search.numbers
    options = open_versions_of(request).draw_options(ref, THUMBNAIL, _COLUMNS)
    keep = ("where", "at", "count")
    drawn_here = drawn_records(ref.raw(), [int(number) for number in shown[start : start + count]], options)
    summary = None
    problem = ""
    try:
        summary = request.app.state.surveys.of(ref)
    except StorageError:
        raise
    except CacheLayerError as error:
        problem = str(error)
    columns, more = columns_of(ref, summary, _COLUMNS)
    return page(
        "records.html",
        ref=ref,
        total=len(shown),
        start=start,
        count=count,
        where=where,
        keep={name: query[name] for name in keep if query.get(name)},
        search=search,
        summary=summary,
        problem=problem,
        sample=SAMPLE,
        columns=columns,
        more=more,
        has_tokens=options.detokenize is None and any(are_tokens(leaf) for _, leaf in tree.leaves(ref.element_spec)),
        drawn=drawn_here,
    )


def record(request: Request) -> Response:
    """Show one record in full."""
    ref = ref_of(request)
    number = request.path_params["number"]
    nbytes = int(ref.stored_nbytes([number])[0])
    options = open_versions_of(request).draw_options(ref, 2 * THUMBNAIL, MOST_FIELDS)
    (drawn,) = drawn_records(ref.raw(), [number], options, _ONE_NBYTES)
    status = 500 if drawn.problem else 200
    return page("record.html", status, ref=ref, drawn=drawn, nbytes=nbytes)


def picture(request: Request) -> Response:
    """Send a leaf as a large PNG file. Files of images are decoded and written again, never passed on."""
    spec, value = _leaf(request)
    leaf = drawn_leaf(request.path_params["leaf"], "", spec, value, DrawOptions(FULL, 1))
    if leaf.pixels is None:
        raise InvalidArgumentError(f"this field is no picture: {leaf.text[:500]}")
    return Response(png(leaf.pixels), media_type="image/png")


def sound(request: Request) -> Response:
    """Send a leaf as a WAV file. Files of sounds are decoded and written again, never passed on."""
    spec, value = _leaf(request)
    if not isinstance(spec, AudioSpec) or value is None:
        raise InvalidArgumentError("this field is no sound")
    return Response(decoded_sound(value), media_type="audio/wav")


def _leaf(request: Request) -> tuple[LeafSpec, Any]:
    """Return the spec and the value of the leaf that a path names."""
    raw = ref_of(request).raw()
    number = request.path_params["number"]
    leaf = request.path_params["leaf"]
    leaves = tree.leaves(raw.element_spec)
    nbytes = int(raw.stored_nbytes([number])[0])
    if leaf >= len(leaves):
        raise RecordIndexError(f"no field {leaf} of record {number}")
    if nbytes > _ONE_NBYTES:
        raise InvalidArgumentError(f"record {number} has {nbytes:,} bytes: too large to show here")
    element = raw.__getitems__(np.asarray([number]))[0]
    return leaves[leaf][1], Schema.of(raw.element_spec).flatten(element)[leaf]
