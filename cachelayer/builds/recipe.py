"""What a version is built from: the one account, which everything compares that has to know whether it is the same.

The plan of a build is the recipe with what decides the shards: only a build with an equal plan goes on after an
interrupted one, or helps. The provenance is the recipe as it is stored. A later call compares its recipe with it, and
``version="auto"`` names a version by it.

All is found without calling or iterating anything of the user, so that a version can be compared each time.
"""

from __future__ import annotations

import functools
import hashlib
import json
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType, MethodType
from typing import Any, Self

from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.sharded_source import Sharded
from cachelayer.builds.source import Source
from cachelayer.builds.source_files import FileFacts, FileSource, identity_of_files
from cachelayer.builds.source_identity import (
    Identity,
    hashes_of_held_table,
    identity_of_object,
    identity_of_source,
)
from cachelayer.provenance.call_arguments import arguments_of, checked_record, in_clear, name_of
from cachelayer.provenance.function_code import PYTHON, code_file
from cachelayer.provenance.stored_values import MARK, Wording, differences, stored
from cachelayer.provenance.values import content_of
from cachelayer.provenance.walker import Account, account_of
from cachelayer.records import spec_json, tree
from cachelayer.versions.reference import AUTO

_failed: dict[str, tuple[Mapping[str, Any], Mapping[str, Any]]] = {}
"""For each version whose build failed in this process, the values before and after that."""


@dataclass(frozen=True, eq=False)
class Recipe:
    """What a version is built from. Values are only in memory: hashes of them are stored.

    Args:
        made_by: the function or object whose code and values count.
        name: the name of the function, or of the object's class; None if neither is known.
        is_call: whether a function that makes versions was called; else its arguments were bound before.
        values: the arguments by name.
        record: those that are stored in clear, as JSON.
        account: the code and values that make it.
        identity: what identifies the source besides.
        options: the options that decide the records, as JSON.
    """

    made_by: Any = None
    name: str | None = None
    is_call: bool = False
    values: Mapping[str, Any] = field(default_factory=dict)
    record: Mapping[str, Any] = field(default_factory=dict)
    account: Account = field(default_factory=Account)
    identity: Identity = field(default_factory=Identity)
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, source: Any, options: BuildOptions, record: Iterable[str] = (), *, is_call: bool = False) -> Self:
        """Return the recipe of a source, or of a function that makes it.

        Args:
            source: the source.
            options: the options of the build.
            record: the names of the arguments that are stored in clear.
            is_call: whether the function, which is partial, has all arguments of its call.
        """
        made_by = source.function if isinstance(source, Sharded) else source
        names = checked_record(record, made_by)
        is_function = isinstance(made_by, (FunctionType, MethodType, functools.partial))
        is_known = is_function or bool(code_file(made_by))
        values: Mapping[str, Any] = {}
        if isinstance(made_by, FileSource):
            values = made_by.options
        elif is_known and callable(made_by):
            values = arguments_of(made_by, is_call=is_call)
        identity = Identity() if is_function else identity_of_object(made_by, options)
        return cls(
            made_by,
            name_of(made_by if callable(made_by) else type(made_by)) if is_known else None,
            is_call,
            values,
            in_clear(names, values),
            account_of(made_by, values, hashes_of_held_table, identity.elements.code),
            identity,
            _deciding_options(options),
        )

    def completed(self, source: Source, files: Sequence[FileFacts]) -> Self:
        """Return the recipe with what is known of the source once the function was called.

        Args:
            source: the source that was made.
            files: the files that it reads.
        """
        known, identity = {**identity_of_files(files), **self.identity.facts}, self.identity
        if source.length and not any(name == "elements" or name.startswith("column") for name in known):
            identity = identity_of_source(source)
        return replace(self, identity=identity._replace(facts={**identity.facts, **known}))

    @property
    def facts(self) -> dict[str, Any]:
        """The recipe as it is stored: numbers in clear, and of everything else hashes that show a change."""
        account = self.account
        code = {
            "functions": dict(account.functions), "constants": stored(account.constants), "state": stored(account.state)
        }  # fmt: skip
        arguments = {**stored(account.arguments), **self.record}
        facts = {
            "function": self.name,
            "code": {**code, **({"python": PYTHON} if account.functions else {})} if any(code.values()) else None,
            "arguments": arguments if self.name is not None or arguments else None,
            "identity": dict(self.identity.facts) or None,
            "options": dict(self.options) or None,
        }
        return {name: value for name, value in facts.items() if value is not None}

    @property
    def provenance(self) -> dict[str, Any]:
        """The facts, and what is compared in part or not at all, without the values that the build has changed.

        Those show how far it has read. Call this after the build.
        """
        later = self._state_now()
        unchanged = {name: value for name, value in self.account.state.items() if later.get(name) == value}
        in_part = [*self.account.in_part, *(f"elements ({sample})" for sample in self.identity.elements.in_part)]
        in_part += [self.identity.sampled_rows] if self.identity.sampled_rows else []
        not_compared = [*self.not_compared, *self._unknown_source()]
        return {
            **replace(self, account=self.account._replace(state=unchanged)).facts,
            **({"compared_in_part": in_part} if in_part else {}),
            **({"not_compared": not_compared} if not_compared else {}),
        }

    @property
    def not_compared(self) -> list[str]:
        """The values that cannot be compared, with the types that are the reason."""
        elements = ", ".join(self.identity.elements.not_compared)
        return [*self.account.not_compared, *([f"elements ({elements})"] if elements else [])]

    def _unknown_source(self) -> list[str]:
        """Return the name of a source of a library, of which nothing but its length is known."""
        is_known = self.name is not None or self.account.functions
        is_identified = set(self.identity.facts) - {"length"} or self.identity.unread
        if self.made_by is None or is_known or is_identified:
            return []
        return [f"source ({type(self.made_by).__name__})"]

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

    def remember_failure(self, version: str) -> None:
        """Remember what a build that fails has changed, for :meth:`going_on`."""
        _failed[version] = self.account.state, self._state_now()

    def _state_now(self) -> Mapping[str, Any]:
        """Return the values that code may have changed, as they are now."""
        if not self.account.state:
            return {}
        return account_of(self.made_by, self.values, hashes_of_held_table).state

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
        now = dict(self.identity.facts)
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


def _hash(value: Any) -> Any:
    """Return the hash of a stored value."""
    return value if isinstance(value, str) and value.startswith(MARK) else stored(content_of(value).value)
