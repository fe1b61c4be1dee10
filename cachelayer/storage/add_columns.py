"""Add columns to a version; see :meth:`cachelayer.Storage.add_columns`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cachelayer.builds.as_source import as_source
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.column_sources import Join, columns_by_key, columns_of_function
from cachelayer.builds.extensions import AddingColumns
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.source_files import at_path
from cachelayer.datasets.field_values import keys_of_view
from cachelayer.errors import AlreadyExistsError, InvalidArgumentError
from cachelayer.provenance.stored_values import hashed, is_number, stored
from cachelayer.storage.builder import Builder
from cachelayer.views.dataref import DataRef


def add_columns(
    builder: Builder,
    base: DataRef[Any],
    new: str,
    columns: Any,
    options: BuildOptions,
    *,
    batched: bool,
    join: Join | None,
    replaces: bool,
    hosts: tuple[int, int] | None,
) -> DataRef[Any]:
    """Publish a version with the records of a base and more columns. Without ``join``, row i is that of record i."""
    extension = AddingColumns(base._base.version, replaces)
    is_function = callable(columns) and not isinstance(columns, Mapping)
    if join is not None and (is_function or batched):
        raise InvalidArgumentError("on= is the key of a table: leave it out for a function")
    if batched and not is_function:
        raise InvalidArgumentError("batched=True is for a function of batches: leave it out for columns")
    columns = at_path(columns)
    recipe = Recipe.of(columns, options)
    arguments: dict[str, Any] = {"batched": batched, "on": None, "replace": replaces}
    if join is not None:
        arguments |= {"on": list(join.on), "how": join.how, "fill": _stored_fill(join.fill)}
    recipe = replace(recipe, options={**recipe.options, **arguments})
    source = columns
    if is_function:
        source = columns_of_function(base, columns, batched=batched)
    elif join is not None:
        keys = keys_of_view(base._records, "on", join.on, options.progress)
        source = columns_by_key(as_source(columns, element_spec=options.element_spec), options.element_spec, keys, join)
    request = builder.request(source, base.dataset_id, new, recipe, options, extension)
    if hosts is None:
        return builder.build(request)
    ref, is_new = builder.find_or_build(request, hosts)
    if not is_new:
        _refuse_other(ref, base, recipe)
    return ref


def _refuse_other(ref: DataRef[Any], base: DataRef[Any], recipe: Recipe) -> None:
    """Raise if a version that exists was made of another base, or of columns with another recipe."""
    built = ref.provenance
    name = f"{ref.dataset_id}@{ref.dataset_version}"
    made_of = built.get("base") or {}
    if "batched" not in (built.get("options") or {}):
        differ = ["no columns were added to make it"]
    elif made_of.get("digest") != base.digest:
        differ = [f"it was made of {made_of.get('version')}, sha256:{str(made_of.get('digest'))[:12]}"]
    else:
        differ = [phrase for phrases in recipe.changes(built).values() for phrase in phrases]
    if differ:
        raise AlreadyExistsError(f"{name} is published already: {'; '.join(differ)}. Choose another version")


def _stored_fill(fill: Any) -> Any:
    """Return the argument ``fill`` as it is stored: numbers as they are, a hash of anything else.

    A dict becomes a list of pairs: recipes are compared by the names that both have, so that a dict would not differ
    from None.
    """
    if isinstance(fill, Mapping):
        return [[name, _stored_fill(value)] for name, value in fill.items()]
    return fill if is_number(fill) else stored(hashed(repr(fill).encode()))
