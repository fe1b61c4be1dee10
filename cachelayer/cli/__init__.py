"""The command line: one module a group of commands, and what they print. Work is done in the packages below."""

from cachelayer.cli.app import main

__all__ = ["main"]
