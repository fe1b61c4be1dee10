"""Ranges of objects by obstore, if it is installed and takes the endpoint and the credentials of a file system.

It takes a quarter to a tenth of the processor time of the file systems of fsspec.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from cachelayer.objects.store import Buffer

_UNDERSTOOD = {
    "gcs": {"access", "endpoint_url", "project", "token"},
    "s3": {"anon", "client_kwargs", "endpoint_url", "key", "profile", "secret", "token"},
    "azure": {
        "account_host", "account_key", "account_name", "anon", "client_id", "client_secret", "connection_string",
        "sas_token", "tenant_id",
    },
}  # fmt: skip
"""Options of file systems that obstore can be told; others keep it out."""
_UNDERSTOOD_OF_S3_CLIENT = {"aws_access_key_id", "aws_secret_access_key", "endpoint_url", "region_name"}
_ASK_AGAIN = timedelta(minutes=5)
_AZURE_SCOPE = "https://storage.azure.com/.default"

_is_forked = False

OpenBucket = Callable[[str, dict[str, Any]], Any]
"""Opens a bucket of a store with the options of its HTTP client."""


def reader_of(kind: str, fs: Any, options: Mapping[str, Any], silence: float) -> RangeReader | None:
    """Return what reads ranges with the endpoint and the credentials of a file system; None if that is not certain.

    Args:
        kind: ``gcs``, ``s3`` or ``azure``; there is none for others.
        fs: the file system.
        options: those that it was made with.
        silence: seconds after which a store that sends nothing counts as away.
    """
    # obstore's threads do not survive a fork: a child of a process that has used it would wait for ever.
    if _is_forked or importlib.util.find_spec("obstore") is None:
        return None
    if not _UNDERSTOOD.get(kind, set()).issuperset(options):
        return None
    found = {"gcs": _gcs, "s3": _s3, "azure": _azure}[kind](fs, options) if kind in _UNDERSTOOD else None
    return None if found is None else RangeReader(found, silence)


class RangeReader:
    """Reads ranges of objects of any bucket of a store.

    Args:
        open_bucket: opens a bucket.
        silence: seconds after which a store that sends nothing counts as away.
    """

    def __init__(self, open_bucket: OpenBucket, silence: float) -> None:
        self._open_bucket = open_bucket
        self._client = {
            "connect_timeout": timedelta(seconds=silence),
            "read_timeout": timedelta(seconds=silence),
            "timeout": timedelta(days=1),
        }
        self._buckets: dict[str, Any] = {}

    def read(self, path: str, start: int, stop: int) -> Buffer:
        """Return a range of an object; only for threads that end before the interpreter does."""
        import obstore

        bucket, _, key = path.partition("/")
        store = self._buckets.get(bucket)
        if store is None:
            store = self._buckets[bucket] = self._open_bucket(bucket, self._client)
        return memoryview(obstore.get_range(store, key, start=start, end=stop))


def _gcs(fs: Any, _options: Mapping[str, Any]) -> OpenBucket | None:
    found = fs.credentials
    # Sessions and certificates may come from fsspec's or google-auth's configuration, too.
    if fs.session_kwargs or fs._use_client_cert or fs.requester_pays:
        return None

    def credentials() -> dict[str, Any]:
        found.maybe_refresh()
        expiry = found.credentials.expiry
        until = datetime.now(UTC) + _ASK_AGAIN if expiry is None else expiry.replace(tzinfo=UTC)
        return {"token": found.credentials.token, "expires_at": until}

    def open_bucket(bucket: str, client: dict[str, Any]) -> Any:
        from obstore.store import GCSStore

        access = {"skip_signature": True} if found.credentials is None else {"credential_provider": credentials}
        endpoint: str = fs._location
        return GCSStore(bucket, base_url=endpoint, **access, **_client(endpoint, client))

    return open_bucket


def _s3(fs: Any, options: Mapping[str, Any]) -> OpenBucket | None:
    from fsspec.asyn import sync

    botocore_client, anonymous = fs.s3, bool(options.get("anon"))
    endpoint: str = botocore_client.meta.endpoint_url
    if not _UNDERSTOOD_OF_S3_CLIENT.issuperset(options.get("client_kwargs") or {}):
        return None
    # obstore does not know of certificates that botocore was given.
    if endpoint.startswith("https:") and fs.session.get_config_variable("ca_bundle") is not None:
        return None
    found = botocore_client._get_credentials()
    # s3fs says at once that there are none.
    if found is None and not anonymous:
        return None

    def credentials() -> dict[str, Any]:
        frozen = sync(fs.loop, found.get_frozen_credentials)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + _ASK_AGAIN,
        }

    def open_bucket(bucket: str, client: dict[str, Any]) -> Any:
        from obstore.store import S3Store

        access: dict[str, Any] = {"skip_signature": True} if anonymous else {"credential_provider": credentials}
        region = botocore_client.meta.region_name or "us-east-1"
        access |= {"endpoint": endpoint, "region": region, "virtual_hosted_style_request": False}
        return S3Store(bucket, **access, **_client(endpoint, client))

    return open_bucket


def _azure(fs: Any, _options: Mapping[str, Any]) -> OpenBucket | None:
    client = fs.service_client
    endpoint, _, signature = client.url.partition("?")
    if hasattr(client.credential, "account_key"):
        access: dict[str, Any] = {"account_key": client.credential.account_key}
    elif signature:
        access = {"sas_key": signature}
    elif fs.sync_credential is not None:

        def credentials() -> dict[str, Any]:
            found = fs.sync_credential.get_token(_AZURE_SCOPE)
            return {"token": found.token, "expires_at": datetime.fromtimestamp(found.expires_on, UTC)}

        access = {"credential_provider": credentials}
    elif client.credential is None:
        access = {"skip_signature": True}
    else:
        return None

    def open_bucket(bucket: str, options: dict[str, Any]) -> Any:
        from obstore.store import AzureStore

        address = {"account_name": client.account_name, "endpoint": endpoint.rstrip("/")}
        return AzureStore(bucket, **address, **access, **_client(endpoint, options))

    return open_bucket


def _client(endpoint: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return how obstore speaks to an endpoint; it tries each request once."""
    return {
        "client_options": {**options, "allow_http": endpoint.startswith("http:")},
        "retry_config": {"max_retries": 0},
    }


def _after_fork() -> None:
    global _is_forked
    _is_forked = _is_forked or "obstore" in sys.modules


os.register_at_fork(after_in_child=_after_fork)
