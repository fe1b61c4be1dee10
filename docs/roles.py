"""Prepare docstrings for the site.

This turns Sphinx roles into links, splits entries such as ``a, b: ...`` into one for each name, and shows the options
of ``stream``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

from griffe import Extension, Module, Object

import cachelayer

sys.path.insert(0, str(Path(__file__).parent))

from public_names import show_stream_options

ROLE = re.compile(r":(?:class|func|meth|mod|data):`([\w.]+)`")
ENTRY = re.compile(r"^( +)(\w+(?:, \w+)+): (.*(?:\n\1 +.*)*)", re.M)
LITERAL = re.compile(r"^::\n", re.M)


def _link(role: re.Match[str]) -> str:
    name = role[1]
    package, _, rest = name.partition(".")
    public = package == "cachelayer" and rest.partition(".")[0] in cachelayer.__all__
    return f"[`{rest}`][{name}]" if public else f"`{name}`"


def _each(entry: re.Match[str]) -> str:
    indent, names, text = entry.groups()
    return "\n".join(f"{indent}{name}: {text}" for name in names.split(", "))


class Roles(Extension):
    """The extension of griffe that ``mkdocs.yml`` names."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = LITERAL.sub("", ENTRY.sub(_each, ROLE.sub(_link, obj.docstring.value)))

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        show_stream_options(pkg)
