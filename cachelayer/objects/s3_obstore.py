"""S3 by obstore alone, where s3fs is not installed, because it needs another botocore than other packages."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from cachelayer.errors import InvalidArgumentError, MissingDependencyError
from cachelayer.objects.cloud_client import CloudBuckets, OpenBucket, obstore_client, obstore_is_lost

_OPTIONS = frozenset({"anon", "client_kwargs", "endpoint_url", "key", "secret", "token"})
_METADATA_SERVICE = "169.254.169.254"
_CLIENT_OPTIONS = frozenset({"aws_access_key_id", "aws_secret_access_key", "endpoint_url", "region_name"})


def open_buckets(options: Mapping[str, Any]) -> tuple[str, OpenBucket]:
    """Return the URL of the server, and a function that opens its buckets.

    Credentials that the options lack come from the environment, as obstore finds them: variables of AWS, web
    identities, the metadata of containers and machines. Only s3fs reads profiles.
    """
    client = dict(options.get("client_kwargs") or {})
    unknown = sorted([*(options.keys() - _OPTIONS), *(client.keys() - _CLIENT_OPTIONS)])
    if unknown:
        raise InvalidArgumentError(
            f"storage_options {', '.join(map(repr, unknown))} are for s3fs, which is not installed: install "
            f"cachelayer[s3], or pass only {', '.join(sorted(_OPTIONS))}"
        )
    variables = os.environ
    endpoint = options.get("endpoint_url") or client.get("endpoint_url") or variables.get("AWS_ENDPOINT_URL_S3")
    endpoint = str(endpoint or variables.get("AWS_ENDPOINT_URL", ""))
    region = client.get("region_name") or variables.get("AWS_REGION") or variables.get("AWS_DEFAULT_REGION")
    settings: dict[str, Any] = {
        "access_key_id": options.get("key") or client.get("aws_access_key_id"),
        "secret_access_key": options.get("secret") or client.get("aws_secret_access_key"),
        "token": options.get("token"),
        "skip_signature": True if options.get("anon") else None,
        "region": region or "us-east-1",
        **({"endpoint": endpoint, "virtual_hosted_style_request": False} if endpoint else {}),
        # TLS has a checksum of its own.
        **({"checksum_algorithm": "SHA256"} if endpoint.startswith("http:") else {}),
    }
    access = {name: value for name, value in settings.items() if value is not None}

    def open_bucket(bucket: str, client: dict[str, Any]) -> Any:
        from obstore.store import S3Store

        return S3Store(bucket, **access, **obstore_client(endpoint, client))

    return endpoint or "https://s3.amazonaws.com", open_bucket


class ObstoreS3:
    """A file system of fsspec's kind, by obstore: the methods that :class:`FileSystem` calls.

    Threads may share it. It cannot be used after a fork.

    After ``read_timeout`` seconds, a server that sends nothing counts as away.
    """

    async_impl = False

    def __init__(self, options: Mapping[str, Any], read_timeout: float) -> None:
        if obstore_is_lost():
            raise MissingDependencyError(
                "S3 is not reached without s3fs in a process that was forked off one that has used obstore: start "
                "processes by spawn or forkserver, or install cachelayer[s3]"
            )
        self.endpoint, self.open_bucket = open_buckets(options)
        self._buckets = CloudBuckets(self.open_bucket, read_timeout)

    def _strip_protocol(self, url: str) -> str:
        return url.partition("://")[2].rstrip("/")

    def look_at_bucket(self, bucket: str) -> None:
        """Raise FileNotFoundError if there is no bucket of a name."""
        self.ls(f"{bucket}/_cachelayer")

    def pipe_file(self, path: str, value: bytes, mode: Literal["overwrite", "create"] = "overwrite") -> None:
        """Write an object; with the mode ``create`` only if there is none."""
        import obstore

        store, key = self._buckets.at(path)
        with _errors():
            obstore.put(store, key, value, mode=mode, use_multipart=False if mode == "create" else None)

    def put_file(self, file: str, path: str, *, metadata: dict[str, str], chunksize: int, max_concurrency: int) -> None:
        """Write an object with metadata from a file, in parts of so many bytes if it is large, so many at once."""
        import obstore

        store, key = self._buckets.at(path)
        with _errors():
            parts: dict[str, Any] = {"chunk_size": chunksize, "max_concurrency": max_concurrency}
            obstore.put(store, key, Path(file), attributes=metadata, **parts)

    def cat_file(self, path: str, start: int | None = None, end: int | None = None) -> bytes:
        """Return an object, or a range of it."""
        import obstore

        store, key = self._buckets.at(path)
        with _errors():
            if start is None or end is None:
                return bytes(obstore.get(store, key).bytes())
            return bytes(self._buckets.read_range(path, start, end))

    def info(self, path: str) -> dict[str, Any]:
        """Return the facts that the store tells about an object."""
        import obstore

        store, key = self._buckets.at(path)
        with _errors():
            # obstore.head does not tell the metadata.
            reply = obstore.get(store, key, options={"head": True})
        facts = {"type": "file", "size": reply.meta["size"], "mtime": reply.meta["last_modified"]}
        return {**facts, "metadata": reply.attributes}

    def rm_file(self, path: str) -> None:
        """Delete an object."""
        import obstore

        store, key = self._buckets.at(path)
        with _errors():
            obstore.delete(store, key)

    def ls(self, path: str, detail: bool = True) -> list[dict[str, Any]]:  # noqa: ARG002 - as fsspec has it
        """Return the facts about what lies directly below a folder."""
        import obstore

        store, key = self._buckets.at(path)
        with _errors():
            listing = obstore.list_with_delimiter(store, key or None)
        bucket = path.partition("/")[0]
        folders = [{"name": f"{bucket}/{name}", "type": "directory"} for name in listing["common_prefixes"]]
        objects = [{**entry, "name": f"{bucket}/{entry['path']}", "type": "file"} for entry in listing["objects"]]
        return [*folders, *objects]

    def find(self, path: str) -> list[str]:
        """Return the paths of all objects below a folder."""
        import obstore

        store, key = self._buckets.at(path)
        with _errors():
            return [f"{path.partition('/')[0]}/{one['path']}" for chunk in obstore.list(store, key) for one in chunk]


@contextmanager
def _errors() -> Iterator[None]:
    """Turn errors about objects that exist, and about missing credentials, into the built-in exceptions that fit."""
    from obstore.exceptions import AlreadyExistsError, BaseError

    try:
        yield
    except AlreadyExistsError as error:
        raise FileExistsError(str(error)) from error
    except BaseError as error:
        # obstore looks for credentials there last.
        if _METADATA_SERVICE in str(error):
            raise PermissionError(
                "no credentials were found: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or install "
                "cachelayer[s3], which reads profiles too"
            ) from None
        raise
