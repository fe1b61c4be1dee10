"""Show a version in a notebook: a small table, without a server and without scripts."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

from cachelayer.drawing.drawn_records import (
    LINE_HEIGHT,
    LINE_WIDTH,
    DrawnLeaf,
    DrawnRecord,
    Look,
    Stored,
    drawn_records,
)
from cachelayer.drawing.pixels import data_url, png
from cachelayer.drawing.text import Names, shown_path
from cachelayer.errors import CacheLayerError
from cachelayer.records import tree

RECORDS = 4
_SIDE = 64
_LEAVES = 12
_TEXT = 120
_NBYTES = 8 << 20


def ref_html(
    title: str, facts: Sequence[tuple[str, str]], stored: Stored, records: int, names: Names | None = None
) -> str:
    """Return a table with facts, the element spec, and the first records. All that is stored is escaped.

    Args:
        title: the name of the records.
        facts: names and values above the records.
        stored: the records as they are stored.
        records: their number.
        names: the class names of leaves that are labels, by path.
    """
    try:
        drawn = drawn_records(stored, range(min(RECORDS, records)), Look(_SIDE, _LEAVES, names=names or {}), _NBYTES)
    except CacheLayerError as error:
        drawn = [DrawnRecord(0, problem=str(error))]
    leaves = tree.leaves(stored.element_spec)
    heads = "".join(
        f"<th>{escape(_cut(shown_path(path)))}<br><small>{escape(spec.describe())}</small></th>"
        for path, spec in leaves[:_LEAVES]
    )
    rows = "".join(_row(record, min(len(leaves), _LEAVES)) for record in drawn)
    return _table(title, facts, f"<thead><tr><th>record</th>{heads}</tr></thead><tbody>{rows}</tbody>", len(leaves))


def spec_html(title: str, facts: Sequence[tuple[str, str]], spec: tree.Tree) -> str:
    """Return a table with facts and the element spec: for what reads much for one row, or is read in many ways."""
    leaves = tree.leaves(spec)
    rows = "".join(
        f"<tr><th>{escape(_cut(shown_path(path)))}</th><td>{escape(leaf.describe())}</td></tr>"
        for path, leaf in leaves[:_LEAVES]
    )
    return _table(title, facts, f"<tbody>{rows}</tbody>", len(leaves))


def _table(title: str, facts: Sequence[tuple[str, str]], body: str, leaves: int) -> str:
    more = "" if leaves <= _LEAVES else f"<p>and {leaves - _LEAVES:,} more fields</p>"
    shown = " · ".join(f"{escape(name)} {escape(value)}" for name, value in facts)
    return f"<div><strong>{escape(title)}</strong><br>{shown}<table>{body}</table>{more}</div>"


def _row(record: DrawnRecord, columns: int) -> str:
    if record.problem:
        return f'<tr><th>{record.number:,}</th><td colspan="{columns}">{escape(_cut(record.problem))}</td></tr>'
    return f"<tr><th>{record.number:,}</th>{''.join(map(_cell, record.leaves))}</tr>"


def _cell(leaf: DrawnLeaf) -> str:
    if leaf.pixels is not None:
        return f'<td><img alt="{escape(_cut(leaf.text))}" src="{data_url(png(leaf.pixels))}"></td>'
    if leaf.points:
        size = f'width="{LINE_WIDTH}" height="{LINE_HEIGHT}"'
        stroke = 'fill="none" stroke="currentColor"'
        return f'<td><svg {size}><polyline {stroke} points="{leaf.points}"/></svg></td>'
    return f"<td>{escape(_cut(f'{leaf.text} {leaf.name}'.rstrip()))}</td>"


def _cut(text: Any) -> str:
    return text if len(text) <= _TEXT else f"{text[:_TEXT]} …"
