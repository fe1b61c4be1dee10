"""Fill the templates of the pages. Jinja escapes all values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from cachelayer.access.dataref import DataRef
from cachelayer.drawing.drawn_records import LINE_HEIGHT, LINE_WIDTH, Detokenize, Look
from cachelayer.drawing.text import ago, class_names, shown_path
from cachelayer.errors import InvalidArgumentError
from cachelayer.progress import size
from cachelayer.storage.storage import Storage
from cachelayer.versions.reference import Reference
from cachelayer.versions.stored_version import StoredVersion


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _moment(text: str) -> str:
    """Format a time of the log; a text that is no time stays as it is."""
    try:
        return datetime.fromisoformat(text).strftime("%-d %b %Y, %H:%M")
    except ValueError:
        return text[:40]


def version_path(dataset_id: str, version: str) -> str:
    """Return the path of the page of a version."""
    return f"/d/{quote(dataset_id, safe='')}/{quote(version, safe=':')}"


_TEMPLATES = Environment(
    loader=PackageLoader("cachelayer.view"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(nbytes=size, ago=ago, count="{:,}".format, plain=_plain, moment=_moment, path=shown_path)
_TEMPLATES.globals.update(version_path=version_path, line_width=LINE_WIDTH, line_height=LINE_HEIGHT)


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    text = _TEMPLATES.get_template(template).render(**values)
    # Text of records may hold halves of surrogate pairs, which no encoding has.
    return HTMLResponse(text.encode("utf-8", "backslashreplace"), status)


def whole(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    text = query.get(name, "").strip()
    if not text:
        return default
    digits = text.replace(",", "").replace("_", "")
    # Python refuses to convert thousands of digits.
    if not digits.isascii() or not digits.isdigit() or len(digits) > 20 or not least <= int(digits) <= most:
        raise InvalidArgumentError(f"{name}={text[:40]!r}: it must be an integer from {least:,} to {most:,}")
    return int(digits)


class Shelf:
    """A storage, and the versions of it that were opened lately. Without a function for it, tokens are numbers."""

    def __init__(self, storage: Storage, detokenize: Detokenize | None = None) -> None:
        self.storage = storage
        self._detokenize = detokenize
        catalog = storage._catalog
        self._open = lru_cache(64)(lambda dataset_id, info: catalog.ref(StoredVersion(catalog.store, dataset_id, info)))

    def look(self, ref: DataRef[Any], side: int, leaves: int) -> Look:
        """Return how records of a version are drawn, with at most so many pixels a side, and leaves."""
        return Look(side, leaves, self._detokenize, class_names(ref.metadata))

    def ref(self, dataset_id: str, version: str | None) -> DataRef[Any]:
        """Return a version, by its name, a tag, ``latest`` or ``sha256:<digest prefix>``."""
        catalog = self.storage._catalog
        stored = catalog.resolve(catalog.own(Reference.parse(dataset_id, version)))
        return self._open(stored.dataset_id, stored.info)


def shelf_of(request: Request) -> Shelf:
    """Return the shelf that the application shows."""
    shelf: Shelf = request.app.state.shelf
    return shelf


def ref_of(request: Request) -> DataRef[Any]:
    """Return the version that a path names."""
    return shelf_of(request).ref(request.path_params["dataset"], request.path_params["version"])
