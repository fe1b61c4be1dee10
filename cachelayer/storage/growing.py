"""Begin to build a version in the background, and read its records meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from cachelayer.builds.background import BackgroundBuild
from cachelayer.builds.build_plan import BuildPlan
from cachelayer.builds.parts import Ranges
from cachelayer.builds.source_records import SourceRecords
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.growing_records import GrowingRecords
from cachelayer.datasets.table import Table
from cachelayer.engines.processes import copied
from cachelayer.errors import InvalidArgumentError
from cachelayer.records.infer import FIRST_ELEMENTS
from cachelayer.specs.schema import Schema
from cachelayer.storage.catalog import Catalog
from cachelayer.versions.view_calls import ViewName
from cachelayer.views.dataref import DataRef


def begin_build(catalog: Catalog, plan: BuildPlan) -> DataRef[Any]:
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
