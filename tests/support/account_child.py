"""A process that says what is known of programs, or what differs from what another process has said of them.

Usage: account_child.py FOLDER [BEFORE.json]
"""

from __future__ import annotations

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


def main(folder: str, before: str = "") -> None:
    sys.dont_write_bytecode = True
    known = json.loads(Path(before).read_text()) if before else {}
    said: dict[str, Any] = {}
    for each in sorted(Path(folder).iterdir()):
        recipe = recipe_of(each)
        if before:
            said[each.name] = [phrase for phrases in recipe.changes(known[each.name]).values() for phrase in phrases]
        else:
            said[each.name] = recipe.provenance
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
