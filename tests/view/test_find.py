"""From a bar of a chart to the records behind it."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from view_client import Client, cards, serving

import cachelayer
from cachelayer.view import find_page
from cachelayer.view.find_page import PAGE

CLASSES = ["cat", "dog", "<b>emu</b>", "fox"]
RECORDS = 40
SPEC = {
    "label": cachelayer.ArraySpec(np.int64),
    "score": cachelayer.ArraySpec(np.float32, nullable=True),
    "far": cachelayer.ArraySpec(np.uint64),
    "flag": cachelayer.ArraySpec(np.bool_),
    "small": cachelayer.ArraySpec(np.int8, (2, 2)),
    "tokens": cachelayer.ArraySpec(np.int32, (None,)),
    "text": cachelayer.ArraySpec(str),
    "raw": cachelayer.ArraySpec(bytes, nullable=True),
    "grid": cachelayer.ArraySpec(np.int16, (None, None)),
    "day": cachelayer.ArraySpec(np.dtype("M8[D]")),
    "nested": {
        "ragged": cachelayer.RaggedSpec(np.int64, (None, None)),
        "sparse": cachelayer.SparseSpec(np.int64, (9,)),
    },
    "words": cachelayer.ArraySpec(str, (None,)),
}  # fmt: skip


def row(number: int) -> dict[str, object]:
    return {
        "label": number % 4,
        "score": None if number % 9 == 0 else [np.nan, np.inf, number / 7][min(2, number % 5)],
        "far": 2**63 + number,
        "flag": number % 3 == 0,
        "small": np.full((2, 2), number % 5 - 2, np.int8),
        "tokens": np.full(number % 6, 7 + number % 6, np.int32),
        "text": f"<i>{number % 3} \u202e",
        "raw": None if number % 2 else bytes([number % 3, 255]) * (1 + number % 4),
        "grid": np.zeros((number % 2, 3), np.int16),
        "day": np.datetime64("NaT" if number % 10 == 0 else "2020-01-01", "D"),
        "nested": {
            "ragged": cachelayer.Ragged(np.arange(3), np.array([0, number % 3, 3])),
            "sparse": cachelayer.Sparse(np.array([[number % 9]]), np.array([number % 4]), (9,)),
        },
        "words": np.array(["a", "b"][: number % 3], object),
    }


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.Storage:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    storage.submit(map(row, range(RECORDS)), "d@v1", element_spec=SPEC, metadata={"classes": CLASSES})
    storage.submit([number % 2 for number in range(5000)], "plain@v1")
    return storage


@pytest.fixture(scope="module")
def client(storage: cachelayer.Storage) -> Iterator[Client]:
    with serving(storage) as client:
        yield client


def links(client: Client, dataset: str) -> list[tuple[str, int]]:
    """The links of the page of statistics to records, with the numbers that stand beside them."""
    path = f"/d/{dataset}/v1/statistics"
    client.ask(path, "POST", {"do": "all"})
    text = client.shown(path)
    while 'http-equiv="refresh"' in text:
        text = client.shown(path)
    bars = re.findall(r'<a href="([^"]*/find\?[^"]*)" aria-label="[^"]*: ([\d,]+)"', text)
    numbers = re.findall(r'<a href="([^"]*/find\?[^"]*)">([\d,]+) ', text)
    return [(html.unescape(link), int(count.replace(",", ""))) for link, count in [*bars, *numbers]]


def test_each_number_of_the_statistics_links_to_so_many_records(client: Client) -> None:
    found = links(client, "d")
    several = ("leaf=4", "leaf=5&has=value", "leaf=12&has=text")
    for link, count in found:
        records = cards(client.shown(link))
        assert records
        if any(leaf in link for leaf in several):
            assert len(records) <= count
        else:
            assert len(records) == count, link
    kinds = {
        (int(leaf), kind) for leaf, kind in re.findall(r"leaf=(\d+)&has=(\w+)", " ".join(link for link, _ in found))
    }
    assert kinds == {
        *((leaf, "value") for leaf in (0, 1, 2, 3, 4, 5, 11)),
        *((leaf, "length") for leaf in (5, 6, 7, 11, 12)),
        *((leaf, "text") for leaf in (6, 7, 12)),
        *((leaf, "nan") for leaf in (1, 9)),
        *((leaf, "null") for leaf in (1, 7)),
        (1, "infinite"),
    }


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("leaf=0&low=2", lambda number: number % 4 == 2),
        ("leaf=1&low=1&high=2.5", lambda number: number % 9 and number % 5 > 1 and 1 <= number / 7 < 2.5),
        (f"leaf=2&low={2**63 + 5}", lambda number: number == 5),
        (f"leaf=2&low=-1&high={2**80}", lambda _: True),
        (f"leaf=3&low=-{2**80}&high={2**80}", lambda _: True),
        ("leaf=4&low=-2", lambda number: number % 5 == 0),
        ("leaf=5&low=9", lambda number: number % 6 == 2),
        ("leaf=5&has=length&low=0", lambda number: number % 6 == 0),
        ("leaf=7&has=text&low=b%27%5Cx01%5Cxff%27", lambda number: number % 4 == 0 and number % 3 == 1),
        ("leaf=9&has=nan", lambda number: number % 10 == 0),
        ("has=length&low=1&high=100000", lambda _: True),
    ],
)
def test_exactly_the_records_that_match_are_found(client: Client, query: str, expected: object) -> None:
    assert callable(expected)
    assert cards(client.shown(f"/d/d/v1/find?{query}")) == [each for each in range(RECORDS) if expected(each)]


def test_a_search_goes_on_where_it_stopped(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(find_page, "_PATIENCE", 0.0)
    monkeypatch.setattr(find_page, "_BATCH_RECORDS", 700)
    path, found, pages = "/d/plain/v1/find?leaf=0&low=1", [], 0
    while path:
        text = client.shown(path)
        found += cards(text)
        pages += 1
        onward = re.search(r'<a rel="next" href="([^"]*)">search on', text)
        path = html.unescape(onward[1]) if onward else ""
    assert found == list(range(1, 5000, 2))
    assert pages >= len(found) / PAGE
    text = client.shown("/d/plain/v1/find?leaf=0&low=5")
    assert "found among 0 to 699 of 5,000" in text


@pytest.mark.parametrize(
    "query",
    [
        "leaf=99&low=1",
        "leaf=0&low=x",
        "leaf=0&has=<script>",
        "leaf=0&has=length&low=1",
        "leaf=8&low=0",
        "has=null",
        "leaf=0&low=1&from=99",
        "leaf=0&low=" + "9" * 5000 + "x",
    ],
)
def test_what_cannot_be_searched_is_refused(client: Client, query: str) -> None:
    answer = client.get(f"/d/d/v1/find?{query}")
    assert (answer.status, "<script>alert" in answer.text, "A bug" in answer.text) == (400, False, False)


def test_a_damaged_shard_is_a_page_that_says_what_to_do(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit([{"x": number, "y": bytes(3000)} for number in range(40)], "d@v1", shard_bytes=40_000)
    with serving(cachelayer.Storage(tmp_path, verify="always")) as client:
        sorted(tmp_path.rglob("*.array_record"))[0].write_bytes(b"damaged")
        assert "cachelayer verify" in client.shown("/d/d/v1/find?leaf=0&low=3", 500)
