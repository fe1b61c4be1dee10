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
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count
from types import FunctionType, GeneratorType, MethodType, ModuleType
from typing import Any

from cachelayer.provenance.function_code import (
    Code,
    Import,
    attributes_of,
    closure_of,
    code_of_module,
    innermost,
    is_generated,
    is_kind,
    is_same_file,
    is_users,
    is_users_class,
    modules_of,
    name_in_library,
    parts_of_wrapper,
    read_code,
)
from cachelayer.provenance.stored_values import MARK, hashed
from cachelayer.provenance.values import (
    CONTAINERS,
    Budget,
    Look,
    Path,
    Reader,
    holds_code,
    is_code,
    is_constant,
    is_data,
    text_of,
)

_OF_MODULES = frozenset({
    "__name__", "__file__", "__doc__", "__spec__", "__loader__", "__package__", "__builtins__", "__cached__",
    "__path__", "__annotations__", "__dict__",
})  # fmt: skip
"""The names that Python itself gives to every module."""
_OF_CLASSES = frozenset({
    "__module__", "__qualname__", "__doc__", "__firstlineno__", "__annotations_cache__", "_abc_impl", "_field_defaults",
})  # fmt: skip
"""The attributes that Python itself gives to classes, and that are no values of the user's."""
_SPECIAL = frozenset({
    "__slots__", "__attrs_attrs__", "__pydantic_fields__", "__pydantic_decorators__", "__private_attributes__",
    "__required_keys__", "__optional_keys__",
})  # fmt: skip
"""The special attributes of classes that say what the user wrote. Libraries may make others when they are used."""
_OF_FIELDS = ("name", "type", "init", "repr", "hash", "compare", "kw_only", "metadata", "_field_type")
_ASKS_FOR_ALL = {"vars", "dir"}
_ASKS_BY_NAME = {"getattr", "attrgetter", "methodcaller"}
_IMPORTS_BY_NAME = {"import_module", "__import__"}
_NAMES = re.compile(r"[^\W\d]\w*")
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
    """What the elements of the source hold; None if they are not in memory."""
    in_part: tuple[str, ...] = ()
    """The values of which a sample was hashed, each with the size of the sample."""
    not_compared: tuple[str, ...] = ()
    """The values that cannot be compared, each with the types that are the reason."""
    walk: Walk | None = field(default=None, compare=False, repr=False)
    """What reads the values again; None for an account of nothing."""

    def after_build(self) -> Mapping[str, Any]:
        """Return the values; those that differ by now, because the build has changed them, are marked as varying."""
        now = {} if self.walk is None else self.walk.read_again()
        varies = {name for name in now if self.values.get(name, VARIES) != now[name]}
        return {**self.values, **dict.fromkeys(varies, VARIES)}


def account_of(
    maker: object,
    arguments: Mapping[str, object] | None = None,
    look: Look = lambda _: None,
    *,
    elements: object = None,
    has_state: bool = False,
) -> Account:
    """Walk from a function that makes a source, or from a source object, and return everything that was found.

    Args:
        arguments: the arguments that are bound to the function, by name.
        look: asks the adapters what an object holds.
        elements: the elements of the source, if they are in memory.
        has_state: whether what an object of a library holds counts.
    """
    walk = Walk(innermost(maker), look)
    for name, value in (arguments or {}).items():
        if is_data(value):
            walk.arguments[name] = walk.content(name, value)
        else:
            walk.arguments[name] = hashed(type(value).__qualname__.encode())
            walk.refer(f"argument {name}", value)
    walk.start(maker, has_state=has_state)
    return walk.account(elements)


class Walk:
    """Collects everything that makes a version.

    Code that is reached waits in ``_pending``: long chains of calls need no recursion.

    Args:
        called: the function that makes the source: its defaults are among the arguments, and count there.
        look: asks the adapters.
    """

    def __init__(self, called: FunctionType | None, look: Look) -> None:
        self.functions: dict[str, Any] = {}
        self.arguments: dict[str, Any] = {}
        self.values: dict[str, Any] = {}
        self._called = called
        self._look = look
        self._reader = Reader(self.name_code, look)
        self._in_part: dict[str, None] = {}
        self._not_compared: dict[str, None] = {}
        self._known: dict[int, tuple[str, object]] = {}
        """The way to code and to objects that are known, by their ids; with them, so that no other gets such an id."""
        self._pending: deque[tuple[str, Any]] = deque()
        self._modules: list[tuple[str, ModuleType]] = []
        self._globals: dict[tuple[int, str], str] = {}
        """The way to each global, by the id of its module's names and its own."""
        self._stored: set[tuple[int, str]] = set()
        """The globals that code assigns: these values change while it runs."""
        self._asked: set[str] = set()
        """The attributes that code asks for."""
        self._imported: set[str] = set()
        """The modules that functions import when they run, whose own imports are followed."""
        self._ways: set[str] = set()
        """The functions by which code asks for attributes and modules by names that it has made."""
        self._whole: set[int] = set()
        """The ids of what code uses that asks for all names of something."""
        self._texts: set[str] = set()
        """The texts that code uses, which may be names of attributes and modules."""
        self._again: list[tuple[str, Any, Budget]] = []
        """The values that code may change, each with the budget that it was read with."""

    def account(self, elements: object) -> Account:
        """Take all code that is reached, and return everything that was found."""
        content = None if elements is None else self.content("elements", elements)
        while self._pending or self._ask_modules():
            if self._pending:
                self._take(*self._pending.popleft())
        for known, key in self._globals.items():
            if known in self._stored:
                for name in [name for name in self.values if name == key or name.startswith(f"{key}.")]:
                    del self.values[name]
        self._again = [each for each in self._again if each[0] in self.values]
        notes = (*self._in_part,), (*self._not_compared,)
        return Account(self.functions, self.arguments, self.values, content, *notes, walk=self)

    def start(self, maker: Any, *, has_state: bool) -> None:
        """Begin with a function or source object; the attributes of the object, or of that of a method, count too."""
        while isinstance(maker, functools.partial):
            maker = maker.func
        owner = maker
        if is_kind(maker, MethodType):
            owner, maker = maker.__self__, maker.__func__
        if is_code(maker):
            self._refer_code(getattr(maker, "__qualname__", type(maker).__qualname__), maker)
        if is_code(owner) or owner is None:
            if is_kind(owner, type):
                self.name_code(owner.__qualname__, owner)
            return
        kind = type(owner)
        if is_users_class(kind):
            self._reader.read(kind, kind.__qualname__)
            self._object("attribute", owner, " ")
        elif has_state:
            self.refer("source", owner)

    # Code.

    def name_code(self, path: Path, value: Any) -> str:
        """Return the way to code by which it is listed, which is ``path`` if it is new; or its name in a library."""
        if id(value) in self._known:
            return self._known[id(value)][0]
        if not self._is_users(value):
            return name_in_library(value)
        key = self._unique(text_of(path))
        self._known[id(value)] = key, value
        self.functions[key] = ""
        self._pending.append((key, value))
        return key

    def _is_users(self, value: Any) -> bool:
        """Return whether code is the user's, or may hold code of the user."""
        if is_kind(value, ModuleType):
            return is_users(vars(value).get("__file__") or "<frozen>")
        if is_kind(value, type):
            return is_users_class(value)
        if is_kind(value, FunctionType) and not is_users(value.__code__.co_filename):
            return bool(value.__closure__) or "__wrapped__" in vars(value)
        return True

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

    def _take(self, key: str, value: Any) -> None:
        """Add the hash of code that is reached, and follow what it uses."""
        through: list[str] = []
        while parts := {} if issubclass(type(value), (FunctionType, type, ModuleType)) else parts_of_wrapper(value):
            through.append(type(value).__name__)
            value, *others = parts.values()
            for name, part in zip([*parts][1:], others, strict=True):
                if part is not None and not (type(part) in (tuple, dict) and not part):
                    self.refer(f"{key}.{name}", part)
            if id(value) in self._known:
                break
        facts: Any
        if through and (value is None or id(value) in self._known or not (is_code(value) and self._is_users(value))):
            facts = self._reader.hash(value, key).value
        elif is_kind(value, type):
            facts = self._class(key, value)
        elif is_kind(value, FunctionType):
            facts = self._function(key, value)
        elif is_kind(value, GeneratorType):
            frame = value.gi_frame
            facts = value.gi_code.co_name if frame is None else frame.f_lasti
            if frame is not None and is_users(value.gi_code.co_filename):
                facts = facts, self._code(key, value.gi_code, frame.f_globals, frame.f_locals)
        elif is_kind(value, ModuleType):
            facts = "a module"
            self._modules.append((key, value))
        else:
            facts = self._reader.hash(value, key).value
        if through and is_code(value):
            self._known.setdefault(id(value), (key, value))
        self.functions[key] = MARK + hashed(repr((through, facts)).encode())[len(MARK) :][:12]

    def _function(self, key: str, function: FunctionType) -> Any:
        if not is_users(function.__code__.co_filename):
            # A wrapper of a library may hold code of the user, as singledispatch does.
            held = {} if function.__module__.startswith("cachelayer.") else closure_of(function)
            held |= {name: value for name, value in vars(function).items() if name == "__wrapped__"}
            for name, value in held.items():
                if self._is_of_user(value):
                    self.refer(f"{key}.{name}", value)
            return name_in_library(function)
        code = function.__code__
        facts = self._code(key, code, function.__globals__, closure_of(function))
        if function is not self._called:
            positional = code.co_varnames[: code.co_argcount]
            defaults = zip(positional[::-1], (function.__defaults__ or ())[::-1], strict=False)
            for name, value in [*defaults, *(function.__kwdefaults__ or {}).items()]:
                self.refer(f"{key}.{name}", value)
        for name, value in vars(function).items():
            self.refer(f"{key}.{name}", value)
        return facts, self._annotations(key, function, function.__globals__)

    def _is_of_user(self, value: Any) -> bool:
        """Return whether what a library's function holds may be the user's, and no cache or lock of the library."""
        owner = value.__self__ if type(value) is MethodType else value
        if type(value) is not MethodType and (is_code(value) or is_constant(value) or holds_code(value)):
            return True
        return self._reader.has_attributes(type(owner)) or self._look(owner) is not None

    def _code(self, key: str, code: Any, module: dict[str, Any], held: Mapping[str, Any]) -> str:
        """Return the hash of some code, and follow what it uses.

        Args:
            module: the names of its module.
            held: the variables of functions around it that it uses; of a generator, its own.
        """
        used = read_code(code)
        self._note_names(used)
        if used.read & _ASKS_FOR_ALL:
            self._whole |= {id(module[name]) for name in used.read & module.keys()}
        self._stored |= {(id(module), name) for name in used.stored}
        for name in sorted(used.read & module.keys() - _OF_MODULES):
            self._refer_global(name, module, key)
        for name, value in held.items():
            if name not in used.stored:
                self.refer(f"{key}.{name}", value)
        package = module.get("__package__") or str(module.get("__name__", "")).rpartition(".")[0]
        for each in sorted(used.imports):
            self._import(each, package)
        return used.hash

    def _note_names(self, used: Code) -> None:
        self._asked |= used.attributes
        self._texts |= used.texts
        self._ways |= (used.attributes | used.read) & (_ASKS_BY_NAME | _IMPORTS_BY_NAME)

    def _refer_global(self, name: str, module: dict[str, Any], key: str) -> None:
        """Follow a global, which code at ``key`` reads."""
        if (id(module), name) not in self._globals:
            is_free = name not in self.functions and name not in self.values
            self._globals[id(module), name] = way = name if is_free else self._unique(f"{key}.{name}")
            self.refer(way, module[name])

    def _import(self, each: Import, package: str) -> None:
        """Add the compiled code of the user's modules that an import runs, and of those that these import."""
        bound, run_before = modules_of(each, package)
        for module in run_before:
            self._add_module(module)
        for module in bound:
            if module in self._imported:
                continue
            self._imported.add(module)
            read = self._add_module(module)
            if read is not None:
                used, package_of_module = read
                self._note_names(used)
                for inner in sorted(used.imports):
                    self._import(inner, package_of_module)

    def _add_module(self, module: str) -> tuple[Code, str] | None:
        """Add the compiled code of a module of the user, and return it with the package that the module is in."""
        read = code_of_module(module)
        if read is None:
            return None
        code, package = read
        if code is None:
            self._not_compared[f"{module} (a module without source)"] = None
            return None
        if self._called is not None and is_same_file(code.co_filename, self._called.__code__.co_filename):
            return None
        used = read_code(code)
        self.functions[f"import {module}"] = MARK + used.hash
        return used, package

    def _ask_modules(self) -> bool:
        """Follow those names of the user's modules that code asks for; return whether there was another one."""
        asked = self._asked | (self._texts if self._ways & _ASKS_BY_NAME else set())
        for key, module in self._modules:
            names = vars(module)
            wanted = names.keys() if id(module) in self._whole else asked & names.keys()
            for name in sorted(wanted - _OF_MODULES):
                if f"{key}.{name}" not in self.functions and f"{key}.{name}" not in self.values:
                    self.refer(f"{key}.{name}", names[name])
        for text in sorted(self._texts if self._ways & _IMPORTS_BY_NAME else ()):
            if all(part.isidentifier() for part in text.split(".")):
                self._import(Import(0, text, ()), "")
        return bool(self._pending)

    # Classes.

    def _class(self, key: str, cls: type) -> Any:
        """Return what a class is: its bases in order, its fields with their options; and follow what is bound in it."""
        names = dict(vars(cls))
        module = vars(sys.modules.get(cls.__module__, enum))
        facts = [cls.__name__, [self.name_code(f"{key}({base.__name__})", base) for base in cls.__bases__]]
        facts.append(self.name_code(f"type({key})", type(cls)))
        facts.append(self._reader.hash(names.pop("__orig_bases__", ()), f"{key}.__orig_bases__").value)
        if issubclass(cls, enum.Enum):
            facts.append([*cls.__members__])
            for name, member in cls.__members__.items():
                self.refer(f"{key}.{name}", member._value_)
        fields = names.pop("__dataclass_fields__", {})
        has_generated = bool(fields) or issubclass(cls, tuple) or "__attrs_attrs__" in names
        if fields:
            options = [[getattr(each, name, None) for name in _OF_FIELDS] for each in fields.values()]
            facts.append(self._reader.hash(options, f"{key}.fields").value)
            facts.append(repr(names.pop("__dataclass_params__", None)))
        for each in fields.values():
            # A class with slots has no defaults of its fields among its attributes.
            names.pop(each.name, None)
            default = each.default_factory if type(each.default).__module__ == "dataclasses" else each.default
            if type(default).__module__ != "dataclasses":
                self.refer(f"{key}.{each.name}", default)
        for name, value in names.get("_field_defaults", {}).items() if issubclass(cls, tuple) else ():
            self.refer(f"{key}.{name}", value)
        for name in sorted(names):
            if self._is_own(cls, name, names[name], has_generated=has_generated):
                self.refer(f"{key}.{name}", names[name])
        return facts, self._annotations(key, cls, module)

    def _is_own(self, cls: type, name: str, value: Any, *, has_generated: bool) -> bool:
        """Return whether the user bound an attribute of a class, or a library made it of what the user wrote."""
        if name in _OF_CLASSES or any(vars(base).get(name) is value for base in cls.__mro__[1:]):
            # What is inherited may be bound to the class when it is used first.
            return False
        if is_code(value):
            method = innermost(value)
            return not (has_generated and method is not None and is_generated(method.__code__.co_filename))
        if issubclass(cls, enum.Enum) or (inspect.isdatadescriptor(value) and not is_users_class(type(value))):
            # Python made it, such as a slot or the member of an enum.
            return False
        is_special = name.startswith("__") and name.endswith("__")
        return not is_special or name in _SPECIAL or (is_constant(value) and not name.startswith("__pydantic"))

    def _annotations(self, key: str, obj: Any, module: dict[str, Any]) -> Any:
        """Return the annotations of a class or function, which libraries read, and follow the classes in them."""
        if sys.version_info >= (3, 14):
            # They are made by a function, which is not called.
            for name in ("__annotate__", "__annotate_func__"):
                made = vars(obj).get(name) if is_kind(obj, type) else getattr(obj, name, None)
                if is_kind(made, FunctionType):
                    self.refer(f"{key}.{name}", made)
            return None
        annotations = vars(obj).get("__annotations__", {}) if is_kind(obj, type) else obj.__annotations__
        for text in annotations.values():
            for name in _NAMES.findall(text) if type(text) is str else ():
                if is_kind(module.get(name), type):
                    self._refer_global(name, module, key)
        return self._reader.hash([*annotations.items()], key).value if annotations else None

    # Values.

    def refer(self, key: str, value: Any) -> None:
        """Follow what is bound to a name: code, an object by its attributes, or any other value."""
        if is_code(value):
            self._refer_code(key, value)
            if is_kind(value, GeneratorType):
                self._not_compared[f"{key} (generator)"] = None
            return
        key = self._unique(key)
        is_object = self._reader.has_attributes(type(value))
        if is_object or type(value) in (list, dict, set, bytearray):
            known = self._known.setdefault(id(value), (key, value))[0]
            if known != key:
                self.values[key] = f"the same as {known}"
                return
        if is_object:
            self._object(key, value)
            return
        if not is_constant(value):
            self._again.append((key, value, self._reader.budget))
        elif type(value) is str:
            self._texts.add(value)
        self.values[key] = self.content(key, value)

    def _object(self, key: str, value: Any, sign: str = ".") -> None:
        """Add an object of a class of the user: its class, and each attribute under a name of its own."""
        self._again.append((key, value, self._reader.budget))
        self.values |= self._attributes(key, value, sign)
        self.values[key] = self._reader.hash(type(value), f"type({key})").value

    def _attributes(self, key: str, value: Any, sign: str = ".") -> dict[str, Any]:
        """Return what the attributes of an object hold, and, if it is a list or the like, what that holds."""
        try:
            attributes = attributes_of(value)
        except Exception:  # noqa: BLE001
            # Objects that are written in C may refuse to tell.
            self._not_compared[f"{key} ({type(value).__name__})"] = None
            return {}
        contents = {f"{key}{sign}{name}": self.content(f"{key}{sign}{name}", each) for name, each in attributes.items()}
        if issubclass(type(value), CONTAINERS):
            contents[f"{key} items"] = self._reader.hash(value, key).value
        return contents

    def content(self, key: str, value: object) -> Any:
        """Return what a value holds, and note what of it was not read."""
        content = self._reader.content(value, key)
        self._in_part |= dict.fromkeys(f"{key} ({sample})" for sample in content.in_part)
        if content.not_compared:
            self._not_compared[f"{key} ({', '.join(content.not_compared)})"] = None
        return content.value

    def read_again(self) -> dict[str, Any]:
        """Return the values that code may have changed, as they are now."""
        now: dict[str, Any] = {}
        for key, value, budget in self._again:
            self._reader.budget = budget
            if self._reader.has_attributes(type(value)):
                now |= self._attributes(key, value, " " if key == "attribute" else ".")
            else:
                now[key] = self.content(key, value)
        return now
