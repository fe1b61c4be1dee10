"""Prepare docstrings for the site.

This turns Sphinx roles into links, splits entries such as ``a, b: ...`` into one for each name, and shows the options
of ``stream``.
"""

from __future__ import annotations

import inspect
import re
from typing import Any

from griffe import Extension, GriffeLoader, Module, Object, ParameterKind, Parameters

import cachelayer
from cachelayer.access.mix import Mixture
from cachelayer.access.view import View

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

    def on_package(self, *, pkg: Module, loader: GriffeLoader, **_: Any) -> None:  # noqa: ARG002
        """Show each ``stream`` with the keywords and defaults of ``make_options``."""
        listed = pkg["streams.stream_options.make_options"].parameters
        for owner in (View, Mixture):
            method = pkg[f"{owner.__module__.partition('.')[2]}.{owner.__name__}.stream"]
            shown = inspect.signature(owner.stream).parameters
            own = [each for each in method.parameters if each.name in ("self", "global_batch_size")]
            keywords = [each for each in listed if each.kind is ParameterKind.keyword_only and each.name in shown]
            method.parameters = Parameters(*own, *keywords)
            method.overloads = None
