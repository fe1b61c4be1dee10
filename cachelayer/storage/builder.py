"""Make new versions in a catalog.

::

    Storage.submit        Builder.submit           build the version; it is an error if it exists
    Storage.append        Builder.append           the same, with the records of a base in front
    Storage.cache         Builder.cache            return the version if it exists, after a look whether it is stale;
    Storage.cacheable     Builder.compare_or_build else build it, once among all processes that ask, or begin to
                                                   build it in another process, and read it meanwhile
    Storage.add_columns   Builder.find_or_build    return the version if it exists and is what was asked for; else
    Storage.rewrite                                build it

A source with splits, such as a ``DatasetDict``, is several datasets: the first three do the same for every split.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from cachelayer.builds.as_source import sources_by_split
from cachelayer.builds.background import BackgroundBuild
from cachelayer.builds.build_options import BuildOptions
from cachelayer.builds.build_plan import BuildPlan, BuildRequest
from cachelayer.builds.build_version import build_once, building, submit
from cachelayer.builds.element_specs import FILL_HINT
from cachelayer.builds.extensions import NEW_RECORDS, AddedRecords, Extension
from cachelayer.builds.parts import Ranges
from cachelayer.builds.recipe import Recipe
from cachelayer.builds.source_files import at_path
from cachelayer.builds.source_records import SourceRecords
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.growing_records import GrowingRecords
from cachelayer.datasets.table import Table
from cachelayer.engines.processes import copied
from cachelayer.errors import AlreadyExistsError, ElementError, InvalidArgumentError
from cachelayer.objects import paths
from cachelayer.records.infer import FIRST_ELEMENTS
from cachelayer.sequences.packs import PackArguments
from cachelayer.specs.schema import Schema
from cachelayer.storage.catalog import Catalog
from cachelayer.storage.staleness import OnChange, check_recipe, warn_of_incomparable
from cachelayer.versions.log import Log
from cachelayer.versions.reference import Reference
from cachelayer.versions.view_calls import ViewName
from cachelayer.views.dataref import DataRef


@dataclass(frozen=True)
class Builder:
    """Makes new versions in a catalog."""

    catalog: Catalog
    options: BuildOptions
    pack: PackArguments | None = None
    """The packs whose plan is made and stored with each version; None for none."""

    def submit(self, source: Any, name: Reference) -> DataRef[Any]:
        """Build a version from a source; see :meth:`cachelayer.Storage.submit`."""

        def build_split(split: Any, log: Log) -> DataRef[Any]:
            return self.build(self.request(split, log, name.name))

        return self._for_each_split(source, name.dataset_id, build_split)

    def append(self, source: Any, base: Reference, version: str, fill: Mapping[str, Any]) -> DataRef[Any]:
        """Build a version with the records of a base and those of a source; see :meth:`cachelayer.Storage.append`."""

        def append_split(split: Any, log: Log) -> DataRef[Any]:
            split_base = replace(base, dataset_id=log.folder.name)
            before = self.catalog.open(self.catalog.resolve(split_base, log))._base.version
            try:
                return self.build(self.request(split, log, version, extension=AddedRecords(before, fill)))
            except ElementError as error:
                # Other builds may declare another spec.
                hint = f"Appended elements have the element spec of {before.name}. {FILL_HINT}."
                raise error.at(hint=hint) from None

        return self._for_each_split(source, base.dataset_id, append_split)

    def cache(self, source: Any, name: Reference, on_change: OnChange, *, waits: bool) -> DataRef[Any]:
        """Return a version, built if it does not exist; see :meth:`cachelayer.Storage.cache`."""
        if self.pack is not None and not waits:
            raise InvalidArgumentError("pack and wait=False: packs need the whole version: leave out one of them")

        def cache_split(split: Any, log: Log) -> DataRef[Any]:
            # A version that is not compared is found without a look at the source.
            ref = self.catalog.find(log, name.name) if on_change == "ignore" else None
            if ref is not None:
                return self._with_packs(ref)
            request = self.request(split, log, name.name)
            return (self.compare_or_build if waits else self._compare_or_begin)(request, on_change)

        return self._for_each_split(source, name.dataset_id, cache_split)

    def request(
        self, source: Any, log: Log, version: str, recipe: Recipe | None = None, extension: Extension = NEW_RECORDS
    ) -> BuildRequest:
        """Return the request for a version of the dataset with a log, by default with the recipe of the source."""
        shards = () if extension.base is None else extension.base.manifest.shards.compressions
        options = replace(self.options, compression=self.options.compression.or_that_of(shards))
        recipe = recipe or Recipe.of(source, options)
        return BuildRequest(log, version, self.catalog.copies, source, recipe, options, extension)

    def build(self, request: BuildRequest) -> DataRef[Any]:
        """Build and publish a version that does not exist yet."""
        return self._with_packs(self.catalog.open(submit(request)))

    def find_or_build(self, request: BuildRequest, check: Callable[[DataRef[Any]], None]) -> DataRef[Any]:
        """Return a version; build it if it does not exist. Of all who call this at the same time, one builds.

        ``check`` raises or warns if a version that exists is not what was asked for.
        """
        while (ref := self.catalog.find(request.log, request.version)) is None:
            try:
                built = build_once(request)
            except AlreadyExistsError:
                if self.catalog.find(request.log, request.version) is None:
                    # The error is not about this version: the source itself raised it.
                    raise
            else:
                if built is not None:
                    return self._with_packs(self.catalog.open(built))
        check(ref)
        return self._with_packs(ref)

    def compare_or_build(self, request: BuildRequest, on_change: OnChange) -> DataRef[Any]:
        """Return a version: built if it does not exist, else compared with the recipe of the request."""
        ref = self.find_or_build(request, lambda existing: check_recipe(existing, request.recipe, on_change))
        warn_of_incomparable(ref, request.recipe, on_change)
        return ref

    def _compare_or_begin(self, request: BuildRequest, on_change: OnChange) -> DataRef[Any]:
        """Return a version: one that is being built if it does not exist, else compared with the recipe."""
        if self.catalog.find(request.log, request.version) is None:
            with building(request.url):
                plan = BuildPlan.of(request)
            # A source that is empty is built at once, or refused.
            if plan.length != 0:
                ref = _begin_build(self.catalog, plan)
                warn_of_incomparable(ref, request.recipe, on_change)
                return ref
        return self.compare_or_build(request, on_change)

    def _with_packs(self, ref: DataRef[Any]) -> DataRef[Any]:
        """Return a version whose plan of packs is stored, if a user asked for it."""
        if self.pack is not None:
            ref.packed(**self.pack)
        return ref

    def _for_each_split(self, source: Any, dataset_id: str, make: Callable[[Any, Log], DataRef[Any]]) -> DataRef[Any]:
        """Make the version of a source, or one for each of its splits.

        The dataset of a split is ``<dataset id>.<split>``. A dict of versions by the names of splits is typed as one
        DataRef: no type tells which mappings are splits.
        """
        source = at_path(source)
        splits: Mapping[str, Any] | None = sources_by_split(source)
        if splits is None:
            return make(source, Log(self.catalog.store.folder(dataset_id)))
        # All names are checked before the first split is built.
        ids = {split: paths.check_name("dataset id", f"{dataset_id}.{split}") for split in splits}
        return cast(
            DataRef[Any], {split: make(splits[split], Log(self.catalog.store.folder(ids[split]))) for split in splits}
        )


def _begin_build(catalog: Catalog, plan: BuildPlan) -> DataRef[Any]:
    """Begin the build of a plan in another process; return the version, whose records can be read at once."""
    request = plan.request
    parts = plan.parts
    spec = plan.options.element_spec
    why = ""
    if catalog.store.url.startswith("memory:"):
        why = (
            f"{catalog.store.url} is the memory of this process, and another process builds: choose a folder or a "
            "bucket"
        )
    elif not isinstance(parts, Ranges):
        why = (
            f"a source of {plan.source.kind} has no items by number, so its records are known once it is built: leave "
            "out wait=False, or pass a sequence with a length, such as a list or a dataset with __len__ and __getitem__"
        )
    elif plan.options.on_error == "skip":
        why = "with on_error='skip' the numbers of records are known once all are built: leave out one of them"
    elif not plan.options.resume:
        why = "with resume=False each process has a build of its own: leave out one of them"
    if why:
        raise InvalidArgumentError(f"{request.name}: wait=False: {why}")
    assert isinstance(parts, Ranges)  # noqa: S101 - others are refused
    from_source = SourceRecords(parts.source, parts.length, spec)
    if not callable(request.source):
        # As it is now: the program may change its own. What a function made is most often nobody else's.
        from_source = copied(from_source)
    _, nulls = from_source(np.arange(min(FIRST_ELEMENTS, parts.length)))
    records = GrowingRecords(
        plan.notes,
        np.asarray(parts.starts),
        parts.length,
        Schema.of(spec).marked(nulls),
        {**plan.source.metadata, **plan.options.annotations["metadata"]},
        from_source,
        catalog.verify,
        catalog.copies,
        request.log.head().sequence,
        BackgroundBuild(plan),
    )
    name = ViewName(f"{request.log.folder.url}@{request.version}", parts.length)
    return DataRef(replace(DatasetView.all(Table.of(records)), name=name))
