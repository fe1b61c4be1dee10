"""What each role of a team can do with the rights that the page says it needs, and what is refused to it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from fault_rules import Fault
from faults import answer, fault_proxy
from servers import Server, new_bucket

from cachelayer import Storage, StorageError

ROWS = [{"x": number} for number in range(100)]
WRITES = ("PUT", "POST", "PATCH")
READER = [answer(403, method=method) for method in (*WRITES, "DELETE")]
"""Whoever may read and list."""
WRITER = [answer(403, method="DELETE"), answer(403, method="POST", containing='"rows/_log/head"')]
"""Whoever may read, list and write, and may not delete; who may not delete may not overwrite on GCS."""


@contextmanager
def storage_with(server: Server, url: str, rights: list[Fault]) -> Iterator[Storage]:
    with fault_proxy(server.endpoint) as proxy:
        proxy.add(*rights)
        yield Storage(url, storage_options=server.storage_options(proxy.endpoint), local_cache_bytes=0)


@pytest.fixture
def url(server: Server) -> str:
    """A storage with two versions of one dataset."""
    url = server.url(new_bucket(server))
    owner = Storage(url, storage_options=server.storage_options(), local_cache_bytes=0)
    owner.submit(ROWS, "rows@v1")
    owner.append("rows@v1", "v2", ROWS[:10])
    return url


def test_a_reader_reads_and_audits_and_changes_nothing(server: Server, url: str) -> None:
    with storage_with(server, url, READER) as storage:
        assert storage.datasets() == ["rows"]
        assert list(storage.versions("rows")) == ["v1", "v2"]
        assert [event.kind for event in storage.history("rows")]
        ref = storage.fetch("rows@v2")
        assert len(list(ref.stream(10, shuffle=True, seed=0))) == 11
        assert storage.verify("rows@v2")
        assert storage.diff("rows@v1", "rows@v2")
        assert storage.cache(ROWS, "rows@v1") is not None
        changes: list[Callable[[], Any]] = [
            lambda: storage.submit(ROWS, "rows@v3"),
            lambda: storage.append("rows@v2", "v3", ROWS),
            lambda: storage.tag("rows@v1", tag="best"),
            lambda: storage.delete("rows@v1"),
        ]
        for change in changes:
            with pytest.raises(StorageError):
                change()
        assert list(storage.versions("rows")) == ["v1", "v2"]


@pytest.mark.filterwarnings("ignore::cachelayer.CacheLayerWarning")
def test_a_writer_without_delete_makes_versions_and_the_collector_removes_what_it_leaves(
    server: Server, url: str
) -> None:
    with storage_with(server, url, WRITER) as storage:
        storage.submit(ROWS, "rows@v3")
        storage.append("rows@v3", "v4", ROWS)
        storage.derive("rows@v4", "v5", keep="x > 50")
        storage.tag("rows@v5", tag="best")
        storage.cache(ROWS, "other@v1")
        assert len(storage.fetch("rows@best")) == 98
        storage.delete("rows@v1")
        with pytest.raises(StorageError):
            storage.gc(grace=0)
    collector = Storage(url, storage_options=server.storage_options(), local_cache_bytes=0)
    assert collector.gc(grace=0)
    assert not collector.gc(grace=0)
    for version in collector.versions("rows"):
        assert collector.verify(f"rows@{version}")
