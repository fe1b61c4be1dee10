"""The command line: one module a group of commands, and what they print. Work is done in the packages below."""

# isort: off
# In the order in which --help lists the commands.
from cachelayer.cli import build_and_import, inspect_versions, manage_versions, view_and_demo  # noqa: F401

# isort: on
from cachelayer.cli.app import main

__all__ = ["main"]
