"""The decorator of ``Storage.cacheable``: a decorated function returns a version."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import Any, ParamSpec, Protocol, cast, overload

from cachelayer.access.dataref import DataRef
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.sharded_source import Sharded
from cachelayer.builds.source_facts import deciding_options
from cachelayer.errors import InvalidArgumentError, InvalidNameError
from cachelayer.objects import paths
from cachelayer.protocols import T
from cachelayer.provenance.fingerprint import keep_source
from cachelayer.provenance.origin import Origin, check_parameters, name_of
from cachelayer.versions.reference import AUTO, check_new_version

P = ParamSpec("P")
Cache = Callable[[Callable[[], Any], str, Origin], DataRef[Any]]
"""Returns a version, given a function that makes its source, its name, and what is recorded of the call."""


class Cacheable(Protocol):
    """The type of the decorator: it keeps the parameters of a function and changes its result to a DataRef."""

    @overload
    def __call__(self, function: Callable[P, Mapping[Any, Any]], /) -> Callable[P, DataRef[Any]]: ...
    @overload
    def __call__(self, function: Callable[P, Iterable[T] | Sharded[T]], /) -> Callable[P, DataRef[T]]: ...
    @overload
    def __call__(self, function: Callable[P, Any], /) -> Callable[P, DataRef[Any]]: ...


def cacheable(
    cache: Cache, version: str | Callable[..., str], options: BuildOptions, record: frozenset[str]
) -> Cacheable:
    """Return the decorator; see :meth:`cachelayer.Storage.cacheable`."""
    if version != AUTO and not _is_format(version) and not callable(version):
        check_new_version(version)

    def decorate(function: Callable[..., Any]) -> Callable[..., DataRef[Any]]:
        keep_source(function)
        check_parameters(record, function)

        @functools.wraps(function)
        def cached(*args: Any, **kwargs: Any) -> DataRef[Any]:
            origin = Origin.of_call(function, args, kwargs, record)

            @functools.wraps(function)
            def source() -> Any:
                return function(*args, **kwargs)

            name = version(*args, **kwargs) if callable(version) else version
            return cache(source, _version_of(version, name, origin, options), origin)

        return cached

    return cast(Cacheable, decorate)


def _version_of(version: str | Callable[..., str], name: str, origin: Origin, options: BuildOptions) -> str:
    """Return the name of the version that a call makes.

    Args:
        version: a name; a format string with the function's parameters as fields; a function; or ``"auto"``.
        name: what the function returned; else the version.
        origin: the call.
        options: those that decide which records a version has are a part of ``"auto"`` names.
    """
    if version == AUTO:
        return _automatic(origin, options)
    if callable(version):
        how = f"that {name_of(version)} returns"
    elif _is_format(version):
        name, how = _formatted(version, origin), f"that {version!r} gives"
    else:
        return version
    if name == AUTO:
        raise InvalidNameError(f"version {name!r} {how}: choose another name")
    return paths.check_name(f"version {how}:", name)


def _is_format(version: object) -> bool:
    return isinstance(version, str) and ("{" in version or "}" in version)


def _automatic(origin: Origin, options: BuildOptions) -> str:
    function, code = origin.name, origin.code
    if code.without_source or not code.functions:
        raise InvalidArgumentError(
            f'version="{AUTO}": the source code of {", ".join(code.without_source) or function} is not available, so '
            "changes to it would go unnoticed: define it in a file, restart or reload the module if the file was "
            "edited after it was imported, or name the version"
        )
    arguments = [name for name in code.incomparable if name.startswith("argument ")]
    if arguments:
        raise InvalidArgumentError(
            f'version="{AUTO}": {", ".join(arguments)} of {function} has no content that can be compared, so other '
            "values would get the same name: pass a value such as a path or an array, or name the version"
        )
    made = {"code": code.digest, **deciding_options(options)}
    return f"{AUTO}-{hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:12]}"


def _formatted(text: str, origin: Origin) -> str:
    try:
        return Formatter().vformat(text, (), origin.values)
    except (KeyError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"version {text!r} cannot be formatted with the arguments of {origin.name}, which are "
            f"{', '.join(origin.values) or 'none'}: {error!r}"
        ) from error
