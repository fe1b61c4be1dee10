"""What the log says, to whom, and that it never shows a credential."""

import logging
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import invoke, refused
from faults import answer, cut, fault_proxy, lose, stall
from servers import Server, new_bucket

from cachelayer import CacheLayerWarning, InvalidArgumentError, Storage
from cachelayer.objects.file_systems import FileSystem
from cachelayer.objects.open_store import open_store
from cachelayer.support import counting, waits
from cachelayer.support.logs import logger_of
from cachelayer.support.waits import Wait, stall_seconds
from cachelayer.versions.lease import CLAIM, Leases
from cachelayer.versions.log import Log

LOGGERS = ("stores", "log", "builds", "copies", "streams")
ROWS = {"x": np.arange(4000.0)}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[..., list[str]]:
    """Return what returns the lines of a logger at a level or above."""
    caplog.set_level(logging.DEBUG, "cachelayer")

    def lines(name: str, level: int = logging.DEBUG) -> list[str]:
        named = [record for record in caplog.records if record.name == f"cachelayer.{name}"]
        return [record.getMessage() for record in named if record.levelno >= level]

    return lines


@pytest.fixture
def remote(tmp_path: Path) -> Storage:
    return Storage(f"memory://{uuid.uuid4().hex}", local_cache=tmp_path / "copies")


def build(storage: Storage, **options: Any) -> Any:
    return storage.cache(ROWS, "numbers@v1", shard_bytes=60_000, **options)


# Who gets the lines.

PROGRAM = """
import sys, tempfile
import numpy as np
{first}
import cachelayer
ref = cachelayer.Storage(tempfile.mkdtemp()).cache({{"x": np.arange(9)}}, "numbers@v1")
for batch in ref.stream(3):
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("setting", "first", "said"),
    [
        ("", "", False),
        ("debug", "", True),
        ("INFO", "", True),
        ("error", "", False),
        # A program that sets logging up gets each line once.
        ("info", "import logging; logging.basicConfig(format='mine %(message)s')", True),
        ("", "import logging; logging.basicConfig(level='INFO')", True),
        ("", "import logging; logging.basicConfig()", False),
    ],
)
def test_it_is_silent_unless_somebody_asks(setting: str, first: str, said: bool, monkeypatch: Any) -> None:
    monkeypatch.setenv("CACHELAYER_LOG", setting)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(first=first)], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("numbers@v1: published") == said
    assert said or not done.stderr


@pytest.mark.slow
def test_another_level_is_warned_of_by_name_and_ends_no_program(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "from cachelayer.cli import main; main()", "ls", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "CACHELAYER_LOG": "loud"},
    )
    assert done.returncode == 0
    assert "CacheLayerWarning: CACHELAYER_LOG is 'loud'" in done.stderr


def test_the_command_line_appends_its_log_to_a_file(tmp_path: Path) -> None:
    file, storage = tmp_path / "log", tmp_path / "caches"
    build(Storage(storage))
    for _ in range(2):
        invoke("--log-file", file, "tag", f"{storage}/numbers@v1", "best")
        invoke("--log-file", file, "tag", f"{storage}/numbers", "best", "--delete")
    text = file.read_text()
    assert text.count("cachelayer.log: ") == 4
    assert "untag" in text
    invoke("tag", f"{storage}/numbers@v1", "best")
    assert file.read_text() == text
    assert "cannot be written" in refused("--log-file", tmp_path / "none" / "log", "ls", storage)


# What they say.


def test_a_build_and_its_entry_of_the_log_are_told(
    tmp_path: Path, lines: Callable[..., list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    storage = Storage(tmp_path)
    build(storage)
    assert any("numbers@v1: published 4000 records" in line for line in lines("builds", logging.INFO))
    [published] = [record for record in caplog.records if "published" in record.getMessage()]
    assert (published.version, published.records) == ("numbers@v1", 4000)
    assert any("publish version=v1" in line and "/numbers" in line for line in lines("log", logging.INFO))
    file = next((tmp_path / "numbers" / "shards").glob("*.array_record"))
    assert any(line.startswith(f"write {file}: in 0.") for line in lines("stores"))
    file.write_bytes(file.read_bytes()[:-1])
    assert not storage.verify("numbers@v1")
    assert any(file.name in line and "numbers@v1" in line for line in lines("stores", logging.WARNING))
    other = Storage(tmp_path / "other")
    build(other)
    assert storage.repair("numbers@v1", from_=other)
    assert any(file.name in line and "is put from" in line for line in lines("stores", logging.WARNING))


def test_a_lost_race_is_told(tmp_path: Path, lines: Callable[..., list[str]]) -> None:
    storage, before = Storage(tmp_path), counting.counters()["lost_races"]
    build(storage)
    folder = open_store(str(tmp_path)).folder("numbers")
    log, is_first = Log(folder), [True]

    def decide(head: Any) -> Any:
        if is_first.pop() if is_first else False:
            storage.tag("numbers@v1", "first")
        return head.with_tag("v1", "second", {"kind": "tag"})

    log.commit(decide)
    assert any("another writer" in line and "numbers/_log/" in line for line in lines("log", logging.INFO))
    assert counting.counters()["lost_races"] == before + 1


def test_work_that_is_taken_over_is_told(tmp_path: Path, lines: Callable[..., list[str]]) -> None:
    store = open_store(str(tmp_path))
    store.put(CLAIM, b"somewhere:1:2 token 0")
    leases = Leases(store)
    assert leases.holder(CLAIM) is not None
    leases._seen[CLAIM] = (leases._seen[CLAIM][0], -1e9)
    assert leases.holder(CLAIM) is None
    assert any("somewhere" in line and "taken over" in line for line in lines("builds", logging.INFO))


def test_what_becomes_of_local_copies_is_told(remote: Storage, tmp_path: Path, lines: Callable[..., list[str]]) -> None:
    ref, before = build(remote), counting.counters()
    for copy in (tmp_path / "copies").glob("*/*.array_record"):
        copy.unlink()
    ref = remote.fetch("numbers@v1")
    ref.mirror()
    assert any("copied" in line and "/numbers/shards/" in line for line in lines("copies", logging.INFO))
    copy = next((tmp_path / "copies").glob("*/*.array_record"))
    raw = bytearray(copy.read_bytes())
    raw[len(raw) // 2 :] = bytes(len(raw) - len(raw) // 2)
    copy.chmod(0o600)
    copy.write_bytes(raw)
    fresh = Storage(remote.url, local_cache=tmp_path / "copies", verify="always").fetch("numbers@v1")
    with pytest.warns(CacheLayerWarning, match="damaged"):
        fresh.read(range(4000))
    assert any("damaged" in line and copy.name in line for line in lines("copies", logging.WARNING))
    small = Storage(remote.url, local_cache=tmp_path / "small", local_cache_bytes=200_000).fetch("numbers@v1")
    small.mirror()
    assert any("no room" in line for line in lines("copies", logging.INFO))
    other = Storage(f"memory://{uuid.uuid4().hex}", local_cache=tmp_path / "small", local_cache_bytes=200_000)
    del small
    build(other)
    other.fetch("numbers@v1").mirror()
    assert any("removed" in line for line in lines("copies", logging.INFO))
    after = counting.counters()
    for name in ("made", "damaged", "refused", "evicted"):
        assert after[f"copies_{name}"] > before[f"copies_{name}"], name


@pytest.mark.parametrize("shuffle", [True, "blocks"])
def test_records_are_counted_that_come_from_copies(remote: Storage, tmp_path: Path, shuffle: Any) -> None:
    build(remote)
    remote.fetch("numbers@v1").mirror()
    stats = []
    for copies in (None, 0):
        storage = Storage(remote.url, local_cache=tmp_path / "copies", local_cache_bytes=copies)
        iterator = iter(storage.fetch("numbers@v1").stream(500, shuffle=shuffle, seed=1))
        assert sum(len(batch["x"]) for batch in iterator) == 4000
        stats.append(iterator.stats())
    hit, over_network = stats
    assert (hit.copies_hit, hit.copies_missed, hit.reading.requests) == (4000, 0, 0)
    assert (over_network.copies_hit, over_network.copies_missed) == (0, 0)
    assert over_network.reading.requests > 0
    assert over_network.reading.bytes >= 4000 * 8


def test_an_element_that_another_stands_in_for_is_told(tmp_path: Path, lines: Callable[..., list[str]]) -> None:
    def fails(element: Any) -> Any:
        if element["x"] == 7:
            raise ValueError("seven")
        return element["x"]

    with pytest.warns(CacheLayerWarning, match="seven"):
        list(build(Storage(tmp_path)).stream(1000).map(fails, on_error="replace"))
    assert any("record 7" in line for line in lines("streams", logging.WARNING))


@pytest.fixture(params=["s3", "gcs", "azure"])
def server(request: pytest.FixtureRequest) -> Server:
    server: Server = request.getfixturevalue(request.param)
    return server


def test_requests_and_retries_are_told_and_counted_and_no_credential_is_shown(
    server: Server, lines: Callable[..., list[str]], tmp_path: Path
) -> None:
    with fault_proxy(server.endpoint) as proxy:
        options = server.storage_options(proxy.endpoint)
        storage = Storage(server.url(new_bucket(server), "p"), storage_options=options, local_cache_bytes=0)
        proxy.add(answer(503, times=3), lose(containing="_log", times=1))
        build(storage)
        before = counting.counters()
        proxy.add(answer(503, containing=".array_record", method="GET", times=2), cut(9, times=1, method="GET"))
        iterator = iter(storage.fetch("numbers@v1").stream(500, shuffle=True, seed=1))
        assert sum(len(batch["x"]) for batch in iterator) == 4000
    requests, stats, after = lines("stores"), iterator.stats(), counting.counters()
    read = [line for line in requests if line.startswith("read bytes ") and ".array_record: " in line]
    assert any(" bytes in 0." in line for line in read)
    again = [line for line in lines("stores", logging.INFO) if "again in" in line]
    assert any("503" in line for line in again)
    # The file system of Google's client makes some requests again by itself.
    assert all(f"{storage.url}/" in line for line in again)
    for name in ("requests", "bytes_received", "request_seconds"):
        assert after[name] > before[name]
    assert 2 <= stats.reading.retries <= after["retries"] - before["retries"]
    assert 0 < stats.reading.requests <= after["requests"] - before["requests"]
    assert stats.reading.bytes >= 4000 * 8
    every = "\n".join(line for name in LOGGERS for line in lines(name))
    secrets = [str(value) for name, value in options.items() if name in ("secret", "account_key", "key")]
    secrets += [part for part in str(options.get("connection_string", "")).split(";") if part.startswith("AccountKey")]
    assert not any(secret in every for secret in secrets)


SECRET = "hush"


@pytest.mark.parametrize(
    "text",
    [
        f"s3://key:{SECRET}@bucket/a@v1",
        f"https://account.blob.core.windows.net/c/a?sv=2022&sig={SECRET}&se=1",
        f"https://bucket.s3.amazonaws.com/a?X-Amz-Signature={SECRET}",
        f"https://storage.googleapis.com/bucket/a?X-Goog-Signature={SECRET}#{SECRET}",
        f"read 'http://user:{SECRET}@host:80/a?token={SECRET}': 503 {{https://host/x?sig={SECRET}}}",
        f"az://container/a?sv=1&sig={SECRET}",
    ],
)
@pytest.mark.parametrize("name", LOGGERS)
def test_no_line_shows_a_credential(text: str, name: Any, lines: Callable[..., list[str]]) -> None:
    logger_of(name).warning("%s: again in %d s", text, 5)
    with pytest.raises(OSError, match=SECRET):
        fail(text, name)
    shown = "\n".join(lines(name))
    assert SECRET not in shown
    assert "again in 5 s" in shown


def fail(text: str, name: Any) -> None:
    try:
        raise OSError(text)
    except OSError:
        logger_of(name).exception("it failed")
        raise


def test_a_signed_address_is_read_and_its_signature_is_not_logged(
    tmp_path: Path, lines: Callable[..., list[str]]
) -> None:
    fs = FileSystem("https://127.0.0.1:9/x", {}, 1.0)
    with pytest.raises(Exception, match="127"):
        fs.read_range(f"https://127.0.0.1:9/x?sig={SECRET}", 0, 9, 1.0)
    assert any("read bytes 0 to 9 of https://127.0.0.1:9/x" in line for line in lines("stores"))
    assert SECRET not in "\n".join(lines("stores"))


# Stalls.


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("CACHELAYER_STALL_SECONDS", "0.2")
    waits._warned.clear()
    yield
    waits._warned.clear()


@pytest.mark.usefixtures("soon")
def test_a_store_that_stalls_is_named_once_while_it_stalls(
    gcs: Server, lines: Callable[..., list[str]], caplog: pytest.LogCaptureFixture
) -> None:
    url = gcs.url(new_bucket(gcs), "p")
    build(Storage(url, storage_options=gcs.storage_options()))
    with fault_proxy(gcs.endpoint) as proxy:
        options = gcs.storage_options(proxy.endpoint) | {"timeout": 8}
        ref = Storage(url, storage_options=options, local_cache_bytes=0).fetch("numbers@v1")
        iterator = iter(ref.stream(4000))
        # To open a client for the first time may have been a stall.
        waits._warned.clear()
        caplog.clear()
        proxy.add(stall(containing=".array_record", times=1))
        before = counting.counters()["stalls"]
        assert len(next(iterator)["x"]) == 4000
    [line] = lines("stores", logging.WARNING)
    assert "waiting for" in line
    assert ".array_record" in line
    [line] = lines("streams", logging.WARNING)
    assert "numbers@v1" in line
    assert counting.counters()["stalls"] >= before + 2
    assert iterator.stats().reading.seconds > 0.2


@pytest.mark.slow
@pytest.mark.parametrize(("first", "says"), [("", True), ("import logging; logging.basicConfig(level='ERROR')", False)])
def test_a_program_without_a_log_says_what_it_waits_for(
    first: str, says: bool, gcs: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = gcs.url(new_bucket(gcs), "p")
    build(Storage(url, storage_options=gcs.storage_options()))
    monkeypatch.setenv("CACHELAYER_STALL_SECONDS", "0.2")
    with fault_proxy(gcs.endpoint) as proxy:
        proxy.add(stall(containing="_log", times=1))
        options = gcs.storage_options(proxy.endpoint) | {"timeout": 8}
        program = (
            f"{first}\nimport cachelayer\ncachelayer.Storage({url!r}, storage_options={options!r}).fetch('numbers@v1')"
        )
        done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ("cachelayer.stores: waiting for" in done.stderr) == says
    assert says or not done.stderr


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("progress", [None, False])
def test_a_source_that_stalls_is_named(progress: bool | None, tmp_path: Path, lines: Callable[..., list[str]]) -> None:
    warned = threading.Event()
    handler = logging.Handler(logging.WARNING)
    handler.emit = lambda _: warned.set()  # type: ignore[method-assign]
    logger_of("builds").addHandler(handler)

    def source() -> Iterator[Any]:
        yield {"x": 1}
        assert warned.wait(60)
        yield {"x": 2}

    try:
        Storage(tmp_path).cache(source, "numbers@v1", progress=progress)
    finally:
        logger_of("builds").removeHandler(handler)
    assert any("numbers@v1" in line and "the source" in line for line in lines("builds", logging.WARNING))


@pytest.mark.parametrize("told", ["", "soon", "0", "-1", "nan", "inf"])
def test_a_stall_of_no_time_is_refused(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("CACHELAYER_STALL_SECONDS", told)
    with pytest.raises(InvalidArgumentError, match="CACHELAYER_STALL_SECONDS"):
        stall_seconds()
    with pytest.raises(InvalidArgumentError, match="CACHELAYER_STALL_SECONDS"):
        Wait("", "stores").until(lambda _: True)
