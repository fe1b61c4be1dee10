"""Read the public names of the package from its source: no framework is imported.

``python docs/public_names.py [PACKAGE]`` prints the names without an example in their docstring: those
of a package such as ``streams``, or all.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, cast

import griffe

import cachelayer
from cachelayer.views.mix import Mixture
from cachelayer.views.sampling import Sampled
from cachelayer.views.view import View

ROOT = Path(__file__).parents[1]


@cache
def package() -> griffe.Module:
    """Return the package, as griffe reads it."""
    loaded = griffe.load("cachelayer", search_paths=[ROOT], allow_inspection=False)
    show_stream_options(cast(griffe.Module, loaded))
    return cast(griffe.Module, loaded)


def show_stream_options(loaded: griffe.Module) -> None:
    """Give each ``stream`` the keywords and defaults of ``make_options`` that it takes, in place of ``**options``."""
    listed = loaded["streams.stream_options.make_options"].parameters
    for owner in (View, Mixture, Sampled):
        method = loaded[f"{owner.__module__.partition('.')[2]}.{owner.__name__}.stream"]
        shown = inspect.signature(owner.stream).parameters
        own = [each for each in method.parameters if each.name in ("self", "global_batch_size")]
        is_keyword = griffe.ParameterKind.keyword_only
        keywords = [each for each in listed if each.kind is is_keyword and each.name in shown]
        method.parameters = griffe.Parameters(*own, *keywords)
        method.overloads = None


def modules() -> list[str]:
    """Return the modules, below ``cachelayer``, that have public names of their own."""
    adapters = [name for name in package()["adapters"].modules if not name.startswith("_")]
    with_names = [name for name in adapters if package()[f"adapters.{name}"].exports is not None]
    return ["engines", "testing", *(f"adapters.{name}" for name in sorted(with_names))]


def exported() -> dict[str, Any]:
    """Return what users import, by the name that they import it by."""
    names = {f"cachelayer.{name}": package()[name] for name in cachelayer.__all__}
    for module in modules():
        names |= {f"cachelayer.{module}.{name}": package()[f"{module}.{name}"] for name in package()[module].exports}
    return {name: resolved(obj) for name, obj in names.items()}


def resolved(obj: Any) -> Any:
    """Return what an imported name stands for."""
    return obj.final_target if obj.is_alias else obj


def is_documented(member: Any) -> bool:
    """Return whether a member of a class is a method or a property; a field says beside itself what it is."""
    return member.is_function or "property" in member.labels


def methods(cls: Any) -> dict[str, Any]:
    """Return the methods and properties of a class that have a docstring, also those of its bases in the package."""
    by_name = {name: documented_member(cls, name) for name in cls.all_members if not name.startswith("_")}
    return {name: member for name, member in by_name.items() if is_documented(member) and member.docstring is not None}


def refers_to_another(member: Any) -> bool:
    """Return whether a docstring only says where the same is explained, and shown."""
    return bool(member.docstring.value.startswith("See :meth:"))


def members(cls: Any) -> dict[str, Any]:
    """Return the methods and properties that the page shows of a class.

    Of a suite of tests it shows none: the example of the class says what a subclass has.
    """
    return {} if cls.path.startswith("cachelayer.testing.") else methods(cls)


def documented_member(cls: Any, name: str) -> Any:
    """Return a member of a class: that of a base, if the class has it anew without a docstring."""
    several = [resolved(owner.members[name]) for owner in [cls, *cls.mro()] if name in owner.members]
    return next((member for member in several if member.docstring is not None), several[0])


def all_names() -> dict[str, Any]:
    """Return every public function, class, method and property, by where it is defined."""
    names = {"cachelayer": package()}
    for obj in exported().values():
        if not (obj.is_class or obj.is_function):
            continue
        names[obj.path] = obj
        if obj.is_class and ".testing." not in obj.path:
            names |= {member.path: member for member in methods(obj).values() if not refers_to_another(member)}
    return names


def everything() -> Iterator[Any]:
    """Yield every module, class, function and attribute of the package, public or not."""
    waiting = [package()]
    while waiting:
        obj = waiting.pop()
        yield obj
        waiting += [member for member in obj.members.values() if not member.is_alias]


def has_example(obj: Any) -> bool:
    return obj.docstring is not None and ">>> " in obj.docstring.value


def without_examples(package_name: str = "") -> list[str]:
    """Return the public names that lack an example: those of a package, or all. A property needs none."""
    names = [name for name, obj in all_names().items() if "property" not in obj.labels and not has_example(obj)]
    return sorted(name for name in names if name.startswith(f"cachelayer.{package_name}"))


if __name__ == "__main__":
    print(*without_examples(*sys.argv[1:]), sep="\n")
