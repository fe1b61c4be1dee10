"""Every command of the command line, imported: for processes that others are forked from."""

from __future__ import annotations

from cachelayer.cli import app

COMMANDS = {name: app.load(name) for commands in app.PANELS.values() for name in commands}
