"""Render ``docs/values.md`` from ``tests/verdicts/``: run this file to write it."""

from __future__ import annotations

from collections import Counter
from itertools import groupby

from repository import ROOT
from values_table import DTYPES, NESTINGS, VALUES, Column, Rule, columns

PAGE = ROOT / "docs" / "values.md"
SIGNS = {"equal": "=", "warned": "!", "refused": "✗", "none": "-"}
HEAD = """# Values in other frameworks

This page shows which values each framework's adapter keeps. What comes out equals what went in: value, dtype, nulls,
order and count. If that is impossible, the way in refuses the record or leaf by name, and the way out refuses it or
warns once. Each cell shows two ways: first out of a ref, then into one.

| | |
|---|---|
| = | equal |
| ! | a warning names the leaf and says what changes |
| ✗ | an error names the leaf |
| - | the framework has no such value, or nothing came out that could go in |

The letters refer to the reasons below each table. Every cell is a test.
`python tests/support/values_page.py` writes this page from `tests/verdicts/`.
"""


def render() -> str:
    """Return the page."""
    found = sorted(columns(), key=lambda column: (column.family, column.title))
    return "\n".join([HEAD, *(_family(name, list(members)) for name, members in groupby(found, lambda c: c.family))])


def _family(name: str, members: list[Column]) -> str:
    ways = [f"- {member.title}: {', '.join(_ways(member))}" for member in members]
    values = [[value, *(_cell(column, column.value(value)) for column in members)] for value in VALUES]
    nestings = [[nesting, *(_condensed(column, nesting) for column in members)] for nesting in NESTINGS]
    titles = [column.title for column in members]
    parts = [f"## {name}\n", *ways, "", _table(["value", *titles], values), ""]
    parts += [
        "Every dtype, with the values at its edges, in every nesting:\n",
        _table(["nesting", *titles], nestings),
        "",
    ]
    return "\n".join(parts + [line for column in members for line in _reasons(column)])


def _ways(column: Column) -> list[str]:
    return [f"{way} {what}" for way, what in (("out", column.out), ("in", column.into)) if what]


def _table(head: list[str], rows: list[list[str]]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows])


def _cell(column: Column, rule: Rule) -> str:
    verdicts = [SIGNS[verdict] for verdict, way in ((rule.out, column.out), (rule.into, column.into)) if way]
    return " ".join(verdicts) + _letter(column, rule)


def _condensed(column: Column, nesting: str) -> str:
    """Return what becomes of most dtypes, and of those that differ."""
    cells = {dtype: _cell(column, column.nesting(nesting, dtype)) for dtype in DTYPES}
    ((usual, _),) = Counter(cells.values()).most_common(1)
    others: dict[str, list[str]] = {}
    for dtype, cell in cells.items():
        if cell != usual:
            others.setdefault(cell, []).append(dtype)
    return "; ".join([usual, *(f"{', '.join(_short(dtypes))} {cell}" for cell, dtypes in others.items())])


def _short(dtypes: list[str]) -> list[str]:
    """Return names of dtypes, with one for all those of a kind."""
    kinds: dict[str, list[str]] = {}
    for dtype in dtypes:
        kinds.setdefault(dtype.rstrip("0123456789").split("[")[0].replace("64", ""), []).append(dtype)
    of_kind = Counter(dtype.rstrip("0123456789").split("[")[0].replace("64", "") for dtype in DTYPES)
    whole = {kind for kind, names in kinds.items() if len(names) == of_kind[kind] > 1}
    return [name for kind, names in kinds.items() for name in ([f"{kind}*"] if kind in whole else names)]


def _told(column: Column) -> list[str]:
    return list(dict.fromkeys(_reason(rule) for rule in [*column.values, *column.nestings] if _reason(rule)))


def _reason(rule: Rule) -> str:
    becomes = f"arrives as {', '.join(rule.becomes)}" if rule.becomes else ""
    return ": ".join(filter(None, [becomes, rule.why]))


def _letter(column: Column, rule: Rule) -> str:
    reason = _reason(rule)
    return f" <sup>{chr(ord('a') + _told(column).index(reason))}</sup>" if reason else ""


def _reasons(column: Column) -> list[str]:
    told = [f"({chr(ord('a') + number)}) {reason}" for number, reason in enumerate(_told(column))]
    return [f"{column.title}: {'; '.join(told)}.", ""] if told else []


if __name__ == "__main__":
    PAGE.write_text(render())
