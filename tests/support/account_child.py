"""A process that says what is known of programs, or what differs from what another process has said of them.

Usage: account_child.py FOLDER, or account_child.py --before BEFORE.json FOLDER...
"""

import importlib
import json
import sys
from pathlib import Path
from typing import Any

from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.recipe import Recipe


def recipe_of(folder: Path) -> Recipe:
    """Import the program in a folder, and return the recipe of its ``rows``."""
    sys.path.insert(0, str(folder))
    try:
        return Recipe.of(importlib.import_module("main").rows, BuildOptions.of({}))
    finally:
        sys.path.remove(str(folder))
        for name, module in [*sys.modules.items()]:
            if str(getattr(module, "__file__", "")).startswith(str(folder)):
                del sys.modules[name]
        importlib.invalidate_caches()


def main(*arguments: str) -> None:
    sys.dont_write_bytecode = True
    if arguments[0] != "--before":
        said: Any = {each.name: recipe_of(each).provenance for each in sorted(Path(arguments[0]).iterdir())}
    else:
        known = json.loads(Path(arguments[1]).read_text())
        said = [differences(Path(folder), known) for folder in arguments[2:]]
    sys.stdout.write(json.dumps(said))


def differences(folder: Path, known: dict[str, Any]) -> dict[str, list[str]]:
    changes = {each.name: recipe_of(each).changes(known[each.name]) for each in sorted(folder.iterdir())}
    return {name: [phrase for phrases in found.values() for phrase in phrases] for name, found in changes.items()}


if __name__ == "__main__":
    main(*sys.argv[1:])
