"""The pages of records: a grid by number, and one record with its leaves in full."""

from __future__ import annotations

from typing import Any

import numpy as np
from starlette.requests import Request
from starlette.responses import Response

from cachelayer.drawing.drawn_records import Look, drawn_leaf, drawn_records
from cachelayer.drawing.pixels import png
from cachelayer.drawing.pixels import sound as decoded_sound
from cachelayer.errors import InvalidArgumentError, RecordIndexError
from cachelayer.records import tree
from cachelayer.records.spec import AudioSpec, LeafSpec
from cachelayer.view.render import page, ref_of, shelf_of, whole

COUNT, MOST = 24, 200
THUMBNAIL, FULL = 96, 1600
LEAVES, _ALL_LEAVES = 8, 500
_ONE_NBYTES = 1 << 28


def grid(request: Request) -> Response:
    """Show records from a number on; with ``part``, only the grid, which the script puts into the page.

    With ``at``, show the records of these numbers, such as those that a stream of a view hands out in a step.
    """
    ref, query = ref_of(request), request.query_params
    look = shelf_of(request).look(ref, THUMBNAIL, LEAVES)
    if query.get("at"):
        chosen = [whole({"at": text}, "at", 0, 0, max(0, len(ref) - 1)) for text in query["at"].split(",")[:MOST]]
        return page("chosen.html", ref=ref, drawn=drawn_records(ref.raw(), chosen, look))
    count = whole(query, "count", COUNT, 1, MOST)
    last = max(0, len(ref) - 1)
    start = whole(query, "from", 0, 0, last)
    drawn = drawn_records(ref.raw(), range(start, min(start + count, len(ref))), look)
    template = "grid.html" if "part" in query else "records.html"
    return page(template, ref=ref, records=len(ref), start=start, count=count, last=last, drawn=drawn)


def record(request: Request) -> Response:
    """Show one record in full."""
    ref, number = ref_of(request), request.path_params["number"]
    if not 0 <= number < len(ref):
        raise RecordIndexError(
            f"record {number} of {ref.dataset_id}@{ref.dataset_version}, which has {len(ref):,} records"
        )
    raw, look = ref.raw(), shelf_of(request).look(ref, 2 * THUMBNAIL, _ALL_LEAVES)
    (drawn,) = drawn_records(raw, [number], look, _ONE_NBYTES)
    nbytes = None if drawn.problem else int(raw.stored_nbytes([number])[0])
    status = 500 if drawn.problem else 200
    return page("record.html", status, ref=ref, records=len(ref), drawn=drawn, nbytes=nbytes)


def picture(request: Request) -> Response:
    """Send a leaf as a large PNG file. Files of images are decoded and written again, never passed on."""
    spec, value = _leaf(request)
    leaf = drawn_leaf(request.path_params["leaf"], "", spec, value, Look(FULL, 1))
    if leaf.pixels is None:
        raise InvalidArgumentError(f"this leaf is no picture: {leaf.text[:500]}")
    return Response(png(leaf.pixels), media_type="image/png")


def sound(request: Request) -> Response:
    """Send a leaf as a WAV file. Files of sounds are decoded and written again, never passed on."""
    spec, value = _leaf(request)
    if not isinstance(spec, AudioSpec) or value is None:
        raise InvalidArgumentError("this leaf is no sound")
    return Response(decoded_sound(value), media_type="audio/wav")


def _leaf(request: Request) -> tuple[LeafSpec, Any]:
    """Return the spec and the value of the leaf that a path names."""
    raw, number, leaf = ref_of(request).raw(), request.path_params["number"], request.path_params["leaf"]
    leaves = tree.leaves(raw.element_spec)
    if not 0 <= number < len(raw) or not 0 <= leaf < len(leaves):
        raise RecordIndexError(f"no leaf {leaf} of record {number}")
    nbytes = int(raw.stored_nbytes([number])[0])
    if nbytes > _ONE_NBYTES:
        raise InvalidArgumentError(f"record {number} has {nbytes:,} bytes: too large to show here")
    element = raw.__getitems__(np.asarray([number]))[0]
    return leaves[leaf][1], tree.flatten_like(raw.element_spec, element)[leaf]
