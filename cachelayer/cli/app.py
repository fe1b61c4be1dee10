"""The application, the decorator of its commands, and the script ``cachelayer``."""

from __future__ import annotations

import io
import os
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import cachelayer
from cachelayer.cli import output
from cachelayer.cli.exit_codes import ExitCode, code_of
from cachelayer.cli.options import opened, parameters_of
from cachelayer.cli.output import Result
from cachelayer.errors import CacheLayerError, CacheLayerWarning
from cachelayer.support.logs import logging_to
from cachelayer.support.progress import HARMLESS

PROBE = "cachelayer-probe"
"""The name of the thread of ``doctor`` that probes a storage."""
_PANELS = ("Build", "List", "Inspect", "Check", "Manage", "Help")
_OUTPUT = (
    click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON document, for scripts."),
    click.Option(["--quiet", "-q"], is_flag=True, help="Print errors and warnings alone, and the document of --json."),
    click.Option(["--traceback", "show_traceback"], is_flag=True, help="Show where an error was raised."),
)


class Commands(click.Group):
    """The commands, in panels of the help."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.panels: dict[str, str] = {}
        """The panel of each command."""

    def resolve_command(self, ctx: click.Context, args: list[str]) -> Any:
        # In Python the method is called so.
        if args[0] == "delete":
            ctx.fail("No such command 'delete': it is called rm.")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        for panel in _PANELS:
            names = [name for name in self.commands if self.panels[name] == panel]
            with formatter.section(panel):
                formatter.write_dl([(name, str(self.commands[name].short_help)) for name in names])


@click.group(
    cls=Commands,
    invoke_without_command=True,
    epilog=f"Exit codes: {', '.join(f'{code.value} {code.meaning}' for code in ExitCode)}.",
    context_settings={"help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(cachelayer.__version__, message="cachelayer %(version)s")
@click.option("--log-file", type=click.Path(dir_okay=False, path_type=Path), help="Append a log, of each request too.")
@click.pass_context
def app(context: click.Context, log_file: Path | None) -> None:
    """Build, inspect and copy versioned, random-access datasets from any sequential source."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        context.color = False
    if log_file is not None:
        try:
            context.with_resource(logging_to(log_file))
        except CacheLayerError as error:
            raise click.UsageError(str(error)) from error
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def command(
    name: str, panel: str, *examples: str, more: Sequence[str] = ()
) -> Callable[[Callable[..., Result]], click.Command]:
    """Decorate a function that returns a result: it becomes a command, with the parameters that it names, and more.

    With ``--json``, everything that the function prints goes to stderr, so that stdout holds only the document.
    """

    def decorate(function: Callable[..., Result]) -> click.Command:
        parameters = parameters_of(function, more)

        def run(*, as_json: bool, quiet: bool, show_traceback: bool, **arguments: Any) -> None:
            if quiet and "progress" in arguments:
                arguments["progress"] = False
            with warnings.catch_warnings():
                warnings.simplefilter("always", CacheLayerWarning)
                warnings.showwarning = lambda message, *_, **__: output.problem("warning", str(message))
                try:
                    # Worker processes put the null device in the place of a stdout that is closed.
                    printed = sys.stderr if as_json else sys.stdout
                    with redirect_stdout(io.StringIO() if quiet else printed):
                        result = function(**opened(parameters, arguments))
                except (Exception, KeyboardInterrupt, SystemExit) as error:  # noqa: BLE001 - each kind has its code
                    if show_traceback:
                        traceback.print_exc()
                    code = _report(error)
                else:
                    shown = replace(result, text=()) if quiet else result
                    code = result.code if output.write(shown, as_json=as_json) else ExitCode.STORAGE
            click.get_current_context().exit(code)

        summary = " ".join((function.__doc__ or "").split())
        lines = "\n".join(f"  $ cachelayer {name} {example}".rstrip() for example in examples)
        app.panels[name] = panel
        return app.command(
            name,
            help=f"{summary}\n\n\b\nExamples:\n{lines}",
            short_help=summary.partition(". ")[0].rstrip("."),
            params=[*parameters, *_OUTPUT],
        )(run)

    return decorate


def _report(error: BaseException) -> ExitCode:
    """Print the error of a command on stderr, and return its exit code."""
    code = ExitCode.INTERRUPTED if isinstance(error, click.Abort) else code_of(error)
    if code is ExitCode.INTERRUPTED:
        advice = "run the same command again: it continues after what is finished, if anything"
        output.problem("interrupted", str(error) or advice)
    elif isinstance(error, SystemExit):
        output.problem("error", f"the program called sys.exit({error.code!r}), which ends no build: return instead")
    elif code is ExitCode.BUG:
        traceback.print_exception(error)
        output.problem("error", "this is a bug in cachelayer: please report it with the lines above")
    else:
        output.problem("error", str(error))
    return code


def main() -> None:
    """Run the script ``cachelayer``."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # Show a character that the output cannot encode as its escape, as Python does on stderr.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        app(prog_name="cachelayer")
    except OSError as error:
        # Click itself prints the help, which may fail like the output of commands.
        output.cannot_print(error)
        sys.exit(ExitCode.STORAGE)
    except SystemExit as end:
        is_asking = any(thread.name == PROBE for thread in threading.enumerate())
        if end.code == ExitCode.INTERRUPTED or is_asking:
            # Threads that wait for the network would hold the process until their requests end.
            for stream in (sys.stdout, sys.stderr):
                with HARMLESS:
                    stream.flush()
            os._exit(int(end.code or 0))
        raise
