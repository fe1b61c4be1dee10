"""Open the client that serves the scheme of a URL.

A new store begins here, with its scheme and its client; ``open_store`` knows which schemes name buckets. Schemes
without put-if-absent open through fsspec, and need ``unsafe_commit=True`` to be written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachelayer.errors import InvalidArgumentError, MissingDependencyError
from cachelayer.objects.client import Client

CONDITIONAL = {"gs": "gcs", "gcs": "gcs", "s3": "s3", "s3a": "s3", "memory": "memory"}
"""Schemes whose stores have put-if-absent, and the extra that each needs."""


def open_client(url: str, options: Mapping[str, Any], timeout: float) -> Client:
    """Return a client for a URL.

    Args:
        url: any URL of the store.
        options: options of the client, such as credentials and endpoint.
        timeout: seconds after which an operation fails if the store does not answer.
    """
    scheme = url.partition("://")[0]
    extra = CONDITIONAL.get(scheme, scheme)
    try:
        if extra == "gcs":
            from cachelayer.objects.gcs import GcsClient

            return GcsClient(options, timeout)
        if extra == "s3":
            from cachelayer.objects.s3 import S3Client

            return S3Client(options, timeout)
        from cachelayer.objects.fsspec_client import FsspecClient

        return FsspecClient(url, options, timeout)
    except ModuleNotFoundError as error:
        install = f"cachelayer[{extra}]" if extra in {"gcs", "s3"} else "the package that fsspec needs for this scheme"
        raise MissingDependencyError(
            f"{scheme}:// needs a package that is not installed ({error}): install {install}"
        ) from error
    except TypeError as error:
        raise InvalidArgumentError(f"storage_options of {scheme}://: {error}") from error
