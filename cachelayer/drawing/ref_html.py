"""Show records in a notebook: a small table, without a server and without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from cachelayer.drawing.drawn_records import LINE_HEIGHT, LINE_WIDTH, DrawnLeaf, DrawnRecord, DrawOptions, drawn_records
from cachelayer.drawing.text import Names, shown_path
from cachelayer.errors import CacheLayerError
from cachelayer.specs import tree
from cachelayer.specs.spec import describe_leaf

RECORDS = 4
_SIDE = 64
_LEAVES = 12
_TEXT = 120
_NBYTES = 8 << 20


def first_records(stored: Any, names: Names) -> list[DrawnRecord]:
    """Draw the first records of a ref, with class names beside labels. If they cannot be read, say why."""
    options = DrawOptions(_SIDE, _LEAVES, names=names)
    try:
        return drawn_records(stored, range(min(RECORDS, len(stored))), options, _NBYTES)
    except CacheLayerError as error:
        return [DrawnRecord(0, problem=str(error))]


def ref_html(title: str, facts: Sequence[tuple[str, str]], spec: tree.Tree, records: Sequence[DrawnRecord] = ()) -> str:
    """Return an HTML table with a row for each field: its spec, and its values in records. All texts are escaped."""
    leaves = tree.leaves(spec)
    heads = "".join(f"<th>record {record.number:,}</th>" for record in records)
    rows = [f"<tr><th>field</th><th>spec</th>{heads}</tr>"]
    for row, (path, leaf) in enumerate(leaves[:_LEAVES]):
        cells = "".join(_cell(record, row, min(len(leaves), _LEAVES)) for record in records)
        rows.append(f"<tr><th>{_cut(shown_path(path))}</th><td>{escape(describe_leaf(leaf))}</td>{cells}</tr>")
    more = "" if len(leaves) <= _LEAVES else f"<p>and {len(leaves) - _LEAVES:,} more fields</p>"
    shown = " · ".join(f"{escape(name)} {escape(value)}" for name, value in facts)
    return f"<div><strong>{escape(title)}</strong><br>{shown}<table>{''.join(rows)}</table>{more}</div>"


def _cell(record: DrawnRecord, row: int, rows: int) -> str:
    if record.problem:
        return f'<td rowspan="{rows}">{_cut(record.problem)}</td>' if row == 0 else ""
    return f"<td>{_drawn(record.leaves[row])}</td>"


def _drawn(leaf: DrawnLeaf) -> str:
    if leaf.pixels is not None:
        return f'<img alt="{_cut(leaf.text)}" src="{leaf.src}">'
    if leaf.points:
        stroke = f'fill="none" stroke="currentColor" points="{leaf.points}"'
        return f'<svg width="{LINE_WIDTH}" height="{LINE_HEIGHT}"><polyline {stroke}/></svg>'
    return _cut(f"{leaf.text} {leaf.name}".rstrip())


def _cut(text: str) -> str:
    return escape(text if len(text) <= _TEXT else f"{text[:_TEXT]} …")
