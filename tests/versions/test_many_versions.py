"""Datasets of very many versions and sweeps: what is asked of a store does not grow with them."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from faults import fault_proxy
from servers import Server, new_storage

from cachelayer import Storage
from cachelayer.objects import paths
from cachelayer.objects.store import Store
from cachelayer.support.json_values import sealed
from cachelayer.versions.log import Log
from cachelayer.versions.snapshot import Snapshot, chain_of

MANY = 10_000


def put_head(dataset: Store, head: Snapshot) -> None:
    """Put the entries from which a head is read, as if there were all others too."""
    base = Snapshot()
    for number in chain_of(head.sequence):
        versions = dict(list(head.versions.items())[:number])
        entry = replace(head, sequence=number, versions=versions)
        dataset.put(paths.log_entry(number), entry.encode("0" * 32, base))
        base = entry
    dataset.put(paths.LOG_HEAD, sealed({"sequence": head.sequence}))


@pytest.mark.parametrize("where", ["gcs", "s3", "azure"])
def test_a_dataset_of_10_000_versions_is_used_with_few_requests(where: str, request: pytest.FixtureRequest) -> None:
    server: Server = request.getfixturevalue(where)
    with fault_proxy(server.endpoint) as proxy:
        storage = new_storage(server, proxy.endpoint)
        storage.submit(range(5), "d@v1")
        dataset = storage._store.folder("d")
        head = Log(dataset).head()
        info = head.versions["v1"]
        names = [f"day-{number:06}" for number in range(MANY)]
        put_head(dataset, replace(head, sequence=MANY, versions={name: replace(info, version=name) for name in names}))

        asked: dict[str, list[str]] = {}
        for name, use in USES.items():
            fresh = Storage(storage.url, storage_options=server.storage_options(proxy.endpoint), local_cache_bytes=0)
            proxy.forget()
            use(fresh)
            asked[name] = [exchange.path for exchange in proxy.exchanges()]
        assert max(len(asked["fetch"]), len(asked["versions"])) < 10
        assert max(map(len, asked.values())) < 20
        assert len(fresh.versions("d")) == MANY + 1


USES: dict[str, Callable[[Storage], Any]] = {
    "fetch": lambda storage: storage.fetch("d@day-000077"),
    "versions": lambda storage: storage.versions("d"),
    "append": lambda storage: storage.append("d@day-009999", "day-010000", [7]),
    "gc": lambda storage: storage.gc(grace=0),
}


@pytest.mark.parametrize("where", ["gcs", "s3"])
def test_appending_and_deriving_ask_as_much_after_many_appends_and_sweeps(
    where: str, request: pytest.FixtureRequest
) -> None:
    server: Server = request.getfixturevalue(where)
    with fault_proxy(server.endpoint) as proxy:
        storage = new_storage(server, proxy.endpoint)
        storage.submit([0], "d@day-0")
        dataset = storage._store.folder("d")
        asked: dict[str, list[list[str]]] = {"append": [], "derive": [], "entries": []}
        counts_of_all: list[int] = []
        for day in range(1, 25):
            proxy.forget()
            ref = storage.append(f"d@day-{day - 1}", f"day-{day}", [day])
            requests = [exchange.path for exchange in proxy.exchanges()]
            asked["append"].append([path for path in requests if "_log" not in path])
            asked["entries"].append([path for path in requests if "_log" in path])
            counts_of_all.append(len(requests))
            proxy.forget()
            storage.derive(f"d@day-{day}", f"last-{day}", keep=[day])
            asked["derive"].append([exchange.path for exchange in proxy.exchanges() if "_log" not in exchange.path])
            # What an interrupted build left is swept each day.
            dataset.put(f"{paths.SHARDS}/{day:032x}-{day - 1}.array_record", b"left")
            assert len(storage.gc(grace=0)) == 1
        assert Log(dataset).head().generation == day
        for name in ("append", "derive"):
            counts = list(map(len, asked[name]))
            assert max(counts[4:]) == min(counts[4:]), name
        # However many appends there were: the pointer and the newest entry are read, the next is looked for and put.
        assert len(set(map(len, asked["entries"]))) == 1
        assert set(counts_of_all[1:]) == {15}
        assert list(ref.read(range(day + 1))) == list(range(day + 1))
        assert ref.verify()
