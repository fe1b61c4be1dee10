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
        check_parameters(record, function)

        @functools.wraps(function)
        def cached(*args: Any, **kwargs: Any) -> DataRef[Any]:
            call = functools.update_wrapper(functools.partial(function, *args, **kwargs), function)
            origin = Origin.of(call, record, is_call=True)
            if version == AUTO:
                return cache(call, _automatic(origin, options), origin)
            if callable(version):
                name, how = version(*args, **kwargs), f"that {name_of(version)} returns"
            elif _is_format(version):
                name, how = _formatted(version, origin), f"that {version!r} gives"
            else:
                return cache(call, version, origin)
            if name == AUTO:
                raise InvalidNameError(f"version {name!r} {how}: choose another name")
            return cache(call, paths.check_name(f"version {how}:", name), origin)

        return cached

    return cast(Cacheable, decorate)


def _is_format(version: object) -> bool:
    return isinstance(version, str) and ("{" in version or "}" in version)


def _automatic(origin: Origin, options: BuildOptions) -> str:
    code = origin.code
    unknown = [part for part in code.incomparable if part.startswith("argument ")]
    if unknown or not code.functions:
        raise InvalidArgumentError(
            f'version="{AUTO}": changes to {", ".join(unknown) or origin.name} would go unnoticed. Decorate a function '
            "of your own, and pass arguments such as a path or an array; or name the version"
        )
    made = {"code": code[:4], **deciding_options(options)}
    return f"{AUTO}-{hashlib.sha256(json.dumps(made, sort_keys=True).encode()).hexdigest()[:12]}"


def _formatted(text: str, origin: Origin) -> str:
    try:
        return Formatter().vformat(text, (), origin.values)
    except (KeyError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"version {text!r} cannot be formatted with the arguments of {origin.name}, which are "
            f"{', '.join(origin.values) or 'none'}: {error!r}"
        ) from error
