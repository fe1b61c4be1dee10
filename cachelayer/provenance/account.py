"""The account of what makes a version: the code that runs and the values that it uses, by the way to each.

::

    def rows(n):                      functions   rows, clean (and what clean uses)
        for text in TEXTS[:n]:        values      LIMIT, TEXTS
            yield clean(text, LIMIT)  arguments   n
    rows(3)

    LIMIT            the global LIMIT              clean.size       a default, a cell or an attribute of clean
    Reader.depth     an attribute of the class     Reader(Base)     its base Base
    type(reader)     the class of an object        TABLE[2]         the third item of TABLE
    import helpers   a module that is imported when a function runs

One walk follows all ways, the short ones first, in one order. Each way has the hash of what it leads to, or another way
to that: so what is bound to what is compared. The user's code counts with everything that it uses, code of libraries by
its name. Of a user's module that code refers to, the names count that any code asks for; one that a function imports
counts by its compiled code. Nothing of the user is called, iterated or imported.
"""

from __future__ import annotations

import enum
import functools
import inspect
import re
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import count
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

from cachelayer.provenance.function_code import (
    Code,
    Import,
    attributes_of,
    attributes_of_member,
    closure_of,
    code_of_module,
    innermost,
    is_generated,
    is_kind,
    is_users,
    is_users_class,
    modules_of,
    name_in_library,
    parts_of_wrapper,
    read_code,
)
from cachelayer.provenance.stored_values import MARK, hashed
from cachelayer.provenance.values import (
    Budget,
    Look,
    Path,
    Reader,
    holds_code,
    is_code,
    is_constant,
    is_data,
    is_ours,
    text_of,
)

_OF_MODULES = {
    "__name__", "__file__", "__doc__", "__spec__", "__loader__", "__package__", "__builtins__", "__cached__",
    "__path__",
}  # fmt: skip
"""The names that Python itself gives to every module."""
_OF_CLASSES = frozenset({
    "__module__", "__qualname__", "__doc__", "__firstlineno__", "__static_attributes__", "_abc_impl",
    "__callable_proto_members_only__",
})  # fmt: skip
"""The attributes that Python itself gives to classes."""
_OF_FIELDS = frozenset({"__dataclass_fields__", "__attrs_attrs__"})
"""The attributes of classes that have methods which a library generated from the fields."""
_SPECIAL = _OF_FIELDS | {
    "__slots__", "__orig_bases__", "__dataclass_params__", "__required_keys__", "__optional_keys__",
    "__pydantic_fields__", "__pydantic_decorators__", "__private_attributes__",
}  # fmt: skip
"""The special attributes of classes that say what the user wrote: they are part of the hash of the class, because each
release of Python has others. Libraries may make more of them when they are used."""
_ASK_FOR_ALL = {"vars", "dir"}
_ASK_BY_NAME = {"getattr", "attrgetter", "methodcaller"}
_IMPORT_BY_NAME = {"import_module", "__import__"}
_READ_BY_NAME = {"globals", "eval", "exec", "modules"}
_NAMES = re.compile(r"[^\W\d]\w*")
SOURCE = "the source"
"""The way to a source object of a library."""
VARIES = "varies"
"""What is stored of a value that the build has changed: another call finds another value, which is no change."""


@dataclass(frozen=True)
class Account:
    """An account of the code and values that make a version: numbers and names in clear, hashes of everything else.

    Values are as they were at the time of the walk.
    """

    functions: Mapping[str, Any] = field(default_factory=dict)
    """A hash of the code of each function and class, or its name in a library, or another way to it."""
    arguments: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the function that makes the source, if they are data."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """All other values that the code uses, and the attributes of a source object."""
    elements: Any = None
    """A hash of the elements of the source, which are never stored in clear; None if they are not in memory."""
    in_part: tuple[str, ...] = ()
    """The values of which a sample was hashed, each with the size of the sample."""
    not_compared: tuple[str, ...] = ()
    """The values that cannot be compared, each with the types that are the reason."""
    read_again: Callable[[], Mapping[str, Any]] = field(default=dict, compare=False, repr=False)
    """Returns the values that code may have changed, as they are now."""

    def after_build(self) -> Mapping[str, Any]:
        """Return the values; those that differ by now, because the build has changed them, are marked as varying."""
        now = self.read_again()
        varies = {name for name in now if self.values.get(name) != now[name]}
        return {**self.values, **dict.fromkeys(varies, VARIES)}

    def __getstate__(self) -> dict[str, Any]:
        # A process that builds in the background changes a copy of the values.
        return {**self.__dict__, "read_again": dict}


def account_of(
    maker: object,
    arguments: Mapping[str, object] | None = None,
    look: Look = lambda _: None,
    *,
    elements: object = None,
    has_state: bool = False,
) -> Account:
    """Walk from a function that makes a source and its arguments, or from a source object, and return what was found.

    ``look`` asks the adapters what an object holds. With ``has_state``, what a source object of a library holds counts.
    """
    walk = _Walk(innermost(maker), look)
    for name, value in (arguments or {}).items():
        if is_data(value):
            walk.arguments[name] = walk.reader.content(name, value)
        else:
            walk.arguments[name] = hashed(type(value).__qualname__.encode())
            walk.refer(f"argument {name}", value)
    walk.start(maker, has_state=has_state)
    return walk.account(elements)


class _Walk:
    """Collects everything that makes a version. The defaults of the function ``called`` are among the arguments."""

    def __init__(self, called: FunctionType | None, look: Look) -> None:
        self.functions: dict[str, Any] = {}
        self.arguments: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self._called = called
        self._look = look
        self.reader = Reader(self.name_code, look)
        self._known: dict[int, tuple[str, object]] = {}
        """The way to code and to objects that are known, by their ids; with them, so that no other gets such an id."""
        self._pending: deque[tuple[str, Any]] = deque()
        self._modules: list[tuple[str, ModuleType]] = []
        self._imported: set[str] = set()
        self._globals: dict[tuple[int, str], str] = {}
        """The way to each global, by the id of its module's names and its own."""
        self._codes: list[tuple[Code, Mapping[str, Any]]] = []
        self._texts: set[str] = set()
        """The texts that are bound to names: they may be names of attributes or modules."""
        self._again: list[tuple[str, Any, Budget]] = []
        """The values that code may change, each with the budget that it was read with."""

    def account(self, elements: object) -> Account:
        """Follow all code that is reached, and return everything that was found."""
        content = None if elements is None else self.reader.hash("elements", elements)
        while self._pending or self._ask_modules():
            key, value = self._pending.popleft()
            with self._naming(key, value):
                self.functions[key] = MARK + hashed(repr(self._facts(key, value)).encode())[len(MARK) :][:12]
        stored = {(id(module), name) for code, module in self._codes for name in code.stored}
        for key in [key for known, key in self._globals.items() if known in stored]:
            # The values of globals that code assigns change while it runs.
            self.values = {name: each for name, each in self.values.items() if not f"{name}.".startswith(f"{key}.")}
        self._again = [each for each in self._again if each[0] in self.values]
        notes = (*self.reader.in_part,), (*self.reader.not_compared,)
        return Account(self.functions, self.arguments, self.values, content, *notes, self.read_again)

    def start(self, maker: Any, *, has_state: bool) -> None:
        """Begin with a function or source object; the attributes of the object, or of that of a method, count too."""
        while isinstance(maker, functools.partial):
            maker = maker.func
        owner = maker
        if is_kind(maker, MethodType):
            owner, maker = maker.__self__, maker.__func__
        if is_code(maker):
            self._refer_code(getattr(maker, "__qualname__", type(maker).__qualname__), maker)
        cls = owner if is_kind(owner, type) else type(owner)
        if is_users_class(cls):
            self.name_code(cls.__qualname__, cls)
        if self.reader.has_attributes(cls) and not (is_code(owner) or is_ours(cls)):
            self.refer("attribute", owner)
        elif has_state and not (is_code(owner) or is_ours(cls) or owner is None):
            self.refer(SOURCE, owner)

    @contextmanager
    def _naming(self, key: str, value: object) -> Iterator[None]:
        """Name a value as not compared if it cannot be read: that may run code of a library, which raises anything."""
        try:
            yield
        except Exception:  # noqa: BLE001
            self.reader.miss(type(value).__name__, key)

    # Code.

    def name_code(self, path: Path, value: Any) -> str:
        """Return the way to code by which it is listed, which is ``path`` if it is new; or its name in a library."""
        if id(value) in self._known:
            return self._known[id(value)][0]
        if is_kind(value, ModuleType):
            is_followed = is_users(vars(value).get("__file__") or "<frozen>")
        elif is_kind(value, type):
            is_followed = is_users_class(value)
        else:
            # A wrapper of a library may hold code of the user.
            is_followed = not is_kind(value, FunctionType) or bool(
                is_users(value.__code__.co_filename) or value.__closure__ or "__wrapped__" in vars(value)
            )
        if not is_followed:
            return name_in_library(value)
        key = self._unique(text_of(path))
        self._known[id(value)] = key, value
        self.functions[key] = ""
        self._pending.append((key, value))
        return key

    def _unique(self, key: str) -> str:
        if key not in self.functions and key not in self.values:
            return key
        return next(name for name in (f"{key} ({n})" for n in count(2)) if name not in self.functions | self.values)

    def _refer_code(self, key: str, value: Any) -> None:
        """List what code is bound to a name: the code itself, another way to it, or its name in a library."""
        known = self._known.get(id(value), ("", None))[0]
        if known == key:
            return
        key = self._unique(key)
        name = self.name_code(key, value)
        if name != key:
            self.functions[key] = f"the same as {known}" if known else name

    def _facts(self, key: str, value: Any) -> Any:
        """Return what decides what some code does, and follow what it uses."""
        if is_kind(value, ModuleType):
            self._modules.append((key, value))
            return "a module"
        if is_kind(value, type):
            return self._class(key, value)
        if is_kind(value, FunctionType):
            return self._function(key, value)
        if is_kind(value, GeneratorType):
            frame = value.gi_frame
            if frame is None or not is_users(value.gi_code.co_filename):
                return value.gi_code.co_name
            return frame.f_lasti, self._code(key, value.gi_code, frame.f_globals, dict(frame.f_locals))
        for name, part in parts_of_wrapper(value).items():
            if part is not None:
                self.refer(f"{key}.{name}", part)
        return type(value).__qualname__

    def _function(self, key: str, function: FunctionType) -> Any:
        code = function.__code__
        if not is_users(code.co_filename):
            # It may hold code of the user, as singledispatch does.
            held = {} if is_ours(function) else closure_of(function)
            wrapped = {name: value for name, value in vars(function).items() if name == "__wrapped__"}
            for name, value in {**held, **wrapped}.items():
                if self._is_of_user(value):
                    self.refer(f"{key}.{name}", value)
            return name_in_library(function)
        facts = self._code(key, code, function.__globals__, closure_of(function))
        defaults = zip(code.co_varnames[: code.co_argcount][::-1], (function.__defaults__ or ())[::-1], strict=False)
        bound = {**dict(defaults), **(function.__kwdefaults__ or {})}
        for name, value in {**({} if function is self._called else bound), **vars(function)}.items():
            self.refer(f"{key}.{name}", value)
        return facts, self._annotations(key, function, function.__globals__)

    def _is_of_user(self, value: Any) -> bool:
        """Return whether what a library's function holds may be the user's, and no cache or lock of the library."""
        if type(value) is MethodType:
            return self.reader.has_attributes(type(value.__self__))
        is_told = self.reader.has_attributes(type(value)) or self._look(value) is not None
        return is_told or is_code(value) or is_constant(value) or holds_code(value)

    def _code(self, key: str, code: Any, module: dict[str, Any], held: Mapping[str, Any]) -> str:
        """Return the hash of some code, and follow what it uses of its module, and of the functions around it."""
        used = read_code(code)
        self._codes.append((used, module))
        names = used.read
        if names & _READ_BY_NAME or ("sys" in names and "modules" in used.attributes):
            names = names.union(used.attributes, _NAMES.findall(" ".join(used.texts)))
        for name in sorted(names & module.keys() - _OF_MODULES):
            self._refer_global(name, module, key)
        for name in sorted(held.keys() - used.stored):
            self.refer(f"{key}.{name}", held[name])
        package = module.get("__package__") or str(module.get("__name__", "")).rpartition(".")[0]
        for each in sorted(used.imports):
            self._import(each, package)
        return used.hash

    def _refer_global(self, name: str, module: dict[str, Any], key: str) -> None:
        """Follow a global, which code at ``key`` reads."""
        if (id(module), name) not in self._globals:
            is_free = name not in self.functions and name not in self.values
            self._globals[id(module), name] = way = name if is_free else self._unique(f"{key}.{name}")
            self.refer(way, module[name])

    # Modules.

    def _import(self, each: Import, package: str) -> None:
        """Add the compiled code of the user's modules that an import runs, and of those that these import."""
        bound, run_before = modules_of(each, package)
        for name in run_before:
            self._add_module(name)
        for name in bound:
            if name not in self._imported:
                self._imported.add(name)
                code, package_of_module = self._add_module(name)
                for inner in sorted(code.imports if code is not None else ()):
                    self._import(inner, package_of_module)

    def _add_module(self, name: str) -> tuple[Code | None, str]:
        """Add the compiled code of a module of the user, and return it with the package that the module is in."""
        read = code_of_module(name)
        if read is None:
            return None, ""
        code, package = read
        if code is None:
            self.reader.miss("a module without source", name)
            return None, package
        used = read_code(code)
        if f"import {name}" not in self.functions:
            self._codes.append((used, {}))
            self.functions[f"import {name}"] = MARK + used.hash
        return used, package

    def _ask_modules(self) -> bool:
        """Follow those names of the user's modules that code asks for; return whether there was another one."""
        attributes = {"__getattr__"}.union(*(code.attributes for code, _ in self._codes))
        read_names = attributes.union(*(code.read for code, _ in self._codes))
        texts = self._texts.union(*(code.texts for code, _ in self._codes))
        if read_names & _ASK_BY_NAME:
            attributes |= texts
        whole = {
            id(module[name])
            for code, module in self._codes
            if code.read & _ASK_FOR_ALL
            for name in code.read & module.keys()
        }
        for key, module in self._modules:
            names = vars(module)
            for name in sorted((names.keys() if id(module) in whole else attributes & names.keys()) - _OF_MODULES):
                if f"{key}.{name}" not in self.functions and f"{key}.{name}" not in self.values:
                    self.refer(f"{key}.{name}", names[name])
        if read_names & _IMPORT_BY_NAME:
            for text in sorted(texts):
                if all(part.isidentifier() for part in text.split(".")):
                    self._import((0, text, ()), "")
        return bool(self._pending)

    # Classes.

    def _class(self, key: str, cls: type) -> Any:
        """Return what a class is, its bases in order, and follow what is bound in it."""
        bases = [self.name_code(f"{key}({base.__name__})", base) for base in cls.__bases__]
        fields: list[Any] = []
        if issubclass(cls, enum.Enum):
            fields += [*cls.__members__, getattr(cls, "_boundary_", None)]
            for name, member in cls.__members__.items():
                for part, value in attributes_of_member(member).items():
                    self.refer(f"{key}.{name}{part}", value)
        # Special names last: those that a release of Python adds are other names of what has one in all.
        for name, value in sorted(vars(cls).items(), key=lambda each: (each[0].startswith("__"), each[0])):
            if name in _SPECIAL:
                fields.append((name, self.reader.hash(f"{key}.{name}", value)))
            elif _is_own(cls, name, value):
                self.refer(f"{key}.{name}", value)
        module = getattr(sys.modules.get(cls.__module__), "__dict__", {})
        kind = self.name_code(f"type({key})", type(cls))
        return cls.__name__, bases, kind, fields, self._annotations(key, cls, module)

    def _annotations(self, key: str, obj: Any, module: dict[str, Any]) -> Any:
        """Return the annotations of a class or function, which libraries read, and follow the classes in them."""
        if sys.version_info >= (3, 14):
            # They are made by a function, which is not called. That of a class is among its attributes.
            annotate = None if is_kind(obj, type) else obj.__annotate__
            if annotate is not None:
                self.refer(f"{key}.__annotate__", annotate)
            return None
        annotations = vars(obj).get("__annotations__", {}) if is_kind(obj, type) else obj.__annotations__
        for text in annotations.values():
            for name in _NAMES.findall(text) if type(text) is str else ():
                if is_kind(module.get(name), type):
                    self._refer_global(name, module, key)
        return self.reader.hash(key, [*annotations.items()]) if annotations else None

    # Values.

    def refer(self, key: str, value: Any) -> None:
        """Follow what is bound to a name: code, an object by its attributes, or any other value."""
        with self._naming(key, value):
            if is_code(value):
                self._refer_code(key, value)
                if is_kind(value, GeneratorType):
                    self.reader.miss("generator", key)
                return
            key = self._unique(key)
            if type(value) in (list, dict, set, bytearray) or self.reader.has_attributes(type(value)):
                known = self._known.setdefault(id(value), (key, value))[0]
                if known != key:
                    self.values[key] = f"the same as {known}"
                    return
            if type(value) is str:
                self._texts.add(value)
            if not is_constant(value):
                self._again.append((key, value, self.reader.budget))
            self.values |= self._contents(key, value)

    def _contents(self, key: str, value: Any) -> dict[str, Any]:
        """Return what a value holds; of an object of a class of the user, its class and each attribute."""
        if not self.reader.has_attributes(type(value)):
            # What a source gives is never stored in clear.
            return {key: (self.reader.hash if key == SOURCE else self.reader.content)(key, value)}
        sign = " " if key == "attribute" else "."
        contents = {key: self.reader.hash(key, value, self.reader.without_attributes)}
        for name, each in attributes_of(value).items():
            contents[f"{key}{sign}{name}"] = self.reader.content(f"{key}{sign}{name}", each)
        return contents

    def read_again(self) -> dict[str, Any]:
        now: dict[str, Any] = {}
        for key, value, budget in self._again:
            self.reader.budget = budget
            with self._naming(key, value):
                now |= self._contents(key, value)
        return now


def _is_own(cls: type, name: str, value: Any) -> bool:
    """Return whether the user bound an attribute of a class, or a library made it of what the user wrote."""
    inherited = [vars(base)[name] for base in cls.__mro__[1:] if name in vars(base)]
    if name in _OF_CLASSES or any(each is value for each in inherited[:1]):
        # What is inherited may be bound to the class when it is used first.
        return False
    if is_code(value):
        has_generated = issubclass(cls, tuple) or bool(_OF_FIELDS & vars(cls).keys())
        method = innermost(value) if has_generated else None
        return method is None or not is_generated(method.__code__.co_filename)
    if issubclass(cls, enum.Enum) or (inspect.isdatadescriptor(value) and not is_users_class(type(value))):
        # Python made it, such as a slot or the member of an enum.
        return False
    is_special = name.startswith("__") and name.endswith("__")
    return not is_special or (is_constant(value) and not name.startswith("__pydantic"))
