"""The command line: one module a group of commands, and what they print. Work is done in the packages below."""

from cachelayer.cli import app, change_versions, inspect_versions, this_machine  # noqa: F401
from cachelayer.cli.app import main

_PANELS = ("Build", "List", "Inspect", "Check", "Manage", "Help")
app.app.registered_commands.sort(key=lambda command: _PANELS.index(str(command.rich_help_panel)))

__all__ = ["main"]
