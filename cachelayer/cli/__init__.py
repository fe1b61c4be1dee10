"""The command line: a module for each group of commands, and their output. The packages below do the work."""

from cachelayer.cli import change_versions, inspect_versions, this_machine  # noqa: F401
from cachelayer.cli.app import main

__all__ = ["main"]
