"""The decorator of ``Storage.cacheable``: a decorated function returns a version."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ParamSpec, Protocol, cast, overload

from cachelayer.access.dataref import DataRef
from cachelayer.builds.sharded_source import Sharded
from cachelayer.protocols import T
from cachelayer.provenance.fingerprint import fingerprint, keep_source
from cachelayer.provenance.function_call import Call, name_of
from cachelayer.provenance.origin import Origin, check_parameters
from cachelayer.records import spec_json
from cachelayer.records.infer import declared
from cachelayer.storage.version_names import check_naming, naming
from cachelayer.user_warnings import warn

P = ParamSpec("P")
Cache = Callable[[Callable[[], Any], str, Origin], DataRef[Any]]
"""Returns a version, given a function that makes its source, its name, and what is recorded of the call."""

_OPTIONS_IN_NAMES = ("element_spec", "max_records", "unbatch", "on_error")
"""The submit options that decide which records a version has: ``"auto"`` names depend on them."""


class Cacheable(Protocol):
    """The type of the decorator: it keeps the parameters of a function and changes its result to a DataRef."""

    @overload
    def __call__(self, function: Callable[P, Mapping[Any, Any]], /) -> Callable[P, DataRef[Any]]: ...
    @overload
    def __call__(self, function: Callable[P, Iterable[T] | Sharded[T]], /) -> Callable[P, DataRef[T]]: ...
    @overload
    def __call__(self, function: Callable[P, Any], /) -> Callable[P, DataRef[Any]]: ...


def cacheable(
    cache: Cache, version: str | Callable[..., str], options: Mapping[str, Any], record: frozenset[str]
) -> Cacheable:
    """Return the decorator; see :meth:`cachelayer.Storage.cacheable`."""
    check_naming(version)
    named_options = {
        name: spec_json.to_json(declared(value)) if name == "element_spec" and value is not None else value
        for name, value in options.items()
        if name in _OPTIONS_IN_NAMES
    }

    def decorate(function: Callable[..., Any]) -> Callable[..., DataRef[Any]]:
        keep_source(function)
        version_of = naming(version, function, named_options)
        check_parameters(record, function)

        @functools.wraps(function)
        def cached(*args: Any, **kwargs: Any) -> DataRef[Any]:
            call, code = Call.of(function, args, kwargs), fingerprint(function)
            name = version_of(call, code)
            if call.unrecorded:
                _warn_unrecorded(call)

            @functools.wraps(function)
            def source() -> Any:
                return function(*args, **kwargs)

            return cache(source, name, Origin.of_call(call, code, record))

        return cached

    return cast(Cacheable, decorate)


def _warn_unrecorded(call: Call) -> None:
    warn(
        f"{name_of(call.function)}: JSON cannot hold argument {', '.join(call.unrecorded)}, "
        "so it is not compared with the argument that built the version"
    )
