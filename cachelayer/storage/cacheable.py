"""The decorator that :meth:`cachelayer.Storage.cacheable` returns.

::

    decorated(*arguments) ──> Recipe of the call ──> name of the version ──> the version, built if it does not exist
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from string import Formatter
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, cast, overload

from cachelayer.builds.recipe import Recipe
from cachelayer.builds.sharded_source import Sharded
from cachelayer.errors import InvalidArgumentError, InvalidNameError, InvalidTypeError
from cachelayer.objects import paths
from cachelayer.protocols import T
from cachelayer.storage.builder import Builder
from cachelayer.storage.staleness import warn_of_varying_values
from cachelayer.versions.log import Log
from cachelayer.versions.reference import AUTO, Reference
from cachelayer.views.dataref import DataRef

if TYPE_CHECKING:
    from cachelayer.storage.staleness import OnChange

P = ParamSpec("P")


class Cacheable(Protocol):
    """The type of the decorator: it keeps the parameters of a function and changes its result to a DataRef."""

    @overload
    def __call__(self, function: Callable[P, Mapping[Any, Any]], /) -> Callable[P, DataRef[Any]]: ...
    @overload
    def __call__(self, function: Callable[P, Iterable[T] | Sharded[T]], /) -> Callable[P, DataRef[T]]: ...
    @overload
    def __call__(self, function: Callable[P, Any], /) -> Callable[P, DataRef[Any]]: ...


def cacheable(builder: Builder, template: Reference, on_change: OnChange) -> Cacheable:
    """Return the decorator, given the names of versions as a text; see :meth:`cachelayer.Storage.cacheable`."""
    version = template.name
    if version != AUTO and not _is_format(version):
        paths.check_name("version", version)

    def decorate(function: Callable[..., Any]) -> Callable[..., DataRef[Any]]:
        if not callable(function):
            raise InvalidTypeError(
                f"cacheable of a {type(function).__name__}: decorate a function that returns a source"
            )

        @functools.wraps(function)
        def cached(*args: Any, **kwargs: Any) -> DataRef[Any]:
            call = functools.update_wrapper(functools.partial(function, *args, **kwargs), function)
            recipe = Recipe.of(call, builder.options, is_call=True)
            name = Reference.parse(template.dataset_id, _version_of_call(version, recipe), "new")
            log = Log(builder.catalog.dataset(name.dataset_id))
            request = builder.request(call, log, name.name, recipe)
            warn_of_varying_values(request)
            return builder.compare_or_build(request, on_change)

        return cached

    return cast(Cacheable, decorate)


def _version_of_call(version: str, recipe: Recipe) -> str:
    """Return the name of the version of a call."""
    if version == AUTO:
        return _automatic(recipe)
    if not _is_format(version):
        return version
    name = _formatted(version, recipe)
    origin = f"that {version!r} gives"
    if name == AUTO:
        raise InvalidNameError(f"version {name!r} {origin}: choose another name")
    return paths.check_name(f"version {origin}:", name)


def _is_format(version: str) -> bool:
    return isinstance(version, str) and ("{" in version or "}" in version)


def _automatic(recipe: Recipe) -> str:
    """Return the name of a version by its code and arguments; raise if changes of these could go unnoticed."""
    unknown = [part for part in recipe.account.not_compared if part.startswith("argument ")]
    if unknown or not recipe.account.functions:
        raise InvalidArgumentError(
            f'version "{AUTO}": changes to {", ".join(unknown) or recipe.name} would go unnoticed. Decorate a function '
            "of your own, and pass arguments such as a path or an array; or name the version"
        )
    return recipe.automatic_name


def _formatted(text: str, recipe: Recipe) -> str:
    """Return a format string with the arguments of the call in place of their names."""
    try:
        return Formatter().vformat(text, (), recipe.values)
    except (KeyError, AttributeError, IndexError, TypeError, ValueError) as error:
        raise InvalidArgumentError(
            f"version {text!r} cannot be formatted with the arguments of {recipe.name}, which are "
            f"{', '.join(recipe.values) or 'none'}: {error!r}"
        ) from error
