"""The application: all commands, in the order in which ``--help`` lists them.

The module of a command imports numpy and the library, so it is imported when that command runs or shows its own help.
``cachelayer --help`` needs none of them.
"""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup
from typer.main import get_command

_EXIT_CODES = (
    "Exit codes: 0 success, 1 a finding (damage, a difference), 2 a mistake in the command, 3 the storage failed or is "
    "damaged, 4 a bug in cachelayer, 130 interrupted."
)

# By panel: each command, its function, and the first line of that function's docstring.
PANELS: dict[str, dict[str, tuple[str, str]]] = {
    "Build": {
        "build": (
            "build_and_import.build",
            "Call a function that returns a source, and publish its elements as a version.",
        ),
        "import": (
            "build_and_import.import_",
            "Publish the records of files as a version: TFRecord, Parquet, Arrow, WebDataset, CSV, JSON lines, "
            "a folder.",
        ),
    },
    "List": {
        "ls": (
            "inspect_versions.ls",
            "List the datasets of a storage, or a dataset's versions and unfinished builds (STORAGE/ID), newest last.",
        ),
        "log": (
            "inspect_versions.log",
            "Show the history of a dataset, oldest first: who published, tagged, copied or deleted what, and when.",
        ),
        "show": (
            "inspect_versions.show",
            "Show a version: its element spec, counts, sizes, shards, tags and how it was made.",
        ),
    },
    "Inspect": {
        "head": ("look_at_records.head", "Show the first records."),
        "sample": (
            "look_at_records.sample",
            "Show records drawn at random: the first ones of a stream shuffled with this seed.",
        ),
        "stats": (
            "look_at_records.stats",
            "Show statistics of the records: sizes, ranges, lengths, nulls and histograms, in one pass.",
        ),
        "view": (
            "view.view",
            "Show a storage as a page in the browser: versions, records, statistics, the order of training.",
        ),
    },
    "Check": {
        "verify": (
            "inspect_versions.verify",
            "Read every record of a version, and compare every checksum. Exit code 1 if something is damaged.",
        ),
        "diff": (
            "inspect_versions.diff",
            "Compare two versions: spec, counts, shards, provenance. Exit code 1 if the data differ.",
        ),
    },
    "Manage": {
        "tag": ("manage_versions.tag", "Make a tag name a version, or remove the tag."),
        "cp": (
            "manage_versions.cp",
            "Copy a version to another storage, with the same shards and digest. Shards that are there are "
            "not sent again.",
        ),
        "mirror": (
            "manage_versions.mirror",
            "Copy all shards of a version to the local disk, before training starts. Exit code 1 if there is no room.",
        ),
        "rewrite": (
            "manage_versions.rewrite",
            "Write the records of a version into shards of their own: shuffled, compressed or cut otherwise.",
        ),
        "rm": (
            "manage_versions.rm",
            "Delete a version. Once the grace is over, gc deletes the files that no other version has.",
        ),
        "gc": (
            "manage_versions.gc",
            "Delete the remains of failed, killed and interrupted builds and copies, and deleted versions after "
            "their grace.",
        ),
    },
    "Help": {
        "doctor": (
            "doctor.doctor",
            "Show versions and local copies; probe a storage. Exit code 1 if it cannot be published to.",
        ),
        "demo": (
            "demo.demo",
            "Cache a sequence, stop reading in mid-epoch, resume in another process, and prove that nothing was lost.",
        ),
    },
}


class _OnDemand(TyperGroup):
    """A group that lists commands by their summaries, and imports a command when it is called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] in self.commands:
            self.commands[args[0]] = load(args[0])
        return super().resolve_command(ctx, args)


app = typer.Typer(
    cls=_OnDemand,
    no_args_is_help=True,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    epilog=_EXIT_CODES,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def load(name: str) -> Any:
    """Import a command."""
    [(path, _)] = [commands[name] for commands in PANELS.values() if name in commands]
    module, _, function = path.partition(".")
    alone = typer.Typer(add_completion=False, rich_markup_mode="rich", pretty_exceptions_enable=False)
    alone.command(name)(getattr(import_module(f"cachelayer.cli.{module}"), function))
    return get_command(alone)


def _listed() -> None:
    """Stand for a command in the list of all."""


for _panel, _commands in PANELS.items():
    for _name, (_, _summary) in _commands.items():
        app.command(_name, help=_summary, rich_help_panel=_panel)(_listed)


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
