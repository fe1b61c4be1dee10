"""What commands print: tables for people, one JSON document for scripts; problems go to stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

WELL = 0
FINDING = 1
USAGE = 2
FAILURE = 3
BUG = 4
INTERRUPTED = 130

_WIDE = 500
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Answer:
    """What a command found.

    Args:
        document: for scripts: what JSON can hold.
        shown: for people: texts and renderables of rich, one under another.
        code: the exit code.
    """

    document: Any
    shown: Sequence[RenderableType] = ()
    code: int = WELL


def write(answer: Answer, *, as_json: bool) -> None:
    """Print an answer on stdout."""
    if as_json:
        sys.stdout.write(_json(answer.document) + "\n")
        return
    console = console_of(stderr=False)
    for renderable in answer.shown:
        # A reference that a terminal breaks can still be copied as one; one that is broken here could not.
        console.print(renderable, soft_wrap=isinstance(renderable, str | Text))


def _json(document: Any) -> str:
    text = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)
    try:
        text.encode(sys.stdout.encoding)
    except UnicodeEncodeError:
        # Half a surrogate pair has no bytes anywhere, most characters none in ASCII.
        return json.dumps(document, indent=2, allow_nan=False)
    return text


def problem(kind: str, text: str) -> None:
    """A line on stderr: ``error: ...`` or ``warning: ...``."""
    console_of(stderr=True).print(f"{kind}: {text}", style="red" if kind == "error" else "yellow", soft_wrap=True)


def console_of(*, stderr: bool) -> Console:
    """The console of a stream. What is no terminal is as wide as it takes: tables that are piped are not cut."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    # Texts are data, in which [brackets] and :words: stand for themselves.
    return _TextConsole(file=stream, width=width, markup=False, emoji=False, highlight=False)


class _TextConsole(Console):
    """A console on which texts are nothing but texts: what others stored does not command the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control or not _CONTROL.search(segment.text):
                yield segment
            else:
                yield Segment(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", segment.text), segment.style)


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    """An empty table.

    Args:
        columns: the headings.
        right: those of them whose column is of numbers.
    """
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in columns:
        made.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return made


def facts(rows: Iterable[tuple[str, str]]) -> Text:
    """Names and values, a line each, and further lines of a value under its first."""
    named = list(rows)
    width = max((len(name) for name, _ in named), default=0) + 2
    lines = []
    for name, value in named:
        first, *others = value.split("\n")
        lines.append(Text.assemble((name.ljust(width), "bold"), first))
        lines += [Text(" " * width + other) for other in others]
    return Text("\n").join(lines)


def size(nbytes: int) -> str:
    """Bytes as people read them: ``1.5 GB``, in powers of 1000."""
    number, unit = float(nbytes), "B"
    for unit in ("B", "kB", "MB", "GB", "TB", "PB"):
        if number < 999.5 or unit == "PB":
            break
        number /= 1000
    return f"{number:.0f} {unit}" if unit == "B" or number >= 99.95 else f"{number:.1f} {unit}"


def count(number: int, noun: str = "") -> str:
    """A number with thousands apart, and what it counts: ``60,000``, ``1 shard``, ``2 shards``."""
    return f"{number:,} {noun}{'s' * (number != 1)}" if noun else f"{number:,}"
