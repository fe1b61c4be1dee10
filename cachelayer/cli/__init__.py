"""The command line: one module a group of commands, and what they print. Work is done in the packages below."""

from cachelayer.cli import change_versions, inspect_versions, this_machine  # noqa: F401
from cachelayer.cli.app import main

__all__ = ["main"]
