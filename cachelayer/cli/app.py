"""The application, what all commands share, and the script ``cachelayer``."""

from __future__ import annotations

import inspect
import io
import os
import sys
import traceback
import warnings
from collections.abc import Callable, Collection
from contextlib import nullcontext, redirect_stdout
from typing import Annotated, Any

import typer
from rich.markup import escape
from typer.core import TyperGroup

import cachelayer
from cachelayer.cli import output
from cachelayer.cli.options import in_options, option, parameters
from cachelayer.cli.output import Result
from cachelayer.errors import CacheLayerError, CacheLayerWarning, CorruptionError, FormatError, StorageError
from cachelayer.progress import harmless


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


def command(panel: str, *examples: str) -> Callable[[Callable[..., Result]], Callable[..., None]]:
    """Make a function that returns a result a command of the same name, in a panel of the help and with examples.

    With ``--json``, all that the function prints goes to stderr, so that stdout holds only the document.
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., None]:
        taken = [*parameters(function), option("as_json"), option("show_traceback")]
        names = {one.name for one in taken}

        def run(*, as_json: bool, show_traceback: bool, **given: Any) -> None:
            with warnings.catch_warnings():
                warnings.simplefilter("always", CacheLayerWarning)
                warnings.showwarning = lambda message, *_, **__: output.problem(
                    "warning", in_options(str(message), names)
                )
                try:
                    with redirect_stdout(sys.stderr) if as_json else nullcontext():
                        result = function(**given)
                except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - each kind has its code
                    if show_traceback:
                        traceback.print_exc()
                    code = _report(error, names)
                else:
                    code = result.code if output.write(result, as_json=as_json) else output.FAILURE
            raise typer.Exit(code)

        run.__signature__ = inspect.Signature(taken)  # type: ignore[attr-defined]
        name = function.__name__.strip("_").replace("_", "-")
        summary = " ".join(escape(function.__doc__ or "").split())
        lines = "\n".join(f"  $ cachelayer {name} {escape(example)}" for example in examples)
        return app.command(
            name,
            help=f"{summary}\n\n\b\nExamples:\n{lines}",
            short_help=summary.partition(". ")[0].rstrip("."),
            rich_help_panel=panel,
        )(run)

    return decorate


def _report(error: BaseException, options: Collection[str]) -> int:
    """Print an error of a command with these options on stderr, and return its exit code."""
    if isinstance(error, KeyboardInterrupt | typer.Abort):
        output.problem("interrupted", "run the same command again: it continues after what is finished, if anything")
        return output.INTERRUPTED
    if isinstance(error, CacheLayerError):
        output.problem("error", in_options(str(error), options))
        return output.FAILURE if isinstance(error, StorageError | CorruptionError | FormatError) else output.USAGE
    if isinstance(error, SystemExit):
        output.problem("error", f"the program called sys.exit({error.code!r}), which ends no build: return instead")
        return output.USAGE
    traceback.print_exception(error)
    output.problem("error", "this is a bug in cachelayer: please report it with the lines above")
    return output.BUG


def main() -> None:
    """Run the script ``cachelayer``."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # As Python does for stderr: a character that the output cannot encode is shown as its escape.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="cachelayer")
    except OSError as error:
        # Typer prints help by itself, and it may fail as what commands print.
        output.cannot_print(error)
        sys.exit(output.FAILURE)
    except SystemExit as end:
        if end.code == output.INTERRUPTED:
            # Threads that wait for the network would hold the process until their requests end.
            for stream in (sys.stdout, sys.stderr):
                with harmless():
                    stream.flush()
            os._exit(output.INTERRUPTED)
        raise
