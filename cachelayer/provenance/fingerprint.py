"""Fingerprint what makes a version: a function, and all that it uses in the user's modules."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Self, TypeGuard

from cachelayer.protocols import T
from cachelayer.provenance.contents import described, differences, is_constant, is_data, stored
from cachelayer.provenance.source_code import closure_of, is_users, names_of, read_source, source_hash

_WRAPPERS = (
    (functools.partial, "func"),
    (functools.cached_property, "func"),
    (MethodType, "__func__"),
    (classmethod, "__func__"),
    (staticmethod, "__func__"),
    (property, "fget"),
)
_GROUPS = ("functions", "constants", "state")


@dataclass(frozen=True)
class Fingerprint:
    """The code of a function at one time, and the values that it uses.

    Args:
        functions: a short hash of each function by its qualified name; None if its source is not available.
        arguments: the arguments of its call that are data, each as :func:`.contents.described` returns it.
        constants: the numbers, texts, bytes and tuples of them that they use.
        state: all other values that they use, which code may change, and the attributes of a source object.
        incomparable: names of values of which a part cannot be compared, with the types of these parts.
    """

    functions: Mapping[str, str | None] = field(default_factory=dict)
    arguments: Mapping[str, Any] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(default_factory=dict)
    state: Mapping[str, Any] = field(default_factory=dict)
    incomparable: tuple[str, ...] = ()

    @property
    def digest(self) -> str:
        """One hash of all, from which the names of versions are made."""
        return _hashed([self.functions, self.arguments, self.constants, self.state])

    @property
    def without_state(self) -> Self:
        """The fingerprint of what no code changes."""
        return replace(self, state={})

    @property
    def without_source(self) -> list[str]:
        """The functions whose source is not available."""
        return [name for name, source in self.functions.items() if source is None]

    def to_json(self) -> dict[str, Any]:
        """Return it as it is stored, without the arguments."""
        return {"functions": dict(self.functions), "constants": stored(self.constants), "state": stored(self.state)}

    def unchanged(self, later: Self) -> Self:
        """Return it without the state that has changed since: a build changes what counts how far it has read."""
        same = {name: value for name, value in self.state.items() if later.state.get(name) == value}
        return replace(self, state=same)

    def changes(self, built: Any) -> list[str]:
        """Return a phrase for each change since a version recorded it."""
        recorded = built if isinstance(built, Mapping) else {}
        # The parts are dicts, also in what another program wrote.
        before = {name: recorded[name] if isinstance(recorded.get(name), Mapping) else {} for name in _GROUPS}
        now = self.to_json()
        both = before["state"].keys() & now["state"].keys()
        for each in (before, now):
            each["state"] = {name: each["state"][name] for name in sorted(both)}
        return differences(before, now)


def fingerprint(made: object, arguments: Mapping[str, object] | None = None) -> Fingerprint:
    """Return the fingerprint of a function, of its call with some arguments, or of a source object.

    Everything that the function refers to by name, holds in a closure or as a default counts: values by their content,
    and functions and classes of the user's modules with everything that they refer to. Decorators, partial functions,
    methods and callable objects count with the function inside them, and objects with their attributes. Code of
    libraries does not count.
    """
    return _Walk(innermost(made)).run(made, arguments or {})


def is_users_own(made: object) -> bool:
    """Return whether the user wrote a function, a class, or an object's class."""
    inner = innermost(made)
    if inner is not None and is_users(inner.__code__.co_filename):
        return True
    return not _is(made, FunctionType) and _is_users_class(_class_of(made))


def code_file(made: object) -> Path | None:
    """Return the user's file that defines a function, a class, or an object's class; None if there is none."""
    inner = innermost(made)
    if inner is None and is_users_own(made):
        inner = next(filter(None, map(_method, vars(_class_of(made)).values())), None)
    name = "" if inner is None else inner.__code__.co_filename
    try:
        return Path(name) if name and is_users(name) and Path(name).is_file() else None
    except (OSError, ValueError):
        # No file can have this name: exec made the code.
        return None


def keep_source(function: object) -> None:
    """Read the source of a function that was just defined, before the file can change."""
    inner = innermost(function)
    if inner is not None:
        read_source(inner)


def innermost(function: object) -> FunctionType | None:
    """Return the function inside a decorated or partial function, a method or a callable object."""
    seen: list[object] = []
    found = None
    while function is not None and not any(function is each for each in seen):
        seen.append(function)
        if _is(function, FunctionType):
            found = function
        inner = _inside(function)
        if inner is None and found is None:
            inner = inspect.getattr_static(type(function), "__call__", None)
        function = inner
    return found


def _is_users_class(cls: type) -> bool:
    """Return whether the user wrote a class: its methods, or the module of a class that has none."""
    methods = filter(None, map(_method, vars(cls).values()))
    own = [method.__code__.co_filename for method in methods if method.__module__ == cls.__module__]
    module = sys.modules.get(cls.__module__)
    return any(map(is_users, own or [getattr(module, "__file__", None) or "<frozen>"]))


def _attributes_of(owner: object) -> dict[str, Any]:
    """Return the attributes of an object of a user's class; none of a sequence: its elements are compared."""
    if issubclass(type(owner), (FunctionType, type, Sequence)) or not _is_users_class(type(owner)):
        return {}
    slots = {
        name: slot
        for cls in reversed(type(owner).__mro__)
        for name, slot in vars(cls).items()
        if type(slot) is MemberDescriptorType
    }
    held = {name: slot.__get__(owner) for name, slot in slots.items() if hasattr(owner, name)}
    return {**held, **getattr(owner, "__dict__", {})}


def _inside(value: object) -> object:
    """Return what a wrapper wraps, or None."""
    for kind, attribute in _WRAPPERS:
        if _is(value, kind):
            return getattr(value, attribute)
    return inspect.getattr_static(value, "__wrapped__", None)


def _is(value: object, kind: type[T]) -> TypeGuard[T]:
    """Return whether a value is of a kind, judging by its type alone: proxies may raise if they are asked."""
    return issubclass(type(value), kind)


def _class_of(made: object) -> type:
    return made if _is(made, type) else type(made)


def _method(value: object) -> FunctionType | None:
    """Return the function inside an attribute of a class; None if the attribute is not a method."""
    return innermost(value) if _is(value, FunctionType) or _inside(value) is not None else None


class _Walk:
    """Collects everything in the user's modules that a function uses.

    Args:
        called: the function whose defaults are arguments of its call.
    """

    def __init__(self, called: FunctionType | None) -> None:
        self._called = called
        self._functions: defaultdict[str, set[str | None]] = defaultdict(set)
        self._values: dict[str, defaultdict[str, dict[str, Any]]] = {
            group: defaultdict(dict) for group in ("arguments", "constants", "state")
        }
        """The values of each name, by their JSON: several functions may use it for different ones."""
        self._incomparable: dict[str, None] = {}
        self._seen: dict[Any, object] = {}
        self._pending: list[object] = []

    def run(self, made: object, arguments: Mapping[str, object]) -> Fingerprint:
        self._pending.append(made)
        for name, value in arguments.items():
            if is_data(value):
                self._record("arguments", name, value)
            else:
                self._record("state", f"argument {name}", value)
        owner: Any = made
        while isinstance(owner, functools.partial):
            owner = owner.func
        owner = owner.__self__ if isinstance(owner, MethodType) else owner
        if not _is(owner, FunctionType):
            self._pending.append(_class_of(owner))
            for name, value in _attributes_of(owner).items():
                self._record("state", f"attribute {name}", value)
        while self._pending:
            value = self._pending.pop()
            if value is not None and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._take(value)
        functions = {name: _one_hash(hashes) for name, hashes in sorted(self._functions.items())}
        values = {
            group: {name: next(iter(of.values())) if len(of) == 1 else described(sorted(of)) for name, of in by.items()}
            for group, by in self._values.items()
        }
        return Fingerprint(functions, **values, incomparable=tuple(self._incomparable))

    def _take(self, value: object) -> None:
        self._pending.append(_inside(value))
        if _is(value, FunctionType):
            if is_users(value.__code__.co_filename):
                self._function(value)
        elif _is(value, type):
            self._pending += value.__mro__[1:]
            if _is_users_class(value):
                self._class(value)

    def _class(self, cls: type) -> None:
        has_generated = "__dataclass_fields__" in vars(cls) or issubclass(cls, tuple)
        for name, value in vars(cls).items():
            method = _method(value)
            if method is not None and not (has_generated and method.__code__.co_filename == "<string>"):
                self._pending.append(value)
            elif method is None and not _is_special(name) and not inspect.isdatadescriptor(value):
                self._refer(f"{cls.__qualname__}.{name}", value)

    def _function(self, function: FunctionType) -> None:
        code, module = function.__code__, function.__globals__
        name, used = code.co_qualname, names_of(code)
        self._functions[name].add(source_hash(function))
        for each in sorted((used.read - used.stored) & module.keys()):
            if not _is_special(each):
                self._refer(each, module[each], used.attributes)
        for each, value in closure_of(function).items():
            if each not in used.stored:
                self._refer(f"{name}.{each}", value, used.attributes)
        if function is not self._called:
            positional = code.co_varnames[: code.co_argcount]
            defaults = zip(positional[::-1], (function.__defaults__ or ())[::-1], strict=False)
            for each, value in [*defaults, *(function.__kwdefaults__ or {}).items()]:
                self._refer(f"{name}.{each}", value)

    def _refer(self, name: str, value: object, attributes: frozenset[str] = frozenset()) -> None:
        if _is(value, ModuleType):
            module = vars(value)
            key = id(value), attributes
            if key not in self._seen and is_users(module.get("__file__") or "<frozen>"):
                self._seen[key] = value
                for each in sorted(attributes & module.keys()):
                    self._refer(each, module[each], attributes)
        elif _is(value, FunctionType) or _is(value, type):
            self._pending.append(value)
        elif _inside(value) is not None and not isinstance(value, (functools.partial, MethodType)):
            # Other wrappers hold no values besides the function.
            self._pending.append(value)
        else:
            self._record("constants" if is_constant(value) else "state", name, value)

    def _record(self, group: str, name: str, value: object) -> None:
        missed: dict[str, None] = {}
        content = described(value, self._pending.append, lambda kind: missed.update({kind: None}))
        self._values[group][name][json.dumps(content)] = content
        if missed:
            self._incomparable[f"{name} ({', '.join(missed)})"] = None


def _is_special(name: str) -> bool:
    return (name.startswith("_") and name.endswith("_")) or name == "_abc_impl"


def _one_hash(hashes: set[str | None]) -> str | None:
    """Return one hash for all functions of a name; None if the source of one is not available."""
    known = sorted(each for each in hashes if each is not None)
    if len(known) < len(hashes):
        return None
    return known[0] if len(known) == 1 else _hashed(known)[:12]


def _hashed(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
