"""Fingerprint what makes a version: a function, and all that it uses in the user's modules."""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any, Self, cast

from cachelayer.provenance.contents import described, is_constant, is_data, is_hash, stored
from cachelayer.provenance.source_code import (
    closure_of,
    is_users,
    names_of,
    read_source,
    source_hash,
)

_WRAPPERS = (
    (functools.partial, "func"),
    (functools.cached_property, "func"),
    (MethodType, "__func__"),
    (classmethod, "__func__"),
    (staticmethod, "__func__"),
    (property, "fget"),
)


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
        return [name for name, found in self.functions.items() if found is None]

    def to_json(self) -> dict[str, Any]:
        """Return it as it is stored, without the arguments."""
        return {"functions": dict(self.functions), "constants": stored(self.constants), "state": stored(self.state)}

    def unchanged(self, later: Self) -> Self:
        """Return it without the state that has changed since: a build changes what counts how far it has read."""
        same = {name: value for name, value in self.state.items() if later.state.get(name) == value}
        return replace(self, state=same)

    def changes(self, built: Any) -> list[str]:
        """Return a phrase for each change since a version recorded it."""
        before, now = _groups(built), self.to_json()
        old, new = before["functions"], now["functions"]
        state = {name: value for name, value in now["state"].items() if name in before["state"]}
        return [
            *(_changed(name, old[name], new[name]) for name in new if name in old and old[name] != new[name]),
            *(f"{name} is new" for name in new if name not in old),
            *(f"{name} is no longer used" for name in old if name not in new),
            *changed_values(before["constants"], now["constants"]),
            *changed_values({name: before["state"][name] for name in state}, state),
        ]


def _changed(name: str, *hashes: str | None) -> str:
    return f"{name} changed" if None not in hashes else f"{name} may have changed: its source was or is not available"


def _groups(stored_code: Any) -> dict[str, dict[str, Any]]:
    """Return the parts of a stored fingerprint; whoever wrote it, they are dicts."""
    found = stored_code if isinstance(stored_code, Mapping) else {}
    names = ("functions", "constants", "state")
    return {name: dict(found[name]) if isinstance(found.get(name), Mapping) else {} for name in names}


def changed_values(before: Mapping[str, Any], now: Mapping[str, Any]) -> Iterator[str]:
    """Yield a phrase for each difference between stored values; values are named only if both are in clear."""
    for name in sorted({*before, *now}):
        old, new = before.get(name), now.get(name)
        if name not in now:
            yield f"{name} is no longer used"
        elif name not in before:
            yield f"{name} is new"
        elif json.dumps(old) != json.dumps(new):
            yield f"{name} changed" if is_hash(old) or is_hash(new) else f"{name} was {old!r} and is {new!r}"


def fingerprint(made: object, arguments: Mapping[str, object] | None = None) -> Fingerprint:
    """Return the fingerprint of a function, of its call with some arguments, or of a source object.

    Everything that the function refers to by name, holds in a closure or as a default counts: values by their content,
    and functions and classes of the user's modules with everything that they refer to. Decorators, partial functions,
    methods and callable objects count with the function inside them, and objects with their attributes. Code of
    libraries does not count.
    """
    walk = _Walk(innermost(made))
    return walk.run(made, arguments or {})


def is_users_own(made: object) -> bool:
    """Return whether the user wrote a function, a class, or an object's class."""
    inner = innermost(made)
    if inner is not None and is_users(inner.__code__.co_filename):
        return True
    cls = cast(type, made) if _is(made, type) else type(made)
    return not _is(made, FunctionType) and is_users_class(cls)


def is_users_class(cls: type) -> bool:
    """Return whether the user wrote a class: its methods, or the module of a class that has none."""
    methods = filter(None, map(_method, vars(cls).values()))
    own = [method.__code__.co_filename for method in methods if method.__module__ == cls.__module__]
    module = sys.modules.get(cls.__module__)
    return any(map(is_users, own or [getattr(module, "__file__", None) or "<frozen>"]))


def code_file(made: object) -> Path | None:
    """Return the user's file that defines a function, a class, or an object's class; None if there is none."""
    inner = innermost(made)
    if inner is None and is_users_own(made):
        cls = cast(type, made) if _is(made, type) else type(made)
        inner = next(filter(None, map(_method, vars(cls).values())), None)
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
    seen: dict[int, object] = {}
    found = None
    while function is not None and id(function) not in seen:
        seen[id(function)] = function
        if _is(function, FunctionType):
            found = cast(FunctionType, function)
        inner = _inside(function)
        if inner is None and found is None:
            inner = inspect.getattr_static(type(function), "__call__", None)
        function = inner
    return found


def attributes_of(owner: object) -> dict[str, Any]:
    """Return the attributes of an object of a user's class; none of a sequence: its elements are compared."""
    if issubclass(type(owner), (FunctionType, type, Sequence)) or not is_users_class(type(owner)):
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


def _is(value: object, kind: type) -> bool:
    """Return whether a value is of a kind, judging by its type alone: proxies may raise if they are asked."""
    return issubclass(type(value), kind)


def _method(value: object) -> FunctionType | None:
    """Return the function inside an attribute of a class; None if the attribute is not a method."""
    return innermost(value) if _is(value, FunctionType) or _inside(value) is not None else None


def _object_of(source: Any) -> Any:
    """Return the object that holds the state of a source: itself, or the object that a method is bound to."""
    while isinstance(source, functools.partial):
        source = source.func
    return source.__self__ if isinstance(source, MethodType) else source


class _Walk:
    """Collects everything in the user's modules that a function uses.

    Args:
        called: the function whose defaults are arguments of its call.
    """

    def __init__(self, called: FunctionType | None) -> None:
        self._called = called
        self._functions: defaultdict[str, set[str | None]] = defaultdict(set)
        self._arguments: dict[str, dict[str, Any]] = {}
        self._constants: dict[str, dict[str, Any]] = {}
        self._state: dict[str, dict[str, Any]] = {}
        """For each name its values, by their JSON: several functions may use it for different ones."""
        self._incomparable: dict[str, None] = {}
        self._seen: dict[Any, object] = {}
        self._pending: list[object] = []

    def run(self, made: object, arguments: Mapping[str, object]) -> Fingerprint:
        self._pending.append(made)
        for name, value in arguments.items():
            is_fixed = is_data(value)
            self._record(name if is_fixed else f"argument {name}", value, self._arguments if is_fixed else self._state)
        owner = _object_of(made)
        if not _is(owner, FunctionType):
            self._pending.append(owner if _is(owner, type) else type(owner))
            for name, value in attributes_of(owner).items():
                self._record(f"attribute {name}", value, self._state)
        while self._pending:
            value = self._pending.pop()
            if value is not None and id(value) not in self._seen:
                self._seen[id(value)] = value
                self._take(value)
        functions = {name: _of_all(found) for name, found in sorted(self._functions.items())}
        arguments, constants, state = map(_each_once, (self._arguments, self._constants, self._state))
        return Fingerprint(functions, arguments, constants, state, tuple(self._incomparable))

    def _take(self, value: object) -> None:
        self._pending.append(_inside(value))
        if _is(value, FunctionType):
            function = cast(FunctionType, value)
            if is_users(function.__code__.co_filename):
                self._function(function)
        elif _is(value, type):
            cls = cast(type, value)
            self._pending += cls.__mro__[1:]
            if is_users_class(cls):
                self._class(cls)

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
            module = vars(cast(ModuleType, value))
            key = id(value), attributes
            if key not in self._seen and is_users(module.get("__file__") or "<frozen>"):
                self._seen[key] = value
                for each in sorted(attributes & module.keys()):
                    self._refer(each, module[each], attributes)
        elif _is(value, FunctionType) or _is(value, type) or (_inside(value) is not None and not _holds_values(value)):
            self._pending.append(value)
        else:
            self._record(name, value, self._constants if is_constant(value) else self._state)

    def _record(self, name: str, value: object, group: dict[str, dict[str, Any]]) -> None:
        missed: dict[str, None] = {}
        found = described(value, self._pending.append, lambda kind: missed.update({kind: None}))
        group.setdefault(name, {})[json.dumps(found)] = found
        if missed:
            self._incomparable[f"{name} ({', '.join(missed)})"] = None


def _holds_values(value: object) -> bool:
    return _is(value, functools.partial) or _is(value, MethodType)


def _is_special(name: str) -> bool:
    return (name.startswith("_") and name.endswith("_")) or name == "_abc_impl"


def _of_all(hashes: set[str | None]) -> str | None:
    """Return one hash for all functions of a name; None if the source of one is not available."""
    known = sorted(found for found in hashes if found is not None)
    if len(known) < len(hashes):
        return None
    return known[0] if len(known) == 1 else _hashed(known)[:12]


def _each_once(group: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the one value of each name, or a hash of all that it has in several functions."""
    return {
        name: next(iter(values.values())) if len(values) == 1 else described(sorted(values))
        for name, values in group.items()
    }


def _hashed(document: Any) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()
