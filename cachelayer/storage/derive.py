"""Choose the records of a derived version; see :meth:`cachelayer.Storage.derive`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cachelayer.builds.build_version import ALLOW_EMPTY
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.errors import InvalidArgumentError
from cachelayer.provenance.environment import environment, event, now
from cachelayer.versions.derive import base_of, keep
from cachelayer.versions.log import Log
from cachelayer.versions.publish import NewVersion, publish, refuse_if_taken
from cachelayer.versions.stored_version import StoredVersion
from cachelayer.views.dataref import DataRef
from cachelayer.views.view import View


@dataclass(frozen=True)
class Choice:
    """Records of a version that a user chooses: those that are kept, or those that are left out."""

    keep: Any
    exclude: Any
    allow_empty: bool

    def __post_init__(self) -> None:
        if (self.keep is None) == (self.exclude is None):
            raise InvalidArgumentError("pass keep=, the records to keep, or exclude=, those to leave out")


def derive_version(
    log: Log, base: DataRef[Any], version: str, choice: Choice, annotations: Mapping[str, Any]
) -> StoredVersion:
    """Publish a version with some of the records of a base, which was looked up in the log."""
    view = _view_to_keep(base, choice.keep)
    selection = view.selection
    if choice.exclude is not None:
        selection = selection.exclude(choice.exclude)
    elif view is base._records:
        selection = selection.select(choice.keep)
    if not len(selection) and not choice.allow_empty:
        word = "keep" if choice.exclude is None else "exclude"
        raise InvalidArgumentError(
            f"{base.dataset_id}@{version}: {word}= keeps none of the {len(base)} records of {base.dataset_version}; "
            f"{ALLOW_EMPTY}"
        )
    where = [] if view.name is None else view.name.conditions
    refuse_if_taken(log, version)
    made_from = base._base.version
    provenance = {
        **annotations,
        "metadata": {**(made_from.manifest.provenance.get("metadata") or {}), **annotations["metadata"]},
        "source": "derive",
        **({"where": where} if where else {}),
        "base": base_of(made_from.info),
        "time": now(),
        **environment(),
    }
    change = event("publish", version=version, base=made_from.info.version)
    return publish(log, NewVersion(version, keep(made_from, selection, provenance), change, base=made_from))


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
