"""The clouds by their kinds, and how any other file system of fsspec is opened."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cachelayer.errors import InvalidArgumentError, MissingDependencyError
from cachelayer.objects import azure, gcs, s3
from cachelayer.objects.cloud_client import FIXED, Cloud, CloudClient
from cachelayer.objects.store import CLOUD_OF_SCHEME

CLOUDS: dict[str, Cloud] = {"gcs": gcs, "s3": s3, "azure": azure}


def open_client(kind: str, url: str, options: Mapping[str, Any], timeout: float) -> CloudClient:
    """Open the file system of a URL.

    Args:
        kind: one of the kinds of buckets, or the scheme of any other URL.
        url: any URL in it.
        options: the keyword arguments of its class, such as credentials and endpoint.
        timeout: seconds after which an operation fails if the store does not answer.
    """
    try:
        cloud = CLOUDS.get(kind)
        return _open_other(url, options) if cloud is None else cloud.open_client(url, options, timeout / 4)
    # Not only ModuleNotFoundError: fsspec raises its base for file systems of other packages.
    except ImportError as error:
        install = (
            f"cachelayer[{kind}]"
            if kind in CLOUD_OF_SCHEME.values()
            else "the package that fsspec needs for this scheme"
        )
        raise MissingDependencyError(f"{url}: a package is not installed ({error}): install {install}") from error
    except TypeError as error:
        raise InvalidArgumentError(f"storage_options of {url}: {error}") from error


def _open_other(url: str, options: Mapping[str, Any]) -> CloudClient:
    import fsspec

    fs_class = fsspec.get_filesystem_class(url.partition("://")[0])
    fs = fs_class(**{**fs_class._get_kwargs_from_urls(url), **options, **FIXED})
    return CloudClient(fs, url, fs._info if fs.async_impl else fs.info)
