"""The application: all commands, in the order in which ``--help`` lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from cachelayer.cli import (
    bench,
    build_and_import,
    cp_and_mirror,
    demo,
    doctor,
    head_sample_stats,
    ls_and_log,
    rewrite,
    show,
    tag_rm_gc,
    verify_and_diff,
)

_EXIT_CODES = (
    "Exit codes: 0 success, 1 a finding (damage, a difference), 2 a mistake in the command, 3 the storage failed or is "
    "damaged, 4 a bug in cachelayer, 130 interrupted."
)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "Build": {"build": build_and_import.build, "import": build_and_import.import_},
    "List": {"ls": ls_and_log.ls, "log": ls_and_log.log, "show": show.show},
    "Inspect": {
        "head": head_sample_stats.head,
        "sample": head_sample_stats.sample,
        "stats": head_sample_stats.stats,
        "bench": bench.bench,
    },
    "Check": {"verify": verify_and_diff.verify, "diff": verify_and_diff.diff},
    "Manage": {
        "tag": tag_rm_gc.tag,
        "cp": cp_and_mirror.cp,
        "mirror": cp_and_mirror.mirror,
        "rewrite": rewrite.rewrite,
        "rm": tag_rm_gc.rm,
        "gc": tag_rm_gc.gc,
    },
    "Help": {"doctor": doctor.doctor, "demo": demo.demo},
}

for _panel, _commands in _PANELS.items():
    for _name, _function in _commands.items():
        app.command(_name, rich_help_panel=_panel)(_function)


def _print_version(wanted: bool) -> None:
    if wanted:
        import cachelayer

        typer.echo(f"cachelayer {cachelayer.__version__}")
        raise typer.Exit


@app.callback()
def about(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="Print the version.")
    ] = False,
) -> None:
    """Build, inspect and copy versioned, random-access datasets from any sequential source."""
