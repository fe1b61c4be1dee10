"""Make new versions in a catalog.

::

    Storage.submit          Builder.submit           build the version; it is an error if it exists
    Storage.append          Builder.append           the same, with the records of a base in front
    Storage.cache           Builder.cache            return the version if it exists, after a look whether it is stale;
    Storage.cacheable       Builder.compare_or_build else build it, once among all processes that ask, or begin to
                                                     build it in the background (growing.py)
    Storage.add_columns     Builder.find_or_build    return the version if it exists; else build it
    Storage.rewrite

A source with splits, such as a ``DatasetDict``, is several datasets: each method does the same for every split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from cachelayer.builds.as_source import sources_by_split
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_plan import BuildPlan, BuildRequest
from cachelayer.builds.build_version import build_once, building, submit
from cachelayer.builds.extensions import NEW_RECORDS, Appending, Extension
from cachelayer.builds.hosts import Hosts
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.source_files import at_path
from cachelayer.errors import AlreadyExistsError, ElementError, InvalidArgumentError
from cachelayer.objects import paths
from cachelayer.sequences.packs import PackArguments
from cachelayer.storage.catalog import Catalog
from cachelayer.storage.growing import begin_build
from cachelayer.storage.staleness import OnChange, check_recipe, warn_of_incomparable
from cachelayer.versions.log import Log
from cachelayer.versions.reference import Reference
from cachelayer.views.dataref import DataRef


@dataclass(frozen=True)
class Builder:
    """Makes new versions in a catalog."""

    catalog: Catalog

    def submit(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        options: BuildOptions,
        pack: PackArguments | None,
    ) -> DataRef[Any]:
        """Build a version from a source; see :meth:`cachelayer.Storage.submit`."""

        def build_split(split: Any, split_id: str) -> DataRef[Any]:
            recipe = Recipe.of(split, options)
            ref = self.build(self.request(split, split_id, version, recipe, options))
            store_packs(ref, pack)
            return ref

        return for_each_split(source, dataset_id, build_split)

    def append(
        self,
        source: Any,
        base: Reference,
        version: str,
        options: BuildOptions,
        fill: Mapping[str, Any],
        pack: PackArguments | None,
    ) -> DataRef[Any]:
        """Build a version with the records of a base and those of a source; see :meth:`cachelayer.Storage.append`."""

        def append_split(split: Any, split_id: str) -> DataRef[Any]:
            log = Log(self.catalog.dataset(split_id))
            before = self.catalog.open(self.catalog.resolve(replace(base, dataset_id=split_id), log))._base.version
            recipe = Recipe.of(split, options)
            extension = Appending(before, fill)
            try:
                ref = self.build(replace(self.request(split, split_id, version, recipe, options, extension), log=log))
            except ElementError as error:
                # Other builds may declare another spec.
                hint = f"Appended elements have the element spec of {before.name}: convert it, or begin a new dataset."
                raise error.at(hint=hint) from None
            store_packs(ref, pack)
            return ref

        return for_each_split(source, base.dataset_id, append_split)

    def cache(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        options: BuildOptions,
        *,
        on_change: OnChange,
        hosts: tuple[int, int] | None,
        pack: PackArguments | None,
        wait: bool,
    ) -> DataRef[Any]:
        """Return a version, built if it does not exist; see :meth:`cachelayer.Storage.cache`."""
        if pack is not None and not wait:
            raise InvalidArgumentError("pack and wait=False: packs need the whole version: leave out one of them")

        def cache_split(split: Any, split_id: str) -> DataRef[Any]:
            # A version that is not compared is found without a look at the source.
            log = Log(self.catalog.dataset(split_id))
            ref = self.catalog.find(log, version) if on_change == "ignore" else None
            if ref is None:
                recipe = Recipe.of(split, options)
                request = self.request(split, split_id, version, recipe, options)
                find = self.compare_or_build if wait else self.compare_or_begin
                ref = find(request, on_change, hosts)
            store_packs(ref, pack)
            return ref

        return for_each_split(source, dataset_id, cache_split)

    def request(
        self,
        source: Any,
        dataset_id: str,
        version: str,
        recipe: Recipe,
        options: BuildOptions,
        extension: Extension = NEW_RECORDS,
    ) -> BuildRequest:
        """Return the request for a version in this catalog; see :class:`BuildRequest`."""
        log = Log(self.catalog.dataset(dataset_id))
        return BuildRequest(log, version, self.catalog.copies, source, recipe, options, extension)

    def build(self, request: BuildRequest) -> DataRef[Any]:
        """Build and publish a version that does not exist yet."""
        return self.catalog.open(submit(request))

    def find_or_build(self, request: BuildRequest, hosts: tuple[int, int] | None) -> tuple[DataRef[Any], bool]:
        """Return a version, and whether this call has built it. Of all who call this at the same time, one builds."""
        checked = None if hosts is None else Hosts.checked(hosts, request.options)
        while (ref := self.catalog.find(request.log, request.version)) is None:
            try:
                built = build_once(request, checked)
            except AlreadyExistsError:
                if self.catalog.find(request.log, request.version) is None:
                    # The error is not about this version: the source itself raised it.
                    raise
            else:
                if built is not None:
                    return self.catalog.open(built), True
        return ref, False

    def compare_or_build(
        self, request: BuildRequest, on_change: OnChange, hosts: tuple[int, int] | None
    ) -> DataRef[Any]:
        """Return a version: built if it does not exist, else compared with the recipe of the request."""
        ref, is_new = self.find_or_build(request, hosts)
        if not is_new:
            check_recipe(ref, request.recipe, on_change)
        warn_of_incomparable(ref, request.recipe, on_change)
        return ref

    def compare_or_begin(
        self, request: BuildRequest, on_change: OnChange, hosts: tuple[int, int] | None
    ) -> DataRef[Any]:
        """Return a version: one that is being built if it does not exist, else compared with the recipe.

        Raises:
            InvalidArgumentError: if the records of the source cannot be read by number, or some are left out.
        """
        checked = None if hosts is None else Hosts.checked(hosts, request.options)
        if self.catalog.find(request.log, request.version) is None:
            with building(request.url):
                plan = BuildPlan.of(request)
            # A source that is empty is built at once, or refused.
            if plan.length != 0:
                ref = begin_build(self.catalog, plan, checked)
                warn_of_incomparable(ref, request.recipe, on_change)
                return ref
        return self.compare_or_build(request, on_change, hosts)


def store_packs(ref: DataRef[Any], pack: PackArguments | None) -> None:
    """Make the plan of the packs that a user asked for, and store it, unless it is there."""
    if pack is not None:
        ref.packed(**pack)


def for_each_split(source: Any, dataset_id: str, make: Callable[[Any, str], DataRef[Any]]) -> DataRef[Any]:
    """Make the version of a source, or one for each of its splits.

    Args:
        dataset_id: the dataset; the dataset of a split is ``<dataset id>.<split>``.
        make: returns a version, given the source and its dataset.

    Returns:
        The version, or a dict of versions by the names of splits. That is typed as one DataRef: no type tells which
        mappings are splits.
    """
    source = at_path(source)
    splits: Mapping[str, Any] | None = sources_by_split(source)
    if splits is None:
        return make(source, dataset_id)
    # All names are checked before the first split is built.
    ids = {split: paths.check_name("dataset id", f"{dataset_id}.{split}") for split in splits}
    return cast(DataRef[Any], {split: make(splits[split], ids[split]) for split in splits})
