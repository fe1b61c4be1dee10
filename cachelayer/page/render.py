"""Fill the templates of the pages, in which Jinja escapes all values, and read what requests name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextvars import ContextVar
from datetime import datetime
from functools import lru_cache
from typing import Any
from urllib.parse import quote, unquote

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.requests import Request
from starlette.responses import HTMLResponse

from cachelayer.drawing.drawn_records import LINE_HEIGHT, LINE_WIDTH, Detokenize, DrawOptions
from cachelayer.drawing.text import ago, class_names, leaf_text, shown_path
from cachelayer.errors import InvalidArgumentError
from cachelayer.storage.storage import Storage
from cachelayer.support.progress import size
from cachelayer.versions.reference import Reference
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.views.dataref import DataRef


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _moment(text: str) -> str:
    """Format a time of the log; a text that is no time stays as it is."""
    try:
        return datetime.fromisoformat(text).strftime("%-d %b %Y, %H:%M")
    except ValueError:
        return text[:40]


ROOT_PATH: ContextVar[str] = ContextVar("cachelayer_root_path", default="")
"""The prefix of all paths of the server, which a proxy may add: empty, or ``/`` and a name."""


def version_path(dataset_id: str, version: str) -> str:
    """Return the path of the page of a version, or of a view of it: the calls of the view follow the name."""
    # A slash in a condition must not divide the path, also after the server has decoded it.
    name = version.replace("%", "%25").replace("/", "%2F")
    return f"{ROOT_PATH.get()}/d/{quote(dataset_id, safe='')}/{quote(name, safe=':[]')}"


def name_of(ref: DataRef[Any]) -> str:
    """Return the name of a version; of a view, with the calls that make it."""
    view = ref._records.name
    return ref.dataset_version + "".join(map(str, () if view is None else view.calls))


def path_of(ref: DataRef[Any]) -> str:
    """Return the path of the page of a version or a view."""
    return version_path(ref.dataset_id, name_of(ref))


def number_in_version(ref: DataRef[Any], number: int) -> int:
    """Return the number that a record of a view has in its version."""
    base = ref._records.selection.number(number)
    selection = ref._base.version.selection
    if isinstance(selection.numbers, range):
        return selection.numbers.index(base)
    return int(selection.rows_of(np.array([base]))[0])


_TEMPLATES = Environment(
    loader=PackageLoader("cachelayer.page"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.filters.update(nbytes=size, ago=ago, count="{:,}".format, plain=_plain, moment=_moment)
_TEMPLATES.filters.update(path=shown_path, leaf=leaf_text)
_TEMPLATES.globals.update(
    version_path=version_path, path_of=path_of, name_of=name_of, number_in_version=number_in_version
)
_TEMPLATES.globals.update(root=ROOT_PATH.get, line_width=LINE_WIDTH, line_height=LINE_HEIGHT)


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    text = _TEMPLATES.get_template(template).render(**values)
    # Text of records may hold halves of surrogate pairs, which no encoding has.
    return HTMLResponse(text.encode("utf-8", "backslashreplace"), status)


def query_integer(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """Return the integer that a query has for a name, from ``least`` to ``most``; the default if it has none."""
    text = query.get(name, "").strip()
    if not text:
        return default
    digits = text.replace(",", "").replace("_", "")
    # Python refuses to convert thousands of digits.
    if not digits.isascii() or not digits.isdigit() or len(digits) > 20 or not least <= int(digits) <= most:
        raise InvalidArgumentError(f"{name}={text[:40]!r}: it must be an integer from {least:,} to {most:,}")
    return int(digits)


class OpenVersions:
    """A storage, and its versions that were opened lately. Without ``detokenize``, tokens are shown as numbers."""

    def __init__(self, storage: Storage, detokenize: Detokenize | None = None) -> None:
        self.storage = storage
        self._detokenize = detokenize
        self._open = lru_cache(64)(self._opened)

    def draw_options(self, ref: DataRef[Any], side: int, leaves: int) -> DrawOptions:
        """Return the options for drawing at most so many leaves of a record, and pixels of a side of a picture."""
        return DrawOptions(side, leaves, self._detokenize, class_names(ref.metadata))

    def ref(self, dataset_id: str, version: str | None) -> DataRef[Any]:
        """Return a version, or a view of its records.

        ``version`` may be a name, a tag, ``latest`` or ``sha256:<digest prefix>``, and calls that make a view may
        follow.
        """
        catalog = self.storage._catalog
        reference = catalog.parse(dataset_id if version is None else f"{dataset_id}@{unquote(version)}")
        stored = catalog.resolve(reference)
        pin = f"@sha256:{reference.pin}" if reference.pin else ""
        return self._open(stored.dataset_id, stored.info, "".join(map(str, reference.calls)) + pin)

    def _opened(self, dataset_id: str, info: VersionInfo, calls: str) -> DataRef[Any]:
        """Return a version, or the view of it that calls make. Calls are written as in a reference."""
        catalog = self.storage._catalog
        if not calls:
            return catalog.open(StoredVersion(catalog.dataset(dataset_id), info))
        view = Reference.parse(f"{dataset_id}@{info.version}{calls}").view_of(self._open(dataset_id, info, ""))
        if not isinstance(view, DataRef):
            raise InvalidArgumentError(
                f"{view!r}: the page shows views of records as they are stored: leave out what makes others of them"
            )
        return view


def open_versions_of(request: Request) -> OpenVersions:
    """Return the versions of the storage that the application shows."""
    open_versions: OpenVersions = request.app.state.open_versions
    return open_versions


def ref_of(request: Request) -> DataRef[Any]:
    """Return the version that a path names."""
    return open_versions_of(request).ref(request.path_params["dataset"], request.path_params["version"])
