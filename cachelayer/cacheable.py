"""Functions whose results are versions."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, Protocol, cast, overload

from cachelayer.access.dataref import DataRef
from cachelayer.elements import spec_json
from cachelayer.elements.infer import declared
from cachelayer.errors import CacheLayerWarning, StaleVersionWarning
from cachelayer.locks import ProcessLock
from cachelayer.protocols import T
from cachelayer.versions.calls import Call, name_of
from cachelayer.versions.fingerprint import Fingerprint, fingerprint, keep_source
from cachelayer.versions.naming import check_naming, naming

P = ParamSpec("P")
Cache = Callable[[Callable[[], Any], str, Mapping[str, Any]], DataRef[Any]]
"""Gives the version of a function that makes its source, a name, and what is recorded of the call."""

_DECIDE = ("element_spec", "max_records", "unbatch", "on_error")
"""The submit options that decide which records a version has."""

_lock = ProcessLock()
_warned: set[tuple[str, str]] = set()


class Cacheable(Protocol):
    """A decorator that keeps the parameters of a function, and makes what it returns a version."""

    @overload
    def __call__(self, function: Callable[P, Mapping[Any, Any]], /) -> Callable[P, DataRef[Any]]: ...
    @overload
    def __call__(self, function: Callable[P, Iterable[T]], /) -> Callable[P, DataRef[T]]: ...
    @overload
    def __call__(self, function: Callable[P, Any], /) -> Callable[P, DataRef[Any]]: ...


def cacheable(cache: Cache, dataset_version: str | Callable[..., str], submit_options: Mapping[str, Any]) -> Cacheable:
    """The decorator; see :meth:`cachelayer.Storage.cacheable`."""
    check_naming(dataset_version)
    decides = {
        name: spec_json.to_json(declared(value)) if name == "element_spec" and value is not None else value
        for name, value in submit_options.items()
        if name in _DECIDE
    }

    def decorate(function: Callable[..., Any]) -> Callable[..., DataRef[Any]]:
        keep_source(function)
        version_of = naming(dataset_version, function, decides)

        @functools.wraps(function)
        def cached(*args: Any, **kwargs: Any) -> DataRef[Any]:
            call, code = Call.of(function, args, kwargs), fingerprint(function)
            version = version_of(call, code)
            if call.unrecorded:
                _warn_unrecorded(call)

            @functools.wraps(function)
            def source() -> Any:
                return function(*args, **kwargs)

            stored = None if code is None else code.to_json()
            ref = cache(source, version, {"function": name_of(function), "code": stored, "arguments": call.recorded})
            call.check(f"{ref.dataset_id}@{version}", ref.provenance.get("arguments"))
            _warn_stale(ref, code)
            return ref

        return cached

    return cast(Cacheable, decorate)


def _warn_unrecorded(call: Call) -> None:
    warnings.warn(
        f"{name_of(call.function)}: JSON cannot hold argument {', '.join(call.unrecorded)}: "
        "not compared with what the version was built with",
        CacheLayerWarning,
        stacklevel=3,
    )


def _warn_stale(ref: DataRef[Any], now: Fingerprint | None) -> None:
    """Say, once in a process, that a version was built by other code than there is now."""
    provenance = ref.provenance
    built = Fingerprint.from_json(provenance.get("code")) if "arguments" in provenance else None
    if built is None or now is None or built == now:
        return
    with _lock:
        if (ref.reference, now.digest) in _warned:
            return
        _warned.add((ref.reference, now.digest))
    warnings.warn(
        f"{ref.dataset_id}@{ref.dataset_version} was built by other code: {'; '.join(built.changes(now))}. It is used "
        'as it is: give what the code makes now another version, or let dataset_version="auto" name it',
        StaleVersionWarning,
        stacklevel=3,
    )
