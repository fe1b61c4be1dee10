"""Compare an existing version with the source that is passed now: it may have been built from another one."""

from __future__ import annotations

import socket
from typing import Any, Literal, get_args

from cachelayer.access.dataref import DataRef
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.source_facts import facts_of, option_changes
from cachelayer.builds.source_files import local_identity
from cachelayer.errors import (
    ArgumentsMismatchError,
    CacheLayerError,
    CacheLayerWarning,
    InvalidArgumentError,
    StaleVersionError,
    StaleVersionWarning,
)
from cachelayer.provenance.contents import OF_BOTH, differences, stored_values
from cachelayer.provenance.origin import Origin
from cachelayer.user_warnings import warn

OnChange = Literal["warn", "error", "ignore"]
ON_CHANGE: tuple[OnChange, ...] = get_args(OnChange)

_REMEDY = (
    'Choose another version name for the new records, for example by cacheable(..., "auto"), or pass '
    'on_change="ignore" to use this version'
)
_warned: set[tuple[str, str]] = set()
"""The warnings of this process: the reference of the version, and the text."""


def checked_on_change(on_change: Any) -> OnChange:
    """Return the argument if it is valid."""
    if on_change not in ON_CHANGE:
        raise InvalidArgumentError(f"on_change {on_change!r}: it must be one of {', '.join(map(repr, ON_CHANGE))}")
    return on_change  # type: ignore[no-any-return]


def check_source(ref: DataRef[Any], origin: Origin, options: BuildOptions, on_change: OnChange) -> None:
    """Compare an existing version with the source that it would be built from now.

    This compares only what is cheap to know: it calls no function and iterates nothing. It skips versions that were
    made from another version.
    """
    built = ref.provenance
    if "base" in built:
        return
    arguments = origin.argument_changes(built)
    if arguments and origin.is_call:
        raise ArgumentsMismatchError(
            f"{_name(ref)} was built with other arguments: {'; '.join(arguments)}. "
            "Choose another version name for other arguments"
        )
    if on_change == "ignore":
        return
    groups = {
        "by other code or values": origin.code_changes(built),
        "with other options": option_changes(built, options),
        "from another source": [
            *(f"argument {change}" for change in arguments),
            *_source_changes(ref, origin.source, options),
        ],
    }
    what = ", ".join(f"{how}: {'; '.join(changes)}" for how, changes in groups.items() if changes)
    if what and on_change == "error":
        raise StaleVersionError(f"{_name(ref)} was built {what}. {_REMEDY}")
    if what:
        _warn_once(ref, f"was built {what}. It is used as it is. {_REMEDY}", StaleVersionWarning)


def warn_of_incomparable(ref: DataRef[Any], origin: Origin, on_change: OnChange) -> None:
    """Warn, once in a process, of what makes a version and cannot be compared when it is asked for again."""
    if origin.code.incomparable and on_change != "ignore":
        _warn_once(
            ref,
            f"is compared without this, so changes to it go unnoticed: {', '.join(origin.code.incomparable)}. Make an "
            "object without comparable content inside the function, or pass plain values",
        )


def _source_changes(ref: DataRef[Any], source: Any, options: BuildOptions) -> list[str]:
    built = ref.provenance
    try:
        identity = local_identity(source)
        if built.get("host") != socket.gethostname():
            # Copies of the same files on another host have other modification times.
            identity.pop("files_modified", None)
        now = stored_values({**identity, **facts_of(source, options)})
        return differences(built.get("identity") or {}, now, OF_BOTH)
    except CacheLayerError as error:
        _warn_once(ref, f"is used without comparing all of its source, because that failed: {error}")
        return []


def _warn_once(ref: DataRef[Any], text: str, category: type[CacheLayerWarning] = CacheLayerWarning) -> None:
    if (ref.reference, text) not in _warned:
        _warned.add((ref.reference, text))
        warn(f"{_name(ref)} {text}", category)


def _name(ref: DataRef[Any]) -> str:
    return f"{ref.dataset_id}@{ref.dataset_version}"
