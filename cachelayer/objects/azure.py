"""Azure Blob Storage: by adlfs, and ranges by obstore."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cachelayer.errors import InvalidArgumentError
from cachelayer.objects.cloud_client import FIXED, CloudClient, OpenBucket, obstore_client

OBSTORE_OPTIONS = frozenset({
    "account_host", "account_key", "account_name", "anon", "client_id", "client_secret", "connection_string",
    "sas_token", "tenant_id",
})  # fmt: skip
_SCOPE = "https://storage.azure.com/.default"


def open_client(url: str, options: Mapping[str, Any], read_timeout: float) -> CloudClient:
    """Return the file system of adlfs, with short timeouts and short pauses between retries."""
    from adlfs import AzureBlobFileSystem

    limits = {"connection_timeout": read_timeout, "read_timeout": read_timeout}
    account = _account_of(url)
    fs = AzureBlobFileSystem(**{**limits, **account, **options, **FIXED})
    if account and account["account_name"] != fs.service_client.account_name:
        raise InvalidArgumentError(
            f"{url}: it names another account than {fs.service_client.account_name!r}, that of the credentials"
        )
    # By default it waits for 15 seconds.
    retries = fs.service_client._config.retry_policy
    retries.initial_backoff = 0
    retries.increment_base = 0.1
    retries.random_jitter_range = 0.1

    async def info(path: str) -> dict[str, Any]:
        container, _, key = path.partition("/")
        async with fs.service_client.get_blob_client(container, key) as client:
            properties = await client.get_blob_properties()
        facts = {"type": "file", "size": properties.size, "mtime": properties.last_modified}
        return {**facts, "metadata": properties.metadata}

    async def put_file(file: str, path: str, metadata: dict[str, str], max_concurrency: int, **_chunks: int) -> None:
        container, _, key = path.partition("/")
        async with fs.service_client.get_blob_client(container, key) as client:
            # adlfs' own method sets other metadata.
            with Path(file).open("rb") as body:
                options = {"overwrite": True, "metadata": metadata, "max_concurrency": max_concurrency}
                await client.upload_blob(body, **options, **limits)

    return CloudClient(fs, fs.service_client.primary_endpoint, info, put_file, fs._info)


def _account_of(url: str) -> dict[str, str]:
    """Return the options of adlfs for the account in ``abfs://container@account.dfs.core.windows.net/prefix``."""
    host = url.partition("://")[2].partition("/")[0].partition("@")[2]
    name, dot, domain = host.partition(".")
    # A data lake has two addresses, dfs and blob: adlfs takes the second, in any cloud of Azure.
    address = {"account_host": f"{name}.blob.{domain.partition('.')[2]}"} if dot else {}
    return {"account_name": name, **address} if host else {}


def open_obstore(fs: Any, _options: Mapping[str, Any]) -> OpenBucket | None:
    """Return a function that opens containers by obstore; None if it does not know this kind of credentials."""
    client = fs.service_client
    endpoint, _, signature = client.url.partition("?")
    if hasattr(client.credential, "account_key"):
        access: dict[str, Any] = {"account_key": client.credential.account_key}
    elif signature:
        access = {"sas_key": signature}
    elif fs.sync_credential is not None:

        def credentials() -> dict[str, Any]:
            token = fs.sync_credential.get_token(_SCOPE)
            return {"token": token.token, "expires_at": datetime.fromtimestamp(token.expires_on, UTC)}

        access = {"credential_provider": credentials}
    elif client.credential is None:
        access = {"skip_signature": True}
    else:
        return None

    def open_bucket(bucket: str, options: dict[str, Any]) -> Any:
        from obstore.store import AzureStore

        address = {"account_name": client.account_name, "endpoint": endpoint.rstrip("/")}
        return AzureStore(bucket, **address, **access, **obstore_client(endpoint, options))

    return open_bucket
