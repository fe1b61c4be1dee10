"""The application, what all commands share, and the script ``cachelayer``."""

from __future__ import annotations

import functools
import inspect
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable
from contextlib import nullcontext, redirect_stdout
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

import cachelayer
from cachelayer.cli import output
from cachelayer.cli.options import OPTIONS
from cachelayer.cli.output import Answer
from cachelayer.errors import CacheLayerError, CacheLayerWarning, CorruptionError, FormatError, StorageError


class Commands(TyperGroup):
    """The commands; one that is called `delete` in Python says what it is called here."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] == "delete":
            ctx.fail("No such command 'delete': it is called rm.")
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog="Exit codes: 0 success, 1 a finding (damage, a difference), 2 a mistake in the command, 3 the storage "
    "failed or is damaged, 4 a bug in cachelayer, 130 interrupted.",
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cachelayer {cachelayer.__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Build, inspect and copy versioned, random-access datasets from any sequential source."""


def command(
    panel: str, *examples: str, options: str = "", name: str | None = None
) -> Callable[[Callable[..., Answer]], Callable[..., None]]:
    """Make a function that returns an answer a command.

    With ``--json``, all that the function prints goes to stderr, so that stdout holds only the document.

    Args:
        panel: the group of commands in the help.
        examples: lines for the help.
        options: names of options of the table that the function takes as keywords.
        name: the name, if it is another than that of the function.
    """

    def decorate(function: Callable[..., Answer]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, as_json: bool, show_traceback: bool, **kwargs: Any) -> None:
            with warnings.catch_warnings():
                warnings.showwarning = _show_warning
                try:
                    with redirect_stdout(sys.stderr) if as_json else nullcontext():
                        answer = function(*args, **kwargs)
                    output.write(answer, as_json=as_json)
                    code = answer.code
                except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - each kind has its code
                    if show_traceback:
                        traceback.print_exc()
                    code = _report(error)
            raise typer.Exit(code)

        signature = inspect.signature(function, eval_str=True)
        shared = {name: OPTIONS[name] for name in (*options.split(), "as_json", "show_traceback")}
        own = [one for name, one in signature.parameters.items() if name not in shared and one.kind != one.VAR_KEYWORD]
        run.__signature__ = signature.replace(parameters=[*own, *shared.values()])  # type: ignore[attr-defined]
        lines = "\n".join(f"  $ {example}" for example in examples)
        summary = " ".join(escape(function.__doc__ or "").split())
        help_text = f"{summary}\n\n\b\nExamples:\n{escape(lines)}"
        short = summary.partition(". ")[0].rstrip(".")
        return app.command(name, help=help_text, short_help=short, rich_help_panel=panel)(run)

    return decorate


def _report(error: BaseException) -> int:
    """Print an error on stderr, and return its exit code."""
    if isinstance(error, BrokenPipeError | typer.BadParameter):
        raise error
    if isinstance(error, KeyboardInterrupt):
        output.problem("interrupted", "run the same command again: it continues after what is finished, if anything")
        return output.INTERRUPTED
    if isinstance(error, typer.Abort):
        output.problem("interrupted", "nothing was done")
        return output.INTERRUPTED
    if isinstance(error, CacheLayerError):
        output.problem("error", str(error))
        failed = isinstance(error, StorageError | CorruptionError | FormatError)
        return output.FAILURE if failed else output.USAGE
    if isinstance(error, SystemExit):
        output.problem("error", f"the program called sys.exit({error.code!r}): nothing was done")
        return output.USAGE
    traceback.print_exception(error)
    output.problem("error", "this is a bug in cachelayer: please report it with the lines above")
    return output.BUG


_plain_warning = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
    if issubclass(category, CacheLayerWarning):
        output.problem("warning", str(message))
    else:
        _plain_warning(message, category, *place, **options)


def main() -> None:
    """Run the script ``cachelayer``."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As Python does for stderr: a character that the output cannot encode is shown as its escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="cachelayer")
    except SystemExit as end:
        if end.code == output.INTERRUPTED:
            # Threads that wait for the network would hold the process until their requests end.
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(output.INTERRUPTED)
        raise
