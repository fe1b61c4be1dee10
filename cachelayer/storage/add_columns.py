"""Add columns to a version; see :meth:`cachelayer.Storage.add_columns`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from cachelayer.builds.as_source import as_source
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.column_sources import Join, columns_by_key, columns_of_function
from cachelayer.builds.extensions import AddedColumns
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.source_files import at_path
from cachelayer.datasets.field_values import keys_of_view
from cachelayer.errors import InvalidArgumentError
from cachelayer.provenance.stored_values import hashed, is_number, stored
from cachelayer.storage.builder import Builder
from cachelayer.storage.staleness import refuse_other
from cachelayer.versions.log import Log
from cachelayer.views.dataref import DataRef


@dataclass(frozen=True)
class NewColumns:
    """Columns that a user adds: those of a table, or those that a function makes of each record."""

    columns: Any
    batched: bool
    """Whether the function takes a batch."""
    join: Join | None
    """How records find their rows in the table; None if row i is that of record i."""
    replaces: bool
    """Whether a column may take the place of a field of the base."""

    def __post_init__(self) -> None:
        if self.join is not None and (self._is_function or self.batched):
            raise InvalidArgumentError("on= is the key of a table: leave it out for a function")
        if self.batched and not self._is_function:
            raise InvalidArgumentError("batched=True is for a function of batches: leave it out for columns")

    @property
    def _is_function(self) -> bool:
        return callable(self.columns) and not isinstance(self.columns, Mapping)

    def recipe(self, options: BuildOptions) -> Recipe:
        recipe = Recipe.of(at_path(self.columns), options)
        arguments: dict[str, Any] = {"batched": self.batched, "on": None, "replace": self.replaces}
        if self.join is not None:
            arguments |= {"on": list(self.join.on), "how": self.join.how, "fill": _stored_fill(self.join.fill)}
        return replace(recipe, options={**recipe.options, **arguments})

    def source(self, base: DataRef[Any], options: BuildOptions) -> Any:
        """Return the source of the columns of the records of a base."""
        if self._is_function:
            return columns_of_function(base, self.columns, batched=self.batched)
        if self.join is None:
            return self.columns
        keys = keys_of_view(base._records, "on", self.join.on, options.progress)
        table = as_source(self.columns, element_spec=options.element_spec)
        return columns_by_key(table, options.element_spec, keys, self.join)


def add_columns(builder: Builder, base: DataRef[Any], version: str, added: NewColumns) -> DataRef[Any]:
    """Publish a version with the records of a base and more columns."""
    extension = AddedColumns(base._base.version, added.replaces)
    recipe = added.recipe(builder.options)
    log = Log(builder.catalog.dataset(base.dataset_id))
    request = builder.request(added.source(base, builder.options), log, version, recipe, extension)
    if builder.options.hosts is None:
        return builder.build(request)
    return builder.find_or_build(
        request, lambda ref: refuse_other(ref, version, base.digest, _differences(ref, recipe))
    )


def _differences(ref: DataRef[Any], recipe: Recipe) -> list[str]:
    """Return a phrase for each way in which a version that exists is none with columns of this recipe."""
    if "batched" not in (ref.provenance.get("options") or {}):
        return ["no columns were added to make it"]
    return [phrase for phrases in recipe.changes(ref.provenance).values() for phrase in phrases]


def _stored_fill(fill: Any) -> Any:
    """Return the argument ``fill`` as it is stored: numbers as they are, a hash of anything else.

    A dict becomes a list of pairs: recipes are compared by the names that both have, so that a dict would not differ
    from None.
    """
    if isinstance(fill, Mapping):
        return [[name, _stored_fill(value)] for name, value in fill.items()]
    return fill if is_number(fill) else stored(hashed(repr(fill).encode()))
