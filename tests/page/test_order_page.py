"""The page of the order: the records of a step, sorted so that what is alike stands together, and states."""

import json
import re
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
from view_client import Client, cards

import cachelayer
from cachelayer.page.order_page import MOST_SORTED, PAGE
from cachelayer.streams.schedule import REMAINDERS

CLASSES = ["cat", "dog", "<b>emu</b>"]
RECORDS = 5000


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.Storage:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    numbers = np.arange(RECORDS)
    columns = {"label": numbers % 4, "meta": {"score": np.where(numbers % 7, numbers / 3, np.nan)}, "x": numbers}
    storage.submit(columns, "pets@v1", metadata={"classes": CLASSES})
    spec = {"x": cachelayer.ArraySpec("int64", nullable=True)}
    storage.submit([{"x": None if n % 3 else n % 5} for n in range(12)], "nulls@v1", element_spec=spec)
    return storage


def shown(client: Client, query: str) -> str:
    return client.shown(f"/d/pets/v1/order?{query}")


def headings(text: str) -> list[str]:
    return re.findall(r'<h2 class="group">(.*?) <small>', text)


def test_without_a_shard_the_whole_batch_is_shown_over_several_pages(
    client: Client, storage: cachelayer.Storage
) -> None:
    expected = storage.fetch("pets@v1").stream(250, shuffle=True, seed=5, num_epochs=None).record_numbers(3).tolist()
    found: list[int] = []
    for first in range(0, 250, PAGE):
        text = shown(client, f"batch=250&seed=5&step=3&shards=5&from={first}")
        found += cards(text)
        after = re.search(rf'order\?[^"]*from={first + PAGE}">more of this batch, after', text)
        assert (after is not None) == (first + PAGE < 250)
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
    assert headings(shown(client, f"batch=400&shuffle=none&by=label&from={PAGE}")) == ["label 0 cat", "label 1 dog"]
    assert "by=label" in text[text.index("step before") - 400 : text.index("step after")]


def test_numbers_are_sorted_without_groups_and_nan_and_null_come_last(client: Client) -> None:
    text = shown(client, "batch=96&shuffle=none&by=meta/score")
    assert headings(text) == []
    assert cards(text) == [number for number in range(96) if number % 7] + list(range(0, 96, 7))
    text = client.shown("/d/nulls/v1/order?batch=12&shuffle=none&by=x")
    assert cards(text) == [0, 6, 3, 9, 1, 2, 4, 5, 7, 8, 10, 11]


def test_what_cannot_be_sorted_is_said(client: Client) -> None:
    answer = client.get("/d/pets/v1/order?by=none")
    assert (answer.status, "label, meta/score, x" in answer.text) == (400, True)
    assert "not sorted: more than" in shown(client, f"batch={MOST_SORTED + 1}&by=label")


@pytest.mark.filterwarnings("ignore:2 shards share one lane")  # said of the stream here, not of the page
@pytest.mark.parametrize(("shuffle", "option"), [("exact", True), ("none", False), ("blocks", "blocks")])
def test_a_shard_is_shown_the_records_of_its_stream(
    client: Client, storage: cachelayer.Storage, shuffle: str, option: bool | str
) -> None:
    for shard in range(2):
        text = shown(client, f"batch=8&seed=5&shuffle={shuffle}&shards=2&shard={shard}&step=700")
        stream = storage.fetch("pets@v1").stream(8, shuffle=option, seed=5, num_epochs=None, shard=(shard, 2))
        assert cards(text) == stream.record_numbers(700).tolist()
        # The 75th step of the second epoch.
        assert "epoch 1, from record 600 of its order" in text
    last = f"/d/pets/v1/order?batch=4096&shards=1024&shard=1023&shuffle={shuffle}&step="
    client.shown(f"{last}{2**62 // 4096 // 10}")
    assert "largest position" in client.shown(f"{last}{2**62 - 1}", 404)


def test_a_state_shows_where_it_stands_and_what_comes_next(client: Client, storage: cachelayer.Storage) -> None:
    ref = storage.fetch("pets@v1")
    for shuffle in (True, "blocks"):
        stream = ref.stream(8, shuffle=shuffle, seed=9, num_epochs=None)
        iterator = iter(stream)
        for _ in range(3):
            next(iterator)
        state = iterator.get_state()
        text = shown(client, f"batch=8&state={quote(json.dumps(state))}")
        assert "position 24" in text
        assert cards(text) == stream.record_numbers(3).tolist()


@pytest.mark.parametrize("remainder", sorted(REMAINDERS))
def test_a_state_shows_the_batches_that_its_iterator_hands_out(
    client: Client, storage: cachelayer.Storage, remainder: Any
) -> None:
    if "v2" not in storage.versions("pets"):
        more = {"label": np.arange(130), "meta": {"score": np.zeros(130)}, "x": np.arange(RECORDS, RECORDS + 130)}
        storage.append("pets@v1", "v2", more)
    old, new = storage.fetch("pets@v1"), storage.fetch("pets@v2")
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "num_epochs": None, "remainder": remainder}
    left_out = iter(old.stream(64, **options).without(steps=[4, 5, 80]))
    advanced = iter(old.stream(64, **options).without(steps=[2]))
    for iterator in (left_out, advanced):
        for _ in range(3):
            next(iterator)
    advanced.advance_to(new)
    for version, iterator in (("v1", left_out), ("v2", advanced)):
        query = f"batch=64&remainder={remainder}&state={quote(json.dumps(iterator.get_state()))}"
        for step in range(85):
            batch = next(iterator)
            if step in (0, 1, 2, 70, 74, 75, 76, 77, 84):
                numbers = (batch[0] if remainder == "pad" else batch)["x"].tolist()
                text = client.shown(f"/d/pets/{version}/order?{query}&step={step}")
                assert cards(text) == numbers
                assert ("rows are padding" in text) == (remainder == "pad" and not batch[1].all())
    text = client.shown(f"/d/pets/v2/order?{query}&step=75")
    assert "the appended records, before epoch" in text
    plain = shown(client, f"batch=64&remainder={remainder}&seed=3&step=78")
    assert cards(plain) == old.stream(64, **options).record_numbers(78).tolist()


@pytest.mark.parametrize(
    "calls",
    [
        "[1000:4000:3]",
        ".where('meta.score > 100 / 3')",
        ".split({'train': 0.9, 'val': 0.1}, seed=3)['val']",
        ".select([7, 3, 3, 4990])",
    ],
)
def test_a_view_shows_numbers_of_the_version_with_its_own_beside_them(
    client: Client, storage: cachelayer.Storage, calls: str
) -> None:
    if "kept" not in storage.versions("pets"):
        storage.derive("pets@v1", new="kept", exclude=[0, 5, 1007])
    for version in ("v1", "kept"):
        view = storage.fetch(f"pets@{version}{calls}")
        whole = storage.fetch(f"pets@{version}")
        stream = view.stream(4, shuffle=True, seed=2, num_epochs=None)
        iterator = iter(stream)
        next(iterator)
        state = quote(json.dumps(iterator.get_state()))
        base = f"/d/pets/{quote(version + calls.replace('/', '%2F'))}"
        text = client.shown(f"{base}/order?batch=4&step=1&state={state}")
        numbers = stream.record_numbers(2).tolist()
        expected = [span.record for number in numbers for span in view.sources(number)]
        own = cards(text)
        assert [whole.sources(number)[0].record for number in own] == expected
        assert [whole[number]["x"] for number in own] == [view[number]["x"] for number in numbers]
        assert [f">{number:,} of the view<" in text for number in numbers] == [True] * len(numbers)
        found = cards(client.shown(f"{base}/records?at={','.join(map(str, numbers))}"))
        assert found == own
        assert f'/d/pets/{version}/records/{own[0]}"' in client.shown(f"{base}/records/{numbers[0]}")
        assert f"{len(view):,} of 5,000 in the shards" in client.shown(base)
        client.shown(f"{base}/statistics")


def test_what_is_made_of_records_has_no_page(client: Client) -> None:
    assert "as they are stored" in client.shown(f"/d/pets/{quote('v1.fields(' + repr('x') + ')')}", 400)


def test_a_state_of_buckets_shows_them(client: Client, storage: cachelayer.Storage) -> None:
    rows = [{"t": np.zeros(1 + n % 50, np.int32)} for n in range(200)]
    ref = storage.submit(rows, "long@v1", element_spec={"t": cachelayer.ArraySpec("int32", (None,))})
    stream = ref.stream(16, shuffle=True, seed=1, buckets=("t", [20, 50]), num_epochs=None)
    iterator = iter(stream)
    next(iterator)
    text = client.shown(f"/d/long/v1/order?batch=16&step=4&state={quote(json.dumps(iterator.get_state()))}")
    assert cards(text) == stream.record_numbers(5).tolist()


def test_what_is_no_state_is_refused(client: Client, storage: cachelayer.Storage) -> None:
    ref = storage.fetch("pets@v1")
    state = iter(ref.stream(8, shuffle="blocks", seed=9, num_epochs=None)).get_state()
    in_mixture = iter(cachelayer.mix([(ref, 1), (ref[:9], 2)]).stream(8, shuffle="blocks", seed=9)).get_state()
    for other in (
        {**state, "digest": "0" * 64},
        {**state, "order": {**state["order"], "seed": "<b>"}},
        {**state, "order": {**state["order"], "blocks": 3}},
        in_mixture,
        [1],
        {"order": {"weights": 1}},
    ):
        assert "records?at=" in client.shown(f"/d/pets/v1/order?batch=8&state={quote(json.dumps(other))}", 400)
    for wrong, said in {
        "state=%7B": "not JSON",
        "batch=7&shards=2": "",
        "remainder=some": "drop, keep, pad, wrap",
        "batch=99999999999": "",
    }.items():
        assert said in client.shown(f"/d/pets/v1/order?{wrong}", 400)
