"""``cachelayer.open``: open a version by its URL, dataset and version in one text.

:mod:`cachelayer.objects.open_store` opens the store at a URL; this module opens a version in it.
"""

from __future__ import annotations

from typing import Any

from cachelayer.access.dataref import DataRef
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.objects.open_store import refuse_query, without_credentials
from cachelayer.storage.storage import Storage
from cachelayer.versions.reference import split_slice, split_url


def open(reference: str, **storage_options: Any) -> DataRef[Any]:
    """Open a version, given its storage, dataset and version in one text.

    Args:
        reference: ``<url>/<dataset id>@<version>``. Append ``@sha256:<digest>`` to open exactly these records or fail,
            and ``[a:b]`` for a view of a slice.
        storage_options: as in :class:`Storage`.

    Raises:
        InvalidArgumentError: if it is not a reference.
        NotFoundError: if there is no such version.
        CorruptionError: if the version has another digest.
    """
    if not isinstance(reference, str):
        raise InvalidTypeError(f"open takes a reference as a str, not a {type(reference).__name__}")
    refuse_query(reference)
    text, rows = split_slice(reference)
    url, dataset_id, version = split_url(text)
    if not dataset_id or not version or not url or url.endswith(":/"):
        raise InvalidArgumentError(
            f"{without_credentials(reference)!r} is not a reference: write <url>/<dataset id>@<version>"
        )
    ref = Storage(url, **storage_options).fetch(f"{dataset_id}@{version}")
    return ref if rows is None else ref[rows]
