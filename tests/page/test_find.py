"""From a bar of a chart to the records behind it, and conditions that users write."""

import html
import re
from collections.abc import Callable
from urllib.parse import parse_qs, quote, urlsplit

import numpy as np
import pytest
from view_client import Client, cards

import cachelayer
from cachelayer.page import record_pages

CLASSES = ["cat", "dog", "<b>emu</b>", "fox"]
RECORDS = 40
SPEC = {
    "label": cachelayer.ArraySpec(np.int64),
    "score": cachelayer.ArraySpec(np.float32, nullable=True),
    "far": cachelayer.ArraySpec(np.uint64),
    "flag": cachelayer.ArraySpec(np.bool_),
    "tokens": cachelayer.ArraySpec(np.int32, (None,), nullable=True),
    "code": cachelayer.ArraySpec("S4"),
    "text": cachelayer.ArraySpec(str),
    "raw": cachelayer.ArraySpec(bytes, nullable=True),
    "day": cachelayer.ArraySpec(np.dtype("M8[D]")),
    "time": cachelayer.ArraySpec(np.dtype("M8[ns]")),
    "wait": cachelayer.ArraySpec(np.dtype("m8[s]")),
    "nested": {"small": cachelayer.ArraySpec(np.int8), "class": cachelayer.ArraySpec(np.int8)},
    "same": cachelayer.ArraySpec(np.int16),
    "no name": cachelayer.ArraySpec(np.int16),
}
CHOSEN = {"code", "label", "score", "far", "flag", "text", "raw", "day", "time", "nested.small", "`no name`"}


def row(number: int) -> dict[str, object]:
    return {
        "label": number % 4,
        "score": None if number % 9 == 0 else [np.nan, np.inf, number / 7][min(2, number % 5)],
        "far": 2**63 + 100 * number,
        "flag": number % 3 == 0,
        "tokens": None if number % 8 == 0 else np.full(number % 6, 7 + number % 6, np.int32),
        "code": np.bytes_(f"b'{number % 3}"),
        "text": f"<i>{number % 3} \u202e'\"",
        "raw": None if number % 2 else bytes([number % 3, 255]) * (1 + number % 4),
        "day": np.datetime64("NaT" if number % 10 == 0 else f"2020-01-{number % 9 + 1:02}", "D"),
        "time": np.datetime64("2020-01-01", "ns") + np.timedelta64(number, "D"),
        "wait": np.timedelta64(number, "s"),
        "nested": {"small": number % 5 - 2, "class": number % 2},
        "same": 7,
        "no name": number % 2,
    }


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.Storage:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    storage.submit(map(row, range(RECORDS)), "d@v1", element_spec=SPEC, metadata={"classes": CLASSES})
    storage.submit({"x": np.arange(5000) % 2}, "plain@v1")
    return storage


def found(client: Client, where: str, dataset: str = "d") -> list[int]:
    return cards(client.shown(f"/d/{dataset}/v1/records?where={quote(where)}"))


@pytest.mark.parametrize("place", ["records", "statistics"])
def test_each_bar_leads_to_so_many_records(client: Client, place: str) -> None:
    text = client.shown(f"/d/d/v1/{place}")
    bars = re.findall(r'<a href="([^"]*/records\?[^"]*)" aria-label="[^"]*: ([\d,]+)"', text)
    numbers = re.findall(r'<a href="([^"]*/records\?[^"]*)">([\d,]+) (?:null|NaN|NaT|infinite)<', text)
    assert len(numbers) == 5
    assert sorted(re.findall(r">\d+ (null|NaN|NaT|infinite)<", text)) == ["NaN", "NaT", "infinite", *["null"] * 3]
    fields = set()
    for link, count in [*bars, *numbers]:
        assert cards(client.shown(html.unescape(link)))[: int(count)]
        assert len(cards(client.shown(html.unescape(link)))) == int(count), link
        fields.add(
            re.findall(r"`[^`]+`|[a-z]+(?:\.[a-z]+)?", parse_qs(urlsplit(html.unescape(link)).query)["where"][0])[0]
        )
    assert CHOSEN - {"text"} <= fields | {"raw"}


def test_a_field_of_one_value_is_not_drawn(client: Client) -> None:
    text = client.shown("/d/d/v1/records")
    assert "all 7" in text
    assert "Distribution of same" not in text
    assert "Distribution of label" in text
    assert "2020-01-01 to 2020-02-09" in text
    assert "T00:00" not in text


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        ("label == 2", lambda number: number % 4 == 2),
        ("label == 2 and flag == True", lambda number: number % 4 == 2 and number % 3 == 0),
        ("score is None", lambda number: number % 9 == 0),
        ("nested.small in [1, 2]", lambda number: number % 5 > 2),
        ("time >= '2020-01-30'", lambda number: number >= 29),
        ("label == 9", lambda _: False),
    ],
)
def test_exactly_the_records_that_match_are_found(client: Client, where: str, expected: Callable[[int], bool]) -> None:
    assert found(client, where) == [number for number in range(RECORDS) if expected(number)]


def test_a_search_stops_after_some_seconds_and_goes_on_at_a_click(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_pages, "SECONDS", 0.0)
    monkeypatch.setattr(record_pages, "_BATCH_RECORDS", 700)
    path = "/d/plain/v1/records?count=200&where=" + quote("x == 1")
    text = client.shown(path)
    assert "found among the first 700" in text
    assert "4,300 records are not searched yet" not in text
    assert cards(text) == list(range(1, 401, 2))
    numbers: list[int] = []
    while path:
        text = client.shown(path)
        click = re.search(r'<a href="([^"]*)">Search on</a>', text)
        onward = re.search(r'<a rel="next" href="([^"]*)">', text)
        if not click:
            numbers += cards(text)
            path = html.unescape(onward[1]) if onward else ""
    assert numbers == list(range(1, 5000, 2))
    assert "2,500 found <small>of 5,000" in text
    assert "http-equiv" not in text


@pytest.mark.parametrize(
    "where",
    [
        "none == 1",
        "label",
        "label ==",
        "tokens == 1",
        "<script>alert(1)</script>",
        "label == 'x'",
        "time > 'x'",
        "(" * 5000,
        "label == " + "9" * 5000,
        "__import__('os')",
    ],
)
def test_what_is_no_condition_is_refused(client: Client, where: str) -> None:
    answer = client.get(f"/d/d/v1/records?where={quote(where)}")
    assert (answer.status, "<script>alert" in answer.text, "A bug" in answer.text) == (400, False, False), where


def test_all_records_of_a_list_are_shown_over_several_pages(client: Client) -> None:
    numbers = np.random.default_rng(0).integers(0, 5000, 256).tolist()
    path, found = f"/d/plain/v1/records?count=200&at={','.join(map(str, numbers))}", list[int]()
    while path:
        text = client.shown(path)
        found += cards(text)
        onward = re.search(r'<a rel="next" href="([^"]*)">', text)
        path = html.unescape(onward[1]) if onward else ""
    assert found == numbers
    assert "of 256" in text
