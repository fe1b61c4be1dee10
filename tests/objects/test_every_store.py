"""What every store of objects promises: on disk, in memory, in S3, GCS and Azure."""

import uuid
from pathlib import Path

import pytest
from servers import Server, new_bucket

from cachelayer.objects.bucket_store import BucketStore
from cachelayer.objects.open_store import open_store
from cachelayer.objects.store import Store
from cachelayer.testing import StoreTests

# Pickles hold no secrets: they come from the environment, and a warning says so.
FROM_THE_ENVIRONMENT = pytest.mark.filterwarnings("ignore:credentials are looked for:cachelayer.CacheLayerWarning")


def store_of(server: Server) -> BucketStore:
    store = open_store(server.url(new_bucket(server), "a/prefix"), server.storage_options())
    assert isinstance(store, BucketStore)
    return store


class TestLocalStore(StoreTests):
    @pytest.fixture
    def store(self, tmp_path: Path) -> Store:
        return open_store(tmp_path / "store")


class TestMemory(StoreTests):
    # fsspec's own listing of memory fails beside a thread that deletes.
    deleting_threads = 1

    @pytest.fixture
    def store(self) -> Store:
        return open_store(f"memory://{uuid.uuid4().hex}")


@FROM_THE_ENVIRONMENT
class TestS3(StoreTests):
    @pytest.fixture
    def store(self, s3: Server, monkeypatch: pytest.MonkeyPatch) -> Store:
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.setenv(name, "testing")
        return store_of(s3)


@FROM_THE_ENVIRONMENT
class TestS3WithoutS3fs(TestS3):
    @pytest.fixture(autouse=True)
    def _without_s3fs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("cachelayer.objects.s3.find_spec", lambda name: None if name == "s3fs" else name)
        monkeypatch.setattr("cachelayer.objects.file_systems._file_systems", {})


class TestGcs(StoreTests):
    @pytest.fixture
    def store(self, gcs: Server) -> Store:
        return store_of(gcs)


@FROM_THE_ENVIRONMENT
class TestAzure(StoreTests):
    @pytest.fixture
    def store(self, azure: Server, monkeypatch: pytest.MonkeyPatch) -> Store:
        store = store_of(azure)
        monkeypatch.setenv("AZURE_STORAGE_CONNECTION_STRING", store.options["connection_string"])
        return store
