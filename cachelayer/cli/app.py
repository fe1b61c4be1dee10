"""The application: every command, in the order in which ``--help`` shows them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import typer

from cachelayer.cli import bench, checking, demo, doctor, listing, look, making, managing, moving, showing

_EXIT_CODES = (
    "Exit codes: 0 well, 1 a finding (damage, a difference), 2 a mistake in what was asked, 3 the storage failed or is "
    "damaged, 4 a mistake in cachelayer, 130 interrupted."
)

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_PANELS: dict[str, dict[str, Callable[..., None]]] = {
    "Make": {"build": making.build, "import": making.import_},
    "What there is": {"ls": listing.ls, "log": listing.log, "show": showing.show},
    "Look": {"head": look.head, "sample": look.sample, "stats": look.stats, "bench": bench.bench},
    "Check": {"verify": checking.verify, "diff": checking.diff},
    "Manage": {"tag": managing.tag, "cp": moving.cp, "mirror": moving.mirror, "rm": managing.rm, "gc": managing.gc},
    "Try": {"doctor": doctor.doctor, "demo": demo.demo},
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
    """Versioned, random-access datasets out of any sequential source."""
