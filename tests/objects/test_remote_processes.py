"""Object stores in forked and spawned processes, and at their end."""

import hashlib
import itertools
import json
import multiprocessing
import os
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from typing import Any

import pytest
import samples
from forks import beside_threads
from servers import Server, new_bucket

from cachelayer.objects.open_store import open_store
from cachelayer.objects.store import Store

TEXT = os.urandom(100_000)
PLACES = ["s3", "gs", "az", "s3 without obstore"]
# Those that start Python anew; one in three covers both, and both stores.
ANEW = list(itertools.product(PLACES, ["spawn", "forkserver"]))


@pytest.fixture(params=PLACES)
def place(request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    fixtures = {"gs": "gcs", "az": "azure"}
    server: Server = request.getfixturevalue(fixtures.get(request.param, "s3"))
    options = {"config_kwargs": {}} if request.param == "s3 without obstore" else {}
    url, options = server.url(new_bucket(server)), {**server.storage_options(), **options}
    open_store(url, options).put("a", TEXT)
    return url, options


def is_right(store: Store, start: int) -> bool:
    ranges = [("a", first, first + 100) for first in range(start, start + 4000, 400)]
    return store.read_ranges(ranges) == [TEXT[first:stop] for _, first, stop in ranges] and store.read("a") == TEXT


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("place", "kind"),
    [*((place, "fork") for place in PLACES), *(ANEW if samples.IN_FULL else ANEW[::3])],
    indirect=["place"],
)
def test_every_kind_of_process_reads_what_is_there(place: tuple[str, dict[str, Any]], kind: str) -> None:
    store = open_store(*place)
    assert store.read("a") == TEXT
    assert store.read_ranges([("a", 1, 2)]) == [TEXT[1:2]]
    # Tasks of a pool are pickled without credentials; what its processes are started with is not.
    pool = ProcessPoolExecutor(2, multiprocessing.get_context(kind), initializer=keep, initargs=(store,))
    with beside_threads(), pool:
        found = list(pool.map(digest_of, range(4)))
        assert store.read_ranges([("a", 5, 9)]) == [TEXT[5:9]]
    assert found == [hash_of(TEXT)] * 4
    assert is_right(store, 0)


_stores: list[Store] = []


def keep(store: Store) -> None:
    _stores.append(store)


def digest_of(_task: int) -> str:
    store = _stores[-1]
    (part,) = store.read_ranges([("a", 0, 100_000)])
    assert store.read("a") == part
    return hash_of(part)


def hash_of(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


ENDS = """
import json, os, sys
from cachelayer.objects.open_store import open_store

url, options = json.loads(sys.argv[1])
store = open_store(url, options)
whole = store.read("a")
assert store.read_ranges([("a", 0, 10), ("a", 90_000, 90_010)]) == [whole[:10], whole[90_000:90_010]]
for _ in range(2):
    child = os.fork()
    if child == 0:
        assert store.read("a") == whole
        assert store.read_ranges([("a", 0, 10)]) == [whole[:10]]
        grandchild = os.fork()
        if grandchild == 0:
            assert store.read_ranges([("a", 3, 10)]) == [whole[3:10]]
            sys.exit(7)
        assert os.waitstatus_to_exitcode(os.waitpid(grandchild, 0)[1]) == 7
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 5
    # The child's end has not closed what it inherited.
    assert store.read("a") == whole
    assert store.read_ranges([("a", 0, 10)]) == [whole[:10]]
child = os.fork()
if child == 0:
    sys.exit(6)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 6
assert store.read("a") == whole
print("read")
"""


def test_processes_that_have_read_and_forked_end_in_silence(place: tuple[str, dict[str, Any]]) -> None:
    command = [sys.executable, "-W", "default", "-c", ENDS, json.dumps(place)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert (found.returncode, found.stdout, found.stderr) == (0, "read\n", "")


KEEPS = """
import os, sys
from cachelayer.objects import file_systems

class Client:
    def __del__(self):
        os.write(1, b"freed ")

file_systems._file_systems[()] = Client()
child = os.fork()
if child == 0:
    sys.exit(0)
os.waitpid(child, 0)
os.write(1, b"read ")
"""


def test_a_forked_process_does_not_free_the_clients_of_its_parent() -> None:
    """One child in some thousand stood still at its end: freeing a client of obstore takes locks of its threads."""
    found = subprocess.run([sys.executable, "-c", KEEPS], capture_output=True, text=True, check=True)
    assert found.stdout == "read freed "


WITHOUT = """
import sys
from cachelayer.objects.open_store import open_store
open_store("gs://bucket/x"), open_store("s3://bucket/x"), open_store("az://bucket/x"), open_store("/tmp")
clients = {"fsspec", "gcsfs", "s3fs", "adlfs", "aiohttp", "obstore"}
print(sorted({name.partition(".")[0] for name in sys.modules} & clients))
"""


def test_no_client_is_loaded_before_a_store_is_asked() -> None:
    found = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
