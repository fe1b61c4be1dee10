"""The page of the order: the whole batch, sorted so that what is alike stands together."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from view_client import Client, cards, serving

import cachelayer
from cachelayer.view.order_page import MOST_SORTED, PAGE

CLASSES = ["cat", "dog", "<b>emu</b>"]
RECORDS = 5000


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.Storage:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    numbers = np.arange(RECORDS)
    columns = {"label": numbers % 4, "meta": {"score": np.where(numbers % 7, numbers / 3, np.nan)}, "x": numbers}
    storage.submit(columns, "pets@v1", metadata={"classes": CLASSES})
    spec = (cachelayer.ArraySpec("int64", nullable=True), cachelayer.ArraySpec(str))
    storage.submit(
        [(None if number % 3 else number % 5, f"{number % 2} <i>") for number in range(50)],
        "pairs@v1",
        element_spec=spec,
    )
    return storage


@pytest.fixture(scope="module")
def client(storage: cachelayer.Storage) -> Iterator[Client]:
    with serving(storage) as client:
        yield client


def shown(client: Client, query: str, dataset: str = "pets") -> str:
    return client.shown(f"/d/{dataset}/v1/order?{query}")


def headings(text: str) -> list[str]:
    return re.findall(r'<h2 class="group">(.*?) <small>', text)


def test_without_a_shard_the_whole_batch_is_shown_over_several_pages(
    client: Client, storage: cachelayer.Storage
) -> None:
    expected = storage.fetch("pets@v1").stream(250, shuffle=True, seed=5, num_epochs=None).records(3).tolist()
    found: list[int] = []
    for first in range(0, 250, PAGE):
        text = shown(client, f"batch=250&seed=5&step=3&shards=5&from={first}")
        found += cards(text)
        assert ("more of this batch, after" in text) == (first + PAGE < 250)
        assert ("more of this batch, before" in text) == (first > 0)
    assert found == expected
    of_one = cards(shown(client, "batch=250&seed=5&step=3&shards=5&shard=1"))
    assert of_one == expected[50:100]
    assert "has no record 4,000" in shown(client, "batch=250&from=4000")


def test_a_batch_is_sorted_by_a_label_into_groups_with_class_names(client: Client) -> None:
    text = shown(client, "batch=80&seed=1&step=2&by=label")
    assert headings(text) == ["label 0 cat", "label 1 dog", "label 2 &lt;b&gt;emu&lt;/b&gt;", "label 3"]
    labels = [number % 4 for number in cards(text)]
    assert labels == sorted(labels)
    assert sorted(cards(text)) == sorted(cards(shown(client, "batch=80&seed=1&step=2")))
    assert "by=label" in text[text.index("step before") - 400 : text.index("step after")]


def test_numbers_are_sorted_without_groups_and_nan_comes_last(client: Client) -> None:
    text = shown(client, "batch=96&shuffle=none&by=meta/score")
    assert headings(text) == []
    assert cards(text) == [number for number in range(96) if number % 7] + list(range(0, 96, 7))


def test_what_cannot_be_sorted_is_said(client: Client) -> None:
    answer = client.get("/d/pets/v1/order?by=none")
    assert (answer.status, "label, meta/score, x" in answer.text) == (400, True)
    assert "not sorted: more than" in shown(client, f"batch={MOST_SORTED + 1}&by=label")


def test_a_damaged_record_leaves_the_batch_unsorted_and_shown(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit([{"x": number, "y": bytes(3000)} for number in range(40)], "d@v1", shard_bytes=40_000)
    with serving(cachelayer.Storage(tmp_path, verify="always")) as client:
        sorted(tmp_path.rglob("*.array_record"))[0].write_bytes(b"damaged")
        text = client.get("/d/d/v1/order?batch=40&shuffle=none&by=x").text
        assert "not sorted:" in text
        assert cards(text) == list(range(40))
