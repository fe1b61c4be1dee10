"""Objects in S3, in GCS and in memory."""

from __future__ import annotations

import uuid

import pytest
from servers import Server, new_bucket
from store_conformance import StoreConformance

from cachelayer.objects.opening import open_store
from cachelayer.objects.remote import FsspecStore


def store_of(server: Server, *, endpoint: str | None = None, **options: object) -> FsspecStore:
    store = open_store(server.url(new_bucket(server), "a/prefix"), {**server.storage_options(endpoint), **options})
    assert isinstance(store, FsspecStore)
    return store


class TestMemory(StoreConformance):
    @pytest.fixture
    def store(self) -> FsspecStore:
        store = open_store(f"memory://{uuid.uuid4().hex}")
        assert isinstance(store, FsspecStore)
        return store


class TestS3(StoreConformance):
    @pytest.fixture
    def store(self, s3: Server) -> FsspecStore:
        return store_of(s3)


class TestS3WithoutObstore(StoreConformance):
    @pytest.fixture
    def store(self, s3: Server) -> FsspecStore:
        return store_of(s3, config_kwargs={})


class TestGcs(StoreConformance):
    @pytest.fixture
    def store(self, gcs: Server) -> FsspecStore:
        return store_of(gcs)
