"""Print answers: tables for people or one JSON document for scripts on stdout, problems on stderr."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, is_dataclass
from typing import Any
from unicodedata import combining, east_asian_width

import click

from cachelayer.cli.exit_codes import ExitCode
from cachelayer.drawing.text import counted, duration
from cachelayer.support.json_values import flattened
from cachelayer.support.progress import harmless, size
from cachelayer.versions.snapshot import VersionInfo
from cachelayer.views.dataref import DataRef

_RULE = 80
"""The longest line below the heading of a table."""
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
        with harmless():
            click.secho(_printable(f"{kind}: {text}"), fg="red" if kind == "error" else "yellow", err=True)


def _printable(text: str) -> str:
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text)


def bold(text: str) -> str:
    """Return a text that is bold in a terminal, and plain elsewhere."""
    return click.style(text, bold=True)


def table(rows: Iterable[Any], *names: str) -> str:
    """Lay out a table: a line for each document or dataclass, with the values of these names.

    The values of the last column may be long. The terminal wraps them, so that URLs can be copied in one piece.
    """
    documents = [row if isinstance(row, dict) else vars(row) for row in rows]
    *columns, last = [_column(name, documents) for name in names]
    begins = ["".join(cells) for cells in zip(*columns, strict=True)]
    below = "\n" + " " * _width(begins[0])
    lines = [f"{begin}{value.replace(chr(10), below)}".rstrip() for begin, value in zip(begins, last, strict=True)]
    widest = max(_width(line) for text in lines for line in text.split("\n"))
    return "\n".join([bold(lines[0]), "─" * min(widest, _RULE), *lines[1:]])


def _column(name: str, documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the heading and the values of a column, padded to one width, with the space after the column."""
    heading = name.replace("nbytes", "size").replace("_", " ")
    texts = [heading, *(cell(name, document.get(name)) for document in documents)]
    width = max(map(_width, texts))
    is_number = any(isinstance(document.get(name), int) for document in documents)
    blanks = [" " * (width - _width(text)) for text in texts]
    pairs = zip(texts, blanks, strict=True)
    return [f"{blank}{text}   " if is_number else f"{text}{blank}   " for text, blank in pairs]


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


def facts(rows: Iterable[tuple[str, str]]) -> str:
    """Lay out names and values, a line for each pair. Further lines of a value go below its first line."""
    rows = list(rows)
    width = max((len(name) for name, _ in rows), default=0) + 2
    below = "\n" + " " * width
    return "\n".join(bold(name.ljust(width)) + value.replace("\n", below) for name, value in rows)


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
