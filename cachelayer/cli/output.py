"""Print answers: tables for people or one JSON document for scripts on stdout, problems on stderr."""

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

from cachelayer.access.dataref import DataRef
from cachelayer.drawing.text import size

SUCCESS = 0
FINDING = 1
USAGE = 2
FAILURE = 3
BUG = 4
INTERRUPTED = 130

_WIDE = 500
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True)
class Answer:
    """The result of a command.

    Args:
        document: for scripts: a value that JSON can hold.
        shown: for people: texts and renderables of rich, printed one below the other.
        code: the exit code.
    """

    document: Any
    shown: Sequence[RenderableType] = ()
    code: int = SUCCESS


def write(answer: Answer, *, as_json: bool) -> None:
    """Print an answer on stdout."""
    if as_json:
        sys.stdout.write(json.dumps(answer.document, indent=2, allow_nan=False) + "\n")
        return
    console = _console(sys.stdout)
    for renderable in answer.shown:
        # Let the terminal wrap long references: they can then be copied in one piece.
        console.print(renderable, soft_wrap=isinstance(renderable, str | Text))


def problem(kind: str, text: str) -> None:
    """Print a line on stderr: ``error: ...`` or ``warning: ...``."""
    style = "red" if kind == "error" else "yellow"
    _console(sys.stderr).print(f"{kind}: {text}", style=style, soft_wrap=True)


def _console(stream: Any) -> Console:
    """Return a console for a stream. Without a terminal it is very wide, so that piped tables are not cut."""
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDE
    # Texts are data: [brackets] and :words: in them are not markup.
    return _TextConsole(file=stream, width=width, markup=False, emoji=False, highlight=False)


class _TextConsole(Console):
    """A console that replaces control characters, so that stored text cannot control the terminal."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            if segment.control:
                yield segment
            else:
                yield Segment(_CONTROL.sub("\N{REPLACEMENT CHARACTER}", segment.text), segment.style)


def table(*columns: str, right: Iterable[str] = ()) -> Table:
    empty = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for heading in columns:
        empty.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    return empty


def facts(rows: Iterable[tuple[str, str]]) -> Text:
    """Lay out names and values, one pair a line. More lines of a value go below its first line."""
    named = list(rows)
    width = max((len(name) for name, _ in named), default=0) + 2
    lines = []
    for name, value in named:
        first, *others = value.split("\n")
        lines.append(Text.assemble((name.ljust(width), "bold"), first))
        lines += [Text(" " * width + other) for other in others]
    return Text("\n").join(lines)


def version_document(ref: DataRef[Any]) -> dict[str, Any]:
    return {
        "reference": ref.reference,
        "dataset_id": ref.dataset_id,
        "version": ref.dataset_version,
        "digest": ref.digest,
        "records": len(ref),
        "nbytes": ref.nbytes,
    }


def version_answer(ref: DataRef[Any], how: str, **more: Any) -> Answer:
    """Return the answer of a command that has made a version."""
    line = f"{ref.dataset_id}@{ref.dataset_version} {how}: {count(len(ref), 'record')}, {size(ref.nbytes)}"
    return Answer({**version_document(ref), **more}, [line, ref.reference])


def count(number: int, noun: str = "") -> str:
    """Format a number with its noun: ``60,000``, ``1 shard``, ``2 shards``."""
    return f"{number:,} {noun}{'s' * (number != 1)}" if noun else f"{number:,}"
