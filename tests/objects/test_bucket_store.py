"""Objects in S3, in GCS and in memory."""

from __future__ import annotations

import json
import threading
import uuid
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import google_crc32c
import pytest
from servers import Server, new_bucket
from store_conformance import StoreConformance

from cachelayer import StorageError
from cachelayer.objects.bucket_store import BucketStore
from cachelayer.objects.open_store import open_store


def store_of(server: Server, **options: object) -> BucketStore:
    store = open_store(server.url(new_bucket(server), "a/prefix"), {**server.storage_options(), **options})
    assert isinstance(store, BucketStore)
    return store


class TestMemory(StoreConformance):
    # fsspec's own listing of memory fails beside a thread that deletes.
    deleters = 1

    @pytest.fixture
    def store(self) -> BucketStore:
        store = open_store(f"memory://{uuid.uuid4().hex}")
        assert isinstance(store, BucketStore)
        return store


class TestS3(StoreConformance):
    @pytest.fixture
    def store(self, s3: Server) -> BucketStore:
        return store_of(s3)


class TestGcs(StoreConformance):
    @pytest.fixture
    def store(self, gcs: Server) -> BucketStore:
        return store_of(gcs)


class TestAzure(StoreConformance):
    @pytest.fixture
    def store(self, azure: Server) -> BucketStore:
        return store_of(azure)


class Liar(BaseHTTPRequestHandler):
    """A GCS that stores other bytes than it is sent, `lies` times."""

    lies = 0
    stored = b""

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        data = body.rpartition(b"\n--")[0].rpartition(b"\n")[2]
        if type(self).lies > 0:
            type(self).lies -= 1
            data = data[::-1]
        type(self).stored = data
        self.tell()

    def do_GET(self) -> None:
        self.tell()

    def tell(self) -> None:
        checksum = b64encode(google_crc32c.Checksum(self.stored).digest()).decode()
        told = {"name": "a", "size": str(len(self.stored)), "crc32c": checksum}
        reply = json.dumps(told).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


class Lavish(BaseHTTPRequestHandler):
    """A GCS whose every object has `nbytes` bytes, and that answers each range with that and a byte more."""

    nbytes = 9 << 20

    def do_GET(self) -> None:
        if "Range" in self.headers:
            start, stop = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
            reply = bytes(stop + 2 - start)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{stop + 1}/{self.nbytes}")
        else:
            reply = json.dumps({"name": "a", "size": str(self.nbytes)}).encode()
            self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        with suppress(ConnectionError):
            self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        """Says nothing."""


@contextmanager
def served(handler: type[BaseHTTPRequestHandler], **options: object) -> Iterator[BucketStore]:
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        endpoint = f"http://127.0.0.1:{server.server_port}"
        store = open_store("gs://bucket", {**Server("gs", endpoint).storage_options(), **options})
        assert isinstance(store, BucketStore)
        yield store
        server.shutdown()


@pytest.mark.needs("gcsfs")
def test_an_answer_that_is_longer_than_its_range_is_an_error_and_not_written(tmp_path: Path) -> None:
    with served(Lavish, timeout=2) as store, pytest.raises(StorageError, match="gs://bucket/a: "):
        store.download("a", tmp_path / "file", Lavish.nbytes)
    assert (tmp_path / "file").stat().st_size <= Lavish.nbytes


@pytest.mark.needs("gcsfs")
def test_an_upload_that_arrives_otherwise_is_sent_again_or_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"12345")
    with served(Liar, timeout=2) as store:
        Liar.lies = 1
        store.upload(tmp_path / "file", "a")
        assert Liar.lies == 0
        Liar.lies = 100
        with pytest.raises(StorageError, match="gs://bucket/a: "):
            store.upload(tmp_path / "file", "a")
