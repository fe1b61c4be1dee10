"""Print answers: tables for people or one JSON document for scripts on stdout, problems on stderr."""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from itertools import zip_longest
from typing import Any
from unicodedata import combining, east_asian_width

import click

from cachelayer.cli.exit_codes import ExitCode
from cachelayer.drawing.text import counted, duration
from cachelayer.support.json_values import flattened
from cachelayer.support.progress import HARMLESS, size
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.views.dataref import DataRef

_RULE = 80
"""The longest line below the heading of a table."""
_GAP = "   "
_LEAST_WIDTH = 8
"""Columns to which long words are cut at most."""
_LONGEST_WORD = 12
"""Columns of a word that is not cut, such as a date."""
_CONTROL = re.compile(r"(?!\x1b\[[01]m)[\x00-\x08\x0b-\x1f\x7f-\x9f]")
"""Characters by which stored text could control the terminal: all but those that begin and end bold text."""


@dataclass(frozen=True)
class Result:
    """The result of a command."""

    json: Any
    """The document for scripts: JSON values, dataclasses and paths."""
    text: Sequence[str] = ()
    """The text for people."""
    code: ExitCode = ExitCode.SUCCESS


def write(result: Result, *, as_json: bool) -> bool:
    """Print a result on stdout; return whether that succeeded, or only its reader has left. Else stderr says why."""
    try:
        if sys.stdout is None:
            raise OSError("it is closed")
        if as_json:
            click.echo(json.dumps(result.json, indent=2, allow_nan=False, default=_plain))
        else:
            for text in result.text:
                # Without a file, click writes UTF-8 to a stdout of ASCII.
                click.echo(_printable(text), file=sys.stdout)
    except OSError as error:
        return cannot_print(error)
    return True


def cannot_print(error: OSError) -> bool:
    """Say on stderr that stdout takes no more, unless only its reader has left; return whether it has."""
    if sys.stdout is not None:
        # Python would fail again when it ends, at what is still to be printed.
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    has_left = isinstance(error, BrokenPipeError)
    if not has_left:
        problem("error", f"the command has done its work, but its result cannot be printed on stdout: {error}")
    return has_left


def _plain(value: Any) -> Any:
    return asdict(value) if is_dataclass(value) and not isinstance(value, type) else str(value)


def problem(kind: str, text: str) -> None:
    """Print a line on stderr: ``error: ...`` or ``warning: ...``. If stderr is closed or full, print nothing."""
    if sys.stderr is not None:
        with HARMLESS:
            click.secho(_printable(f"{kind}: {text}"), fg="red" if kind == "error" else "yellow", err=True)


def _printable(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def bold(text: str) -> str:
    """Return a text that is bold in a terminal, and plain elsewhere."""
    return click.style(text, bold=True)


def table(rows: Iterable[Any], *names: str) -> list[str]:
    """Lay out documents or dataclasses, a line for each, with the values of these names; nothing if there are none.

    In a narrow terminal texts are folded, but those of a last column with URLs or paths are left for the terminal to
    wrap, so that they can be copied in one piece. If that is not enough, each row is laid out as :func:`facts`.
    """
    documents = [row if isinstance(row, dict) else vars(row) for row in rows]
    if not documents:
        return []
    headings = [name.replace("nbytes", "size").replace("_", " ") for name in names]
    cells = [[cell(name, document.get(name)) for name in names] for document in documents]
    columns = list(zip(headings, *cells, strict=True))
    numbers = {place for place, name in enumerate(names) if any(isinstance(row.get(name), int) for row in documents)}
    widths = list(map(_natural_width, columns))
    least = [width if place in numbers else _least_width(columns[place]) for place, width in enumerate(widths)]
    room = _terminal_width() - len(_GAP) * (len(names) - 1)
    if any("/" in text for text in columns[-1]):
        least[-1] = widths[-1]
        room += max(0, widths[-1] - _LEAST_WIDTH)
    while sum(widths) > room:
        foldable = [place for place, width in enumerate(widths) if width > least[place]]
        if not foldable:
            return [line for row in cells for line in ("", *facts(zip(headings, row, strict=True)))]
        widths[max(foldable, key=widths.__getitem__)] -= 1
    head = _laid_out(headings, widths, numbers)
    lines = [line for row in cells for line in _laid_out(row, widths, numbers)]
    rule = "─" * min(_RULE, _terminal_width(), max(map(_width, head + lines)))
    return [*map(bold, head), rule, *lines]


def facts(rows: Iterable[tuple[str, str]]) -> list[str]:
    """Lay out names and values. In a narrow terminal, lines of values are folded, but not those with URLs or paths."""
    pairs = list(rows)
    width = _natural_width(name for name, _ in pairs) + 2
    room = max(_LEAST_WIDTH, _terminal_width() - width)
    lines = []
    for name, value in pairs:
        folded = [part for line in value.split("\n") for part in ([line] if "/" in line else _folded(line, room))]
        lines.append((bold(name) + " " * (width - _width(name)) + folded[0]).rstrip())
        lines += [" " * width + line for line in folded[1:]]
    return lines


def _laid_out(texts: Sequence[str], widths: Sequence[int], numbers: Collection[int]) -> list[str]:
    """Return the lines of a row of a table, with texts folded to some widths; numbers stand to the right."""
    lines = []
    for parts in zip_longest(*map(_folded, texts, widths), fillvalue=""):
        padded = []
        for place, (part, width) in enumerate(zip(parts, widths, strict=True)):
            blank = " " * (width - _width(part))
            padded.append(blank + part if place in numbers else part + blank)
        lines.append(_GAP.join(padded).rstrip())
    return lines


def _folded(text: str, width: int) -> list[str]:
    """Return the lines of a text, cut at spaces if possible so that none is wider than this."""
    lines = []
    for line in text.split("\n"):
        rest = line
        while _width(rest) > width:
            end = next(end for end in range(len(rest), 0, -1) if _width(rest[:end]) <= width or end == 1)
            end = rest.rfind(" ", 0, end + 1) + 1 or end
            lines.append(rest[:end].rstrip())
            rest = rest[end:]
        lines.append(rest)
    return lines


def _least_width(texts: Iterable[str]) -> int:
    """Return to how many columns texts are folded at most, which cuts no date."""
    word = max(_width(word) for text in texts for word in text.split() or [""])
    return word if _LEAST_WIDTH < word <= _LONGEST_WORD else _LEAST_WIDTH


def _natural_width(texts: Iterable[str]) -> int:
    return max((_width(line) for text in texts for line in text.split("\n")), default=0)


def _terminal_width() -> int:
    """Return the columns of the terminal; without a terminal, more than any line has."""
    return shutil.get_terminal_size((0, 0)).columns or sys.maxsize


def _width(text: str) -> int:
    """Return how many columns a text takes in a terminal."""
    return sum(2 if east_asian_width(sign) in "FW" else 1 for sign in text if not combining(sign))


_FORMATS: dict[str, Callable[[Any], str]] = {
    "nbytes": size,
    "idle": duration,
    "time": lambda time: str(time[:16].replace("T", " ")),
    "digest": lambda digest: f"sha256:{digest[:12]}",
    "sha256": lambda digest: str(digest[:12]),
    "tags": ", ".join,
}


def cell(name: str, value: Any) -> str:
    """Format a value of a document for people."""
    if value is None:
        return "-"
    if name in _FORMATS:
        return _FORMATS[name](value)
    return f"{value:,}" if isinstance(value, int) else text_of(value)


def text_of(value: Any) -> str:
    """Format a JSON value as it is written; a dict has a line for each key."""
    if isinstance(value, Mapping):
        return "\n".join(f"{key} = {text_of(item)}" for key, item in flattened(value))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def version_document(ref: DataRef[Any]) -> dict[str, Any]:
    return {
        "reference": ref.reference,
        "dataset_id": ref.dataset_id,
        "version": ref.dataset_version,
        "digest": ref.digest,
        "records": len(ref),
        "nbytes": ref.nbytes,
    }


def version_result(ref: DataRef[Any], done: str, before: Mapping[str, VersionInfo] | None = None) -> Result:
    """Return the result of a command that makes a version, unless it exists."""
    known = (before or {}).get(ref.dataset_version)
    is_new = known is None or known.digest != ref.digest
    how = done if is_new else "exists already"
    line = f"{ref.dataset_id}@{ref.dataset_version} {how}: {counted(len(ref), 'record')}, {size(ref.nbytes)}"
    return Result({**version_document(ref), done: is_new}, [line, ref.reference])
