"""Fill the templates of the pages. Jinja escapes all values."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.responses import HTMLResponse

from cachelayer.drawing.drawn_leaf import LINE_HEIGHT, LINE_WIDTH, DrawnLeaf
from cachelayer.drawing.leaf_paths import shown_path
from cachelayer.drawing.png import data_url, png
from cachelayer.drawing.quantities import ago, size
from cachelayer.errors import InvalidArgumentError


def _thousands(number: Any) -> str:
    return f"{number:,}" if isinstance(number, int) else str(number)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return "-" if value is None else _thousands(value)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def _moment(text: str) -> str:
    """Format a time of the log; a text that is no time stays as it is."""
    try:
        return datetime.fromisoformat(text).strftime("%Y-%m-%d %H:%M")
    except ValueError:
        return text[:40]


def _src(leaf: DrawnLeaf) -> str:
    return "" if leaf.pixels is None else data_url(png(leaf.pixels))


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
_TEMPLATES.filters.update(
    nbytes=size, ago=ago, count=_thousands, number=_number, plain=_plain, moment=_moment, src=_src, path=shown_path
)
_TEMPLATES.globals.update(version_path=version_path, line_width=LINE_WIDTH, line_height=LINE_HEIGHT)


def page(template: str, status: int = 200, **values: Any) -> HTMLResponse:
    """Return a template, filled in."""
    text = _TEMPLATES.get_template(template).render(**values)
    # Text of records may hold halves of surrogate pairs, which no encoding has.
    return HTMLResponse(text.encode("utf-8", "backslashreplace"), status)


def whole(query: Mapping[str, str], name: str, default: int, least: int, most: int) -> int:
    """Return an integer of a query.

    Raises:
        InvalidArgumentError: if it is not an integer, or out of range.
    """
    text = query.get(name, "").strip()
    if not text:
        return default
    digits = text.replace(",", "").replace("_", "")
    # Python refuses to convert thousands of digits.
    if not digits.isascii() or not digits.isdigit() or len(digits) > 20 or not least <= int(digits) <= most:
        raise InvalidArgumentError(f"{name}={text[:40]!r}: it must be an integer from {least:,} to {most:,}")
    return int(digits)
