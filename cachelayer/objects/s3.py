"""S3 and what speaks its language: by s3fs, and ranges by obstore."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Any

from cachelayer.objects.cloud_client import ASK_AGAIN, CONNECTIONS, FIXED, CloudClient, OpenBucket, obstore_client
from cachelayer.objects.s3_obstore import ObstoreS3

OBSTORE_OPTIONS = frozenset({"anon", "client_kwargs", "endpoint_url", "key", "profile", "secret", "token"})
_OBSTORE_CLIENT_OPTIONS = frozenset({"aws_access_key_id", "aws_secret_access_key", "endpoint_url", "region_name"})


def open_client(_url: str, options: Mapping[str, Any], read_timeout: float) -> CloudClient:
    """Return the file system of s3fs, with short timeouts; if only obstore is installed, :class:`ObstoreS3`."""
    if find_spec("s3fs") is None and find_spec("obstore") is not None:
        lite = ObstoreS3(options, read_timeout)
        return CloudClient(lite, lite.endpoint, lite.info, lite.put_file, lite.look_at_bucket)
    from fsspec.asyn import sync
    from s3fs import S3FileSystem

    config = {
        "connect_timeout": read_timeout,
        "read_timeout": read_timeout,
        "max_pool_connections": CONNECTIONS,
        "retries": {"total_max_attempts": 1, "mode": "standard"},
        **options.get("config_kwargs", {}),
    }
    # With more than one at once, s3fs first asks for the size of each object.
    fs = S3FileSystem(**{"max_concurrency": 1, **options, **FIXED, "config_kwargs": config})
    client = sync(fs.loop, fs.set_session)

    async def info(path: str) -> dict[str, Any]:
        bucket, _, key = path.partition("/")
        head = await fs._call_s3("head_object", Bucket=bucket, Key=key)
        facts = {"type": "file", "size": head["ContentLength"], "mtime": head["LastModified"]}
        return {**facts, "metadata": head.get("Metadata")}

    async def put_file(file: str, path: str, metadata: dict[str, str], **parts: int) -> None:
        await fs._put_file(file, path, Metadata=metadata, **parts)

    return CloudClient(fs, client.meta.endpoint_url, info, put_file, fs._info)


def open_obstore(fs: Any, options: Mapping[str, Any]) -> OpenBucket | None:
    """Return a function that opens buckets by obstore; None if s3fs has settings that obstore lacks."""
    if isinstance(fs, ObstoreS3):
        return fs.open_bucket
    from fsspec.asyn import sync

    botocore_client = fs.s3
    anonymous = bool(options.get("anon"))
    endpoint: str = botocore_client.meta.endpoint_url
    if not _OBSTORE_CLIENT_OPTIONS.issuperset(options.get("client_kwargs") or {}):
        return None
    # obstore does not see the certificates that botocore is configured with.
    if endpoint.startswith("https:") and fs.session.get_config_variable("ca_bundle") is not None:
        return None
    botocore_credentials = botocore_client._get_credentials()
    # Without credentials, s3fs says so at once.
    if botocore_credentials is None and not anonymous:
        return None

    def credentials() -> dict[str, Any]:
        frozen = sync(fs.loop, botocore_credentials.get_frozen_credentials)
        return {
            "access_key_id": frozen.access_key,
            "secret_access_key": frozen.secret_key,
            "token": frozen.token,
            "expires_at": datetime.now(UTC) + ASK_AGAIN,
        }

    def open_bucket(bucket: str, client: dict[str, Any]) -> Any:
        from obstore.store import S3Store

        access: dict[str, Any] = {"skip_signature": True} if anonymous else {"credential_provider": credentials}
        region = botocore_client.meta.region_name or "us-east-1"
        access |= {"endpoint": endpoint, "region": region, "virtual_hosted_style_request": False}
        return S3Store(bucket, **access, **obstore_client(endpoint, client))

    return open_bucket
