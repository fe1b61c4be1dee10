"""The recipe of a version: what it is built from, as one value that everybody compares.

::

    Recipe: the code, its arguments and values, the identity of the source, the options that decide the records
       │
       ├─ facts ───────────> plan of a build     only a build with an equal plan goes on after another, or helps it
       ├─ provenance ──────> manifest            stored with the version
       ├─ changes(stored) ─> cache, cacheable    what differs between a version and a call now
       └─ automatic_name ──> version="auto"      the name of the version

A recipe is made without calling or iterating anything of the user, so that every call can compare its own. Only hashes
of values are stored, never the values.
"""

from __future__ import annotations

import functools
import hashlib
import inspect
import json
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType
from typing import Any, Self

from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.sharded_source import Sharded
from cachelayer.builds.source import FileFacts, Source
from cachelayer.builds.source_files import FileSource, content_of_files, identity_of_files, local_files
from cachelayer.builds.source_identity import (
    ITEMS,
    Identity,
    identity_of_object,
    identity_of_source,
    look,
)
from cachelayer.provenance.account import VARIES, Account, account_of
from cachelayer.provenance.function_code import PYTHON, code_file
from cachelayer.provenance.stored_values import Wording, differences, stored
from cachelayer.specs import spec_json, tree
from cachelayer.streams.stream import Stream
from cachelayer.versions.reference import AUTO


@dataclass(frozen=True, eq=False)
class Recipe:
    """The recipe of a version: its code, arguments, options and the identity of its source.

    Values are only in memory: hashes of them are stored.
    """

    made_by: Any = None
    """The function that makes the source, or the source itself."""
    name: str | None = None
    """The name of the function, or of the class of the source; None if the user wrote neither."""
    is_call: bool = False
    """Whether a decorated function was called; else its arguments were bound before, as by ``functools.partial``."""
    values: Mapping[str, Any] = field(default_factory=dict)
    """The arguments of the function by name."""
    account: Account = field(default_factory=Account)
    """The code that runs, and hashes of the values that it uses."""
    identity: Identity = field(default_factory=Identity)
    """What identifies the source besides: its length, and hashes of its elements, columns or files."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The options that decide the records, as JSON values."""

    @classmethod
    def of(cls, source: Any, options: BuildOptions, *, is_call: bool = False) -> Self:
        """Return the recipe of a source, or of a function that makes it.

        With ``is_call``, the source is a ``functools.partial`` with all arguments of a call.
        """
        made_by = source.function if isinstance(source, Sharded) else source
        is_function = isinstance(made_by, (FunctionType, MethodType, functools.partial))
        # Code of the user tells more than the class of a library does.
        is_known = is_function or bool(code_file(made_by))
        values: Mapping[str, Any] = {}
        if isinstance(made_by, FileSource):
            values = made_by.options
        elif isinstance(made_by, Stream):
            values = {"functions": made_by._reader.functions}
        elif is_known and callable(made_by):
            values = _arguments_of(made_by, is_call=is_call)
        name = None
        if is_known:
            name = name_of(made_by if callable(made_by) else type(made_by))
        identity = Identity() if is_function else identity_of_object(made_by, options)
        is_held = type(made_by) in ITEMS and not options.unbatch and not identity.has_content
        elements = made_by if is_held else None
        has_state = not identity.has_content and elements is None
        account = account_of(made_by, values, look, elements=elements, has_state=has_state)
        if elements is not None:
            identity = identity._replace(facts={**identity.facts, "elements": stored(account.elements)})
        return cls(
            made_by=made_by,
            name=name,
            is_call=is_call,
            values=values,
            account=account,
            identity=identity,
            options=_deciding_options(options),
        )

    def completed(self, source: Source, files: Sequence[FileFacts]) -> Self:
        """Return the recipe with the identity of the source that the user's function has returned."""
        known = {**identity_of_files(files), **self.identity.facts}
        if isinstance(self.made_by, FileSource) and self.made_by.is_local:
            # Nobody compares the files that a function names: a hit does not call it.
            known |= content_of_files(files)
        identity = self.identity
        if source.length and not identity.has_elements:
            identity = identity_of_source(source)
        return replace(self, identity=identity._replace(facts={**identity.facts, **known}))

    @property
    def facts(self) -> dict[str, Any]:
        """The recipe as it is stored: numbers in clear, and a hash of everything else, which shows a change."""
        account = self.account
        code: dict[str, Any] = {"functions": dict(account.functions), "values": stored(account.values)}
        arguments = stored(account.arguments)
        facts: dict[str, Any] = {}
        if any(code.values()):
            # Every release of Python compiles functions to other code.
            facts["code"] = {**code, "python": PYTHON} if account.functions else code
        if self.name is not None or arguments:
            facts["arguments"] = arguments
        if self.identity.facts:
            facts["identity"] = dict(self.identity.facts)
        if self.options:
            facts["options"] = dict(self.options)
        return facts

    @property
    def provenance(self) -> dict[str, Any]:
        """The facts as the manifest stores them, with the function, and what is compared in part or not at all.

        Ask for it after the build. A value that the build has changed, such as the position of an iterator, is marked:
        the next call would find another value, and take the version for stale.
        """
        named = {} if self.name is None else {"function": self.name}
        provenance = named | replace(self, account=replace(self.account, values=self.account.after_build())).facts
        in_part = [*self.account.in_part]
        if self.identity.sampled_rows:
            in_part.append(self.identity.sampled_rows)
        if in_part:
            provenance["compared_in_part"] = in_part
        if self.account.not_compared:
            provenance["not_compared"] = [*self.account.not_compared]
        return provenance

    def changes(self, built: Mapping[str, Any]) -> dict[str, list[str]]:
        """Return a phrase for everything that differs from the provenance of a version, by the kind of change."""
        return {
            "by other code or values": self.code_changes(built),
            "with other options": self._option_changes(built),
            "from another source": [
                *(f"argument {change}" for change in self.argument_changes(built)),
                *self._source_changes(built),
            ],
        }

    def code_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each function and value that differs from the provenance of a version."""
        before = built.get("code", {})
        now = self.facts.get("code", {})
        if not before or not now:
            return []
        # Every release of Python compiles functions to other code, so the hashes of another say nothing.
        is_same_python = before.get("python") == now.get("python")
        groups = ("functions", "values") if is_same_python else ("values",)
        varies = _varying(before)
        one, other = (
            {
                group: {name: value for name, value in code.get(group, {}).items() if name not in varies}
                for group in groups
            }
            for code in (before, now)
        )
        return differences(one, other)

    def argument_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each argument that differs from the provenance of a version."""
        return differences(built.get("arguments") or {}, stored(self.account.arguments), Wording.IN_BOTH)

    def _option_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each option that differs from the provenance of a version."""
        before = built.get("options", {})
        now = self.options
        others = {name: value for name, value in now.items() if name != "element_spec"}
        phrases = differences(before, others, Wording.IN_BOTH)
        if "element_spec" in before and before["element_spec"] != now.get("element_spec"):
            # Leaf by leaf: the spec as a whole would be a long text.
            spec_before = {"element_spec": _leaves_by_path(before["element_spec"])}
            spec_now = {"element_spec": _leaves_by_path(now.get("element_spec"))}
            phrases += differences(spec_before, spec_now)
        return phrases

    def _source_changes(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each part of the source's identity that differs from the provenance of a version."""
        before = built.get("identity") or {}
        changes = differences(before, self.identity.facts, Wording.IN_BOTH)
        if not changes or "files_modified" not in self.identity.facts:
            return changes
        # Copies of the same files on another host have other times, and so have files that were only touched.
        is_elsewhere = built.get("host") != socket.gethostname()
        content = before.get("files_content")
        if is_elsewhere or (content and content_of_files(local_files(self.made_by)).get("files_content") == content):
            now = {name: fact for name, fact in self.identity.facts.items() if name != "files_modified"}
            return differences(before, now, Wording.IN_BOTH)
        return changes

    @property
    def automatic_name(self) -> str:
        """The name of the version: ``auto-`` and a hash of the code, the arguments, the values and the options."""
        account = self.account
        code = [account.functions, account.arguments, account.values]
        decided_by = json.dumps({"code": code, **self.options}, sort_keys=True)
        return f"{AUTO}-{hashlib.sha256(decided_by.encode()).hexdigest()[:12]}"

    def varying_values(self, built: Mapping[str, Any]) -> list[str]:
        """Return a phrase for each value that differs from the provenance of a version of the same code and arguments.

        If anything besides values differs, there is none.
        """
        now = self.facts
        functions = [facts.get("code", {}).get("functions") for facts in (now, built)]
        if functions[0] != functions[1] or any(now.get(name) != built.get(name) for name in ("arguments", "options")):
            return []
        return self.code_changes(built) or [f"{name} is changed by the build" for name in _varying(built["code"])]


def _varying(code: Mapping[str, Any]) -> list[str]:
    """Return the names of the values that the build has changed."""
    return [name for name, value in code.get("values", {}).items() if value == VARIES]


def _deciding_options(options: BuildOptions) -> dict[str, Any]:
    """Return the options that decide which records a version has, as JSON values."""
    spec = options.element_spec
    return {
        "element_spec": None if spec is None else spec_json.to_json(spec),
        "max_records": options.max_records,
        "unbatch": options.unbatch,
        "on_error": options.on_error,
    } | ({} if options.validate else {"validate": False})


def _leaves_by_path(spec: Any) -> Any:
    """Return the leaves of a stored spec in words, by their paths; if the spec is one leaf, that in words; or None."""
    if spec is None:
        return None
    leaves = {path: repr(leaf) for path, leaf in tree.leaves(spec_json.from_json(spec))}
    return leaves.get("", leaves)


def name_of(source: Callable[..., Any]) -> str:
    """Return the module and qualified name of a function; of a ``functools.partial``, those of its function."""
    function = _without_partials(source)[0]
    name = getattr(function, "__qualname__", type(function).__qualname__)
    return f"{getattr(function, '__module__', None) or type(function).__module__}.{name}"


def _arguments_of(source: Callable[..., Any], *, is_call: bool) -> dict[str, Any]:
    """Return the arguments that are bound to a function, by name: by ``functools.partial``, and by default.

    Positional arguments of a function of unknown parameters, such as one written in C, have their positions as names.

    With ``is_call``, all arguments of a call are bound.
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


def _without_partials(function: Any) -> tuple[Any, tuple[Any, ...], dict[str, Any]]:
    """Return the function inside nested partial functions, with the arguments of all of them."""
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    while isinstance(function, functools.partial):
        args = (*function.args, *args)
        kwargs = {**function.keywords, **kwargs}
        function = function.func
    return function, args, kwargs
