"""Opening a version by its whole reference."""

from __future__ import annotations

from typing import Any

from cachelayer.access.dataref import DataRef
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.objects.open_store import refuse_query, without_credentials
from cachelayer.storage.storage import Storage
from cachelayer.versions.reference import split_slice


def open_reference(reference: str, **storage_options: Any) -> DataRef[Any]:
    """Open a version by its whole reference.

    Args:
        reference: ``<url>/<dataset id>@<version>``, with ``@sha256:<digest>`` where it is pinned, and ``[a:b]`` behind
            it for a view of a part.
        storage_options: as in :class:`Storage`.

    Raises:
        InvalidArgumentError: where it is no reference.
        NotFoundError: where there is no such version.
        CorruptionError: where the version has another digest.
    """
    if not isinstance(reference, str):
        raise InvalidTypeError(f"a reference is a str, not a {type(reference).__name__}")
    refuse_query(reference)
    text, rows = split_slice(reference)
    head, at, version = text.partition("@") if "/" not in text.partition("@")[0] else _split_url(text)
    url, slash, dataset_id = head.rpartition("/")
    if not at or not slash or url.endswith(":/"):
        raise InvalidArgumentError(
            f"{without_credentials(reference)!r} is no reference: write <url>/<dataset id>@<version>"
        )
    ref = Storage(url, **storage_options).fetch(f"{dataset_id}@{version}")
    return ref if rows is None else ref[rows]


def _split_url(text: str) -> tuple[str, str, str]:
    """The reference parted at the first @ after its last slash: a URL may hold one before."""
    slash = text.rfind("/")
    head, at, version = text[slash:].partition("@")
    return text[:slash] + head, at, version
