"""Modules of a user, as they are before and after an edit."""

from itertools import count
from pathlib import Path
from typing import Any

NUMBERS = count()


def load_code(folder: Path, source: str, *changes: tuple[str, str], name: str = "module") -> dict[str, Any]:
    """Run the source of a module, with some texts changed, in a file of its own; return what it defines."""
    for old, new in changes:
        assert old in source
        source = source.replace(old, new)
    path = folder / f"{name}{next(NUMBERS)}.py"
    path.write_text(source)
    names: dict[str, Any] = {"__name__": name, "__file__": str(path)}
    exec(compile(source, str(path), "exec"), names)
    return names
