"""What a version is built from: the one account, which everything compares that has to know whether it is the same.

The plan of a build is the recipe with what decides the shards: only a build with an equal plan goes on after an
interrupted one, or helps. The provenance is the recipe as it is stored. A later call compares its recipe with it, and
``version="auto"`` names a version by it.

All is found without calling or iterating anything of the user, so that a version can be compared each time.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import socket
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType
from typing import Any, Self

import numpy as np

from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.iterable_source import SequenceSource
from cachelayer.builds.sharded_source import Sharded
from cachelayer.builds.source import Source, Table
from cachelayer.builds.source_files import FileFacts, how_files_are_read, identity_of_files, local_files
from cachelayer.builds.table_hashes import MOST_NBYTES, TableHashes, table_hashes, table_of
from cachelayer.errors import CacheLayerError, ElementError, InvalidArgumentError, InvalidTypeError
from cachelayer.protocols import has_records, records_of
from cachelayer.provenance.code_in_objects import code_file
from cachelayer.provenance.function_code import PYTHON
from cachelayer.provenance.stored_values import MARK, Wording, differences, shown, stored
from cachelayer.provenance.walker import Account, account_of, described
from cachelayer.records import spec_json, tree
from cachelayer.records.spec import EncodedSpec
from cachelayer.versions.reference import AUTO

_ITEMS = (list, tuple, set, frozenset, range, deque, np.ndarray)
_MOST_HELD_NBYTES = 1 << 26
"""The most bytes of a table that a function or object holds."""
_failed: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
"""For each version whose build failed in this process, the values before and after that."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a version is built from. Values are only in memory: hashes of them are stored.

    Args:
        source: the source, or the function that makes it.
        name: the name of the function, or of the object's class; None if neither is known.
        is_call: whether a function that makes versions was called; else its arguments were bound before.
        values: the arguments by name.
        record: those that are stored in clear, as JSON.
        account: the code and values that make it.
        identity: what identifies the source besides, as it is stored: its length, columns, elements or files.
        options: the options that decide the records, as JSON.
        sampled_rows: how many rows of the source were compared, if not all were; "" if all were.
        unread: why the source could not be looked at; "" if it could.
    """

    source: Any = None
    name: str | None = None
    is_call: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)
    account: Account = field(default_factory=Account)
    identity: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    sampled_rows: str = ""
    unread: str = ""

    @classmethod
    def of(cls, source: Any, options: BuildOptions, record: Iterable[str] = (), *, is_call: bool = False) -> Self:
        """Return the recipe of a source, or of a function that makes it.

        Args:
            source: the source.
            options: the options of the build.
            record: the names of the arguments that are stored in clear.
            is_call: whether the function, which is partial, has all arguments of its call.
        """
        made = source.function if isinstance(source, Sharded) else source
        names = checked_record(record)
        check_parameters(names, made)
        is_known = isinstance(made, (FunctionType, MethodType, functools.partial)) or bool(code_file(made))
        values = _arguments(made, is_call=is_call) if is_known and callable(made) else dict(how_files_are_read(made))
        items = made if type(made) in _ITEMS and (not is_known and not options.unbatch) else None
        identity, sampled_rows, unread = _identity_of_object(made, options)
        account = account_of(
            made if items is None else None, values, None if "elements" in identity else items, _hashes_of_held_table
        )
        return cls(
            source,
            name_of(made if callable(made) else type(made)) if is_known else None,
            is_call,
            values,
            {name: _in_clear(name, values) for name in sorted(names)},
            account,
            {**stored(account.elements), **identity},
            _deciding_options(options),
            sampled_rows,
            unread,
        )

    def completed(self, source: Source, files: Sequence[FileFacts]) -> Self:
        """Return the recipe with what is known of the source once the function was called.

        Args:
            source: the source that was made.
            files: the files that it reads.
        """
        identity = {**identity_of_files(files), **self.identity}
        if source.length and not any(name == "elements" or name.startswith("column") for name in identity):
            spec = source.element_spec
            # Images may be files elsewhere.
            has_files = spec is not None and any(isinstance(leaf, EncodedSpec) for _, leaf in tree.leaves(spec))
            identity = {**_identity_of_source(source, 0 if has_files else MOST_NBYTES)[0], **identity}
        return replace(self, identity=identity)

    @property
    def facts(self) -> dict[str, Any]:
        """The recipe as it is stored: numbers in clear, and of everything else hashes that show a change."""
        return {
            **self._code(self.account.state),
            **({"identity": dict(self.identity)} if self.identity else {}),
            **({"options": dict(self.options)} if self.options else {}),
        }

    @property
    def provenance(self) -> dict[str, Any]:
        """The facts, and what is compared in part or not at all, without the values that the build has changed.

        Those show how far it has read. Call this after the build.
        """
        later = self._state_now()
        state = {name: value for name, value in self.account.state.items() if later.get(name) == value}
        in_part = [*self.account.in_part, *([self.sampled_rows] if self.sampled_rows else [])]
        not_compared = [*self.account.not_compared, *self._unknown_source()]
        return {
            **self.facts,
            **self._code(state),
            **({"compared_in_part": in_part} if in_part else {}),
            **({"not_compared": not_compared} if not_compared else {}),
        }

    def going_on(self, version: str) -> Self:
        """Return the recipe of a build that goes on after one that failed in this process.

        Values that the failed build has changed count as they were before it, as long as nothing else changed them.

        Args:
            version: the version, with its storage.
        """
        before, after = _failed.get(version, ({}, {}))
        now = self.account.state
        as_left = {name for name, value in now.items() if name in after and after[name] == value}
        state = {name: value for name, value in now.items() if name not in as_left}
        state |= {name: before[name] for name in as_left & before.keys()}
        return replace(self, account=self.account._replace(state=state))

    def note_failure(self, version: str) -> None:
        """Note what a build that fails has changed, for :meth:`going_on`."""
        _failed[version] = self.account.state, self._state_now()

    def _state_now(self) -> Mapping[str, Any]:
        """Return the values that code may have changed, as they are now."""
        if not self.account.state:
            return {}
        return account_of(self.source_of_code, self.values, None, _hashes_of_held_table).state

    @property
    def source_of_code(self) -> Any:
        """The function or object whose code and values count; the function of a source in parts."""
        return self.source.function if isinstance(self.source, Sharded) else self.source

    def _code(self, state: Mapping[str, Any]) -> dict[str, Any]:
        """Return the code and values, as they are stored."""
        account = self.account
        groups = {
            "functions": dict(account.functions), "constants": stored(account.constants), "state": stored(state)
        }  # fmt: skip
        code = {**groups, **({"python": PYTHON} if account.functions else {})}
        name = {} if self.name is None else {"function": self.name}
        known = {"code": code} if any(code.values()) else {}
        arguments = {**stored(account.arguments), **self.record}
        return {**name, **known, **({"arguments": arguments} if name or arguments else {})}

    def _unknown_source(self) -> list[str]:
        """Return the name of a source of a library, of which nothing but its length is known."""
        source = self.source_of_code
        is_known = self.name is not None or self.account.functions or set(self.identity) - {"length"} or self.unread
        return [] if source is None or is_known else [f"source ({type(source).__name__})"]

    def changes(self, built: Mapping[str, Any]) -> dict[str, list[str]]:
        """Return phrases for all that differs from what a version recorded, in three groups: code, options, source."""
        return {
            "by other code or values": self.code_changes(built),
            "with other options": self._option_changes(built),
            "from another source": [
                *(f"argument {change}" for change in self.argument_changes(built)),
                *self._source_changes(built),
            ],
        }

    def code_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each change of the code and its values since a version recorded it."""
        before, now = (dict(facts.get("code", {})) for facts in (built, self.facts))
        if not before or not now:
            return []
        if before.pop("python", "") != now.pop("python", ""):
            # Every release of Python compiles the same source to other code.
            before.pop("functions", None), now.pop("functions", None)
        states = before.pop("state", {}), now.pop("state", {})
        return [*differences(before, now), *differences(*states, Wording.IN_BOTH)]

    def argument_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each argument that has changed since a version recorded it."""
        before, hashes = built.get("arguments") or {}, stored(self.account.arguments)
        now = {**hashes, **self.record}
        # An argument may have been stored in clear then and not now, or the other way round.
        same = {name for name in before if name in now and _hash(before[name]) in (hashes.get(name), _hash(now[name]))}
        return differences(before, {name: before[name] if name in same else now[name] for name in now}, Wording.IN_BOTH)

    def _option_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each option that decides the records and differs from what a version recorded."""
        before, now = built.get("options", {}), self.options
        others = {name: value for name, value in now.items() if name != "element_spec"}
        phrases = differences(before, others, Wording.IN_BOTH)
        if "element_spec" in before and before["element_spec"] != now.get("element_spec"):
            was, is_now = ({"element_spec": _leaves_by_path(each.get("element_spec"))} for each in (before, now))
            phrases += differences(was, is_now)
        return phrases

    def _source_changes(self, built: Mapping[str, Any]) -> list[str]:
        now = dict(self.identity)
        if built.get("host") != socket.gethostname():
            # Copies of the same files on another host have other modification times.
            now.pop("files_modified", None)
        return differences(built.get("identity") or {}, now, Wording.IN_BOTH)

    @property
    def automatic_name(self) -> str:
        """The name of a version by a hash of code, arguments and options."""
        made = {"code": self.account[:4], **self.options}
        return f"{AUTO}-{hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:12]}"

    def varying_values(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each value that differs from a version of the same code, arguments and options.

        It is empty if anything else differs.
        """
        now, code = self.facts, dict(built.get("code", {}))
        before = {name: built.get(name) for name in ("function", "arguments", "options")}
        if any(now.get(name) != value for name, value in before.items()):
            return []
        if {**now.get("code", {}), "state": {}} != {**code, "state": {}}:
            return []
        kept = code.get("state", {})
        state = now.get("code", {}).get("state", {})
        changed_by_building = [f"{name} is changed by the build" for name in state if name not in kept]
        return differences(kept, state, Wording.IN_BOTH) or changed_by_building


def _identity_of_object(obj: Any, options: BuildOptions) -> tuple[dict[str, Any], str, str]:
    """Return what identifies an object that a user passes, the rows that were sampled, and why it cannot be read."""
    try:
        identity = identity_of_files(local_files(obj))
    except CacheLayerError as error:
        return {}, "", str(error)
    if options.unbatch:
        return identity, "", ""
    if has_records(obj):
        records = records_of(obj)
        return {**identity, "length": len(records), "records": records.digests.elements}, "", ""
    try:
        table = table_of(obj, options.element_spec)
    except (InvalidArgumentError, InvalidTypeError, ElementError) as error:
        # It cannot be stored as it is now, so it is not what was built.
        return {**identity, "columns": str(error), "elements": str(error)}, "", ""
    length = table.length if table is not None else _length(obj)
    found, sampled_rows = ({}, "") if table is None else _identity_of_source(table, MOST_NBYTES)
    return {**identity, **({} if length is None else {"length": length}), **found}, sampled_rows, ""


def _identity_of_source(source: Source, most_nbytes: int) -> tuple[dict[str, Any], str]:
    """Return what identifies the elements of a source that are in memory, and the rows of it that were sampled."""
    if isinstance(source, Table) and source.element_spec is not None:
        hashes = table_hashes(source, most_nbytes)
        if "elements" in hashes.columns:
            return stored(hashes.columns), hashes.in_part
        columns = {f"column {name}": hash_of for name, hash_of in hashes.columns.items()}
        return {"columns": [*hashes.columns], **stored(columns)}, hashes.in_part
    if isinstance(source, SequenceSource) and type(source.items) in _ITEMS:
        return stored(account_of(None, {}, source.items, _hashes_of_held_table).elements), ""
    return {}, ""


def _hashes_of_held_table(value: Any) -> TableHashes | None:
    """Return the hashes of a table or series that code holds; None for anything else."""
    if hasattr(type(value), "to_frame"):
        value = value.to_frame(name="values")
    table = None if isinstance(value, (np.ndarray, Mapping)) else table_of(value)
    return None if table is None else table_hashes(table, _MOST_HELD_NBYTES)


def _deciding_options(options: BuildOptions) -> dict[str, Any]:
    """Return the options that decide which records a version has, as JSON."""
    spec = options.element_spec
    return {
        "element_spec": None if spec is None else spec_json.to_json(spec),
        "max_records": options.max_records,
        "unbatch": options.unbatch,
        "on_error": options.on_error,
    }


def _leaves_by_path(spec: Any) -> Any:
    """Return the leaves of a stored spec in words, by their paths; of one that is a leaf or absent, itself."""
    if spec is None:
        return None
    leaves = {path: repr(leaf) for path, leaf in tree.leaves(spec_json.from_json(spec))}
    return leaves.get("", leaves)


def _length(obj: Any) -> int | None:
    try:
        return None if isinstance(obj, Mapping) else len(obj)
    except Exception:  # noqa: BLE001
        # The user's code may raise anything; then the length is unknown.
        return None


def _hash(value: Any) -> Any:
    """Return the hash of a stored value."""
    return value if isinstance(value, str) and value.startswith(MARK) else stored(described(value))


def _in_clear(name: str, values: Mapping[str, Any]) -> Any:
    try:
        return shown(json.loads(json.dumps(values[name], allow_nan=False, sort_keys=True)))
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise InvalidTypeError(f"record: argument {name!r} has no value, or JSON cannot hold it") from error


def _without_partials(function: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the function inside partial functions, and their arguments."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        args, kwargs, function = (*function.args, *args), {**function.keywords, **kwargs}, function.func
    return function, args, kwargs


def _arguments(source: Callable[..., Any], *, is_call: bool) -> dict[str, Any]:
    """Return the arguments that a function has, by name: those of partial functions, and defaults.

    If the parameters of the function are not known, positional arguments are named by their position.
    """
    function, args, kwargs = _without_partials(source)
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return {**{str(place): value for place, value in enumerate(args)}, **kwargs}
    bound = (signature.bind if is_call else signature.bind_partial)(*args, **kwargs)
    bound.apply_defaults()
    named = dict(bound.arguments)
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.VAR_KEYWORD:
            named = {**named.pop(parameter.name, {}), **named}
    return named


def name_of(source: Callable[..., Any]) -> str:
    """Return the module and qualified name of a function, or of the function inside a partial one."""
    function = _without_partials(source)[0]
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def checked_record(record: Iterable[str]) -> frozenset[str]:
    """Return the names of the arguments that are stored in clear."""
    names = None if isinstance(record, str) or not isinstance(record, Iterable) else list(record)
    if names is None or not all(isinstance(name, str) for name in names):
        raise InvalidTypeError(f'record {record!r}: pass the names of arguments, as in record=("split",)')
    return frozenset(names)


def check_parameters(names: frozenset[str], source: Any) -> None:
    """Raise if a source is not made by a function with parameters of these names."""
    try:
        known = list(inspect.signature(_without_partials(source)[0]).parameters) if names else []
    except (TypeError, ValueError):
        known = []
    for name in sorted(names.difference(known)):
        raise InvalidArgumentError(
            f"record: {name_of(source)} has no argument {name!r}: it has {', '.join(known) or 'none'}"
        )
