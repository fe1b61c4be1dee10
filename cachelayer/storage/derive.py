"""Choose the records of a derived version; see :meth:`cachelayer.Storage.derive`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachelayer.builds.build_version import ALLOW_EMPTY
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.errors import InvalidArgumentError
from cachelayer.provenance.environment import checked_description, checked_metadata
from cachelayer.versions.derive import derive
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.views.dataref import DataRef
from cachelayer.views.view import View


def derive_version(
    base: DataRef[Any],
    version: str,
    *,
    keep: Any,
    exclude: Any,
    allow_empty: bool,
    description: str | None,
    metadata: Mapping[str, Any] | None,
) -> StoredVersion:
    """Publish a version with some of the records of a base. One of ``keep`` and ``exclude`` is None."""
    view = _view_to_keep(base, keep)
    selection = view.selection
    if exclude is not None:
        selection = selection.exclude(exclude)
    elif view is base._records:
        selection = selection.select(keep)
    if not len(selection) and not allow_empty:
        raise InvalidArgumentError(
            f"{base.dataset_id}@{version}: {'keep' if exclude is None else 'exclude'}= keeps none of the {len(base)} "
            f"records of {base.dataset_version}; {ALLOW_EMPTY}"
        )
    return derive(
        base._base.version,
        version,
        selection,
        description=checked_description(description),
        metadata=checked_metadata(metadata),
        where=[] if view.name is None else view.name.conditions,
    )


def _view_to_keep(base: DataRef[Any], keep: Any) -> DatasetView:
    """Return the view that ``keep`` is, or the records that fulfil the condition that it is; else all records."""
    if isinstance(keep, View):
        view = keep._records
        home = None if view.name is None else view.origins.home
        if home is None or home.info.digest != base._base.version.info.digest:
            raise InvalidArgumentError(
                f"keep={keep!r}: it is no view of {base.dataset_id}@{base.dataset_version} with the records that it "
                "has now"
            )
        return view
    if isinstance(keep, str) or callable(keep):
        return base.where(keep)._records
    return base._records
