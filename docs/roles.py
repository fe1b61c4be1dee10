"""What the site makes of docstrings: the roles of Sphinx become links, and what is said of ``a, b`` is said of each."""

from __future__ import annotations

import re
from typing import Any

from griffe import Extension, Object

import cachelayer

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
    """Named in ``mkdocs.yml``."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = LITERAL.sub("", ENTRY.sub(_each, ROLE.sub(_link, obj.docstring.value)))
