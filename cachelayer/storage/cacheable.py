"""The decorator of ``Storage.cacheable``: a decorated function returns a version."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import Any, ParamSpec, Protocol, cast, overload

from cachelayer.access.dataref import DataRef
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.sharded_source import Sharded
from cachelayer.errors import InvalidArgumentError, InvalidNameError
from cachelayer.objects import paths
from cachelayer.protocols import T
from cachelayer.provenance.call_arguments import checked_record, name_of
from cachelayer.versions.reference import AUTO

P = ParamSpec("P")
Cache = Callable[[Callable[[], Any], str, Recipe], DataRef[Any]]
"""Returns a version, given a function that makes its source, its name, and the recipe of the call."""


class Cacheable(Protocol):
    """The type of the decorator: it keeps the parameters of a function and changes its result to a DataRef."""

    @overload
    def __call__(self, function: Callable[P, Mapping[Any, Any]], /) -> Callable[P, DataRef[Any]]: ...
    @overload
    def __call__(self, function: Callable[P, Iterable[T] | Sharded[T]], /) -> Callable[P, DataRef[T]]: ...
    @overload
    def __call__(self, function: Callable[P, Any], /) -> Callable[P, DataRef[Any]]: ...


def cacheable(
    cache: Cache, version: str | Callable[..., str], options: BuildOptions, record: Iterable[str]
) -> Cacheable:
    """Return the decorator; see :meth:`cachelayer.Storage.cacheable`."""
    if version != AUTO and not _is_format(version) and not callable(version):
        paths.check_name("version", version)
    names = checked_record(record)

    def decorate(function: Callable[..., Any]) -> Callable[..., DataRef[Any]]:
        checked_record(names, function)

        @functools.wraps(function)
        def cached(*args: Any, **kwargs: Any) -> DataRef[Any]:
            call = functools.update_wrapper(functools.partial(function, *args, **kwargs), function)
            recipe = Recipe.of(call, options, names, is_call=True)
            if version == AUTO:
                return cache(call, _automatic(recipe), recipe)
            if callable(version):
                name, how = version(*args, **kwargs), f"that {name_of(version)} returns"
            elif _is_format(version):
                name, how = _formatted(version, recipe), f"that {version!r} gives"
            else:
                return cache(call, version, recipe)
            if name == AUTO:
                raise InvalidNameError(f"version {name!r} {how}: choose another name")
            return cache(call, paths.check_name(f"version {how}:", name), recipe)

        return cached

    return cast(Cacheable, decorate)


def _is_format(version: object) -> bool:
    return isinstance(version, str) and ("{" in version or "}" in version)


def _automatic(recipe: Recipe) -> str:
    unknown = [part for part in recipe.account.not_compared if part.startswith("argument ")]
    if unknown or not recipe.account.functions:
        raise InvalidArgumentError(
            f'version="{AUTO}": changes to {", ".join(unknown) or recipe.name} would go unnoticed. Decorate a function '
            "of your own, and pass arguments such as a path or an array; or name the version"
        )
    return recipe.automatic_name


def _formatted(text: str, recipe: Recipe) -> str:
    try:
        return Formatter().vformat(text, (), recipe.values)
    except (KeyError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"version {text!r} cannot be formatted with the arguments of {recipe.name}, which are "
            f"{', '.join(recipe.values) or 'none'}: {error!r}"
        ) from error
