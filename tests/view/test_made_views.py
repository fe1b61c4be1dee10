"""The page of the order for views, weighted samples and buckets, as they are written in a program."""

from __future__ import annotations

import json
import re
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np
import pytest
from view_client import Client, serving

import cachelayer
from cachelayer import Buckets
from cachelayer.view import render
from cachelayer.view.made_views import MadeView, made_view, records_of_version

RECORDS = 120
SPEC = {
    "tokens": cachelayer.ArraySpec(np.int32, (None,)),
    "label": cachelayer.ArraySpec(np.int64),
    "weight": cachelayer.ArraySpec(np.float64),
}
VIEWS: dict[str, Callable[[Any], Any]] = {
    "": lambda ref: ref,
    "[10:100:3]": lambda ref: ref[10:100:3],
    "[20::100000000000000000000]": lambda ref: ref[20:21],
    ".exclude([1, 2, 50])": lambda ref: ref.exclude([1, 2, 50]),
    ".select([5, 3, -1])[:2]": lambda ref: ref.select([5, 3, -1])[:2],
    '.split({"a": 0.75, "b": 0.25}, seed=1)["b"]': lambda ref: ref.split({"a": 0.75, "b": 0.25}, seed=1)["b"],
    '.windows("tokens", 8, stride=5, separator=0)': lambda ref: ref.windows("tokens", 8, stride=5, separator=0),
    '[5:90].packed("tokens", 32, seed=3)': lambda ref: ref[5:90].packed("tokens", 32, seed=3),
    '.padded({"tokens": 32}, value=-1)[3:]': lambda ref: ref.padded({"tokens": 32}, value=-1)[3:],
    '.fields("tokens", "label")': lambda ref: ref.fields("tokens", "label"),
    '.decoded(size=(8, 8))[:50]': lambda ref: ref[:50],
}  # fmt: skip
SAMPLES: dict[str, Callable[[Any], Any]] = {
    '.sample("weight", seed=4)': lambda ref: ref.sample("weight", seed=4),
    '[:60].sample("balanced:label", seed=5)': lambda ref: ref[:60].sample("balanced:label", seed=5),
}  # fmt: skip


# Python refuses to write such an integer in decimal.
HUGE = [
    "HUGE",
    "(HUGE, [8])",
    "('tokens', HUGE)",
    ".select([-HUGE])",
    ".exclude(HUGE)",
    ".windows(HUGE, 8)",
    ".padded({HUGE: 8})",
    ".fields(HUGE)",
    ".split({'a': HUGE}, seed=1)['a']",
]


def row(number: int) -> dict[str, Any]:
    return {
        "tokens": np.arange(number, number + 1 + number % 30, dtype=np.int32),
        "label": number % 3,
        "weight": float(number % 7),
    }


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> cachelayer.Storage:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    storage.submit(map(row, range(RECORDS)), "d@v1", element_spec=SPEC)
    storage.derive("d", "v1", "fewer", exclude=[0, 7, 50])
    return storage


@pytest.fixture(scope="module")
def client(storage: cachelayer.Storage) -> Iterator[Client]:
    with serving(storage) as client:
        yield client


def shown(client: Client, version: str = "v1", status: int = 200, **query: Any) -> str:
    answer = client.get(f"/d/d/{version}/order?{urlencode(query)}")
    assert answer.status == status, answer.text
    return answer.text


def cards(text: str) -> list[int]:
    """The numbers of the elements that are drawn, of the view or the version."""
    found = re.findall(r'<h3>(?:<a href="[^"]*">)?([\d,]+)', text)
    return [int(number.replace(",", "")) for number in found]


def origins(text: str) -> list[list[int]]:
    """The records of the version that each element is made of."""
    return [list(map(int, re.findall(r"/records/(\d+)", heading))) for heading in re.findall(r"<h3>.*?</h3>", text)]


def state_of(stream: Any, steps: int) -> str:
    iterator = iter(stream)
    for _ in range(steps):
        next(iterator)
    return json.dumps(iterator.get_state())


@pytest.mark.parametrize("view", VIEWS)
def test_the_order_page_shows_the_batches_of_a_view(client: Client, storage: cachelayer.Storage, view: str) -> None:
    for version in ("v1", "fewer"):
        made = VIEWS[view](storage.fetch("d", version))
        stream = made.stream(6, shuffle=True, seed=3, num_epochs=None)
        text = shown(client, version, batch=6, seed=3, step=4, view=f"ref{view}")
        assert cards(text) == stream.records(4).tolist()
        assert (
            cards(shown(client, version, batch=6, view=view, state=state_of(stream, 2))) == stream.records(2).tolist()
        )


def test_each_element_of_a_view_names_the_records_of_the_version_that_it_is_made_of(
    client: Client, storage: cachelayer.Storage
) -> None:
    ref = storage.fetch("d@fewer")
    for view in ("[10:100:3]", '.padded({"tokens": 32}, value=-1)[3:]', ".exclude([1, 2, 50])"):
        made = VIEWS[view](ref)
        text = shown(client, "fewer", batch=6, seed=3, view=view)
        expected = [int(made[number]["tokens"][0]) for number in cards(text)]
        assert [int(ref[one]["tokens"][0]) for (one,) in origins(text)] == expected
    windows = ref[5:90].windows("tokens", 8)
    text = shown(client, "fewer", batch=6, shuffle="none", view='[5:90].windows("tokens", 8)')
    for number, found in zip(cards(text), origins(text), strict=True):
        assert found == [piece.record + 5 for piece in windows.document(number)][:4]
    packs = ref[5:90].packed("tokens", 200)
    text = shown(client, "fewer", batch=3, shuffle="none", view='[5:90].packed("tokens", 200)[1:]')
    for number, found, heading in zip(cards(text), origins(text), re.findall(r"<h3>.*?</h3>", text), strict=True):
        documents = sorted({piece.record + 5 for piece in packs[1:].document(number)})
        assert (found, f"and {len(documents) - 4} more" in heading) == (documents[:4], len(documents) > 4)


@pytest.mark.parametrize("view", SAMPLES)
def test_the_order_page_shows_what_a_weighted_sample_draws(
    client: Client, storage: cachelayer.Storage, view: str
) -> None:
    stream = SAMPLES[view](storage.fetch("d@v1")).stream(10)
    assert cards(shown(client, batch=10, step=7, view=view)) == stream.records(7).tolist()
    state = state_of(stream, 5)
    text = shown(client, batch=10, view=view, state=state)
    assert cards(text) == stream.records(5).tolist()
    assert "stands at draw 50" in text
    assert "weighted sample" in shown(client, batch=10, state=state, status=400)
    other = view.replace("seed=", "seed=1")
    assert "seed is" in shown(client, batch=10, view=other, state=state, status=400)


def test_the_order_page_shows_batches_of_buckets_also_those_of_a_state_alone(
    client: Client, storage: cachelayer.Storage
) -> None:
    buckets = Buckets("tokens", [10, 20], long="truncate")
    stream = storage.fetch("d@v1").stream(8, shuffle=True, seed=2, num_epochs=None, buckets=buckets)
    for text in (
        '("tokens", [10, 20])',
        'Buckets("tokens", bounds=[10, 20], value=-1)',
        'cachelayer.Buckets("tokens", [10, 20])',
    ):
        for step in range(0, 20, 7):
            page = shown(client, batch=8, seed=2, step=step, buckets=text)
            assert cards(page) == stream.records(step).tolist()
            bound = 10 if max(1 + number % 30 for number in cards(page)) <= 10 else 20
            assert f"from the bucket of lengths up to {bound}" in page
    page = shown(client, state=state_of(stream, 5))
    assert cards(page) == stream.records(5).tolist()
    assert 'name="batch" inputmode="numeric" value="8"' in page
    one = shown(client, state=state_of(stream, 5), shards=2, shard=1)
    assert cards(one) == cards(page)[4:]
    shown(client, batch=8, shuffle="blocks", buckets='("tokens", [10, 20])', status=400)
    for wrong in (
        3,
        {"leaves": "tokens"},
        {"leaves": 3, "bounds": [1], "global_batch_size": 8},
        {"leaves": ["tokens"], "bounds": [1], "global_batch_size": "<b>"},
    ):
        shown(client, state=json.dumps({"order": {"buckets": wrong}}), status=400)


@pytest.mark.parametrize(
    "text",
    [
        "__class__",
        ".__class__",
        ".__reduce__()",
        ".mirror()",
        ".stream(8)",
        "[0]",
        "[:1][0]",
        ".windows",
        ".windows(tokens, 8)",
        ".windows(*['tokens', 8])",
        ".windows(**{'leaf': 'tokens'})",
        ".windows('tokens', 9**9**9)",
        *(text.replace("HUGE", "0x" + "f" * 3900) for text in HUGE),
        ".windows('tokens')",
        ".windows('tokens', 8).windows('tokens', 8)",
        ".select(open('/etc/passwd'))",
        ".split({'a': 1.0}, seed=1)",
        ".split({'a': 1.0}, seed=1)['b']",
        ".sample('weight', seed=1)[:3]",
        "[:0]",
        " or 1",
        "(" * 300,
        "[" + "-" * 3000 + "1:]",
        "[:]" * 100,
        "x" * 5000,
        "\x00",
        "<script>alert(1)</script>",
    ],
)
def test_a_text_that_is_no_view_is_refused_and_nothing_of_it_runs(client: Client, text: str) -> None:
    for name in ("view", "buckets"):
        answer = shown(client, status=400, **{name: text})
        assert "<script>alert" not in answer
        assert "A bug" not in answer


def test_the_state_of_a_view_asks_for_the_view(client: Client, storage: cachelayer.Storage) -> None:
    state = state_of(storage.fetch("d@v1")[:50].stream(8, shuffle=True, seed=1), 1)
    assert "enter the view" in shown(client, state=state, status=400)


def test_a_look_at_a_view_writes_nothing_beside_the_version(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.submit(map(row, range(RECORDS)), "d@v1", element_spec=SPEC)
    before = sorted(tmp_path.rglob("*"))
    with serving(storage) as client:
        shown(client, view='.packed("tokens", 32)')
        shown(client, view='.sample("weight", seed=1)')
    assert sorted(tmp_path.rglob("*")) == before


def test_a_view_that_two_requests_ask_for_at_once_is_made_once(
    storage: cachelayer.Storage, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, made = threading.Barrier(2), []

    def slow(*arguments: Any) -> MadeView:
        made.append(arguments)
        with suppress(threading.BrokenBarrierError):
            both.wait(0.2)
        return made_view(*arguments)

    monkeypatch.setattr(render, "made_view", slow)
    views, ref = render.Shelf(storage), storage.fetch("d@v1")
    with ThreadPoolExecutor(2) as threads:
        one, other = threads.map(lambda text: views.made_view(ref, text, ""), 2 * ['.packed("tokens", 32)'])
    assert (one is other, len(made)) == (True, 1)


def test_a_view_that_was_refused_is_tried_again(storage: cachelayer.Storage, monkeypatch: pytest.MonkeyPatch) -> None:
    views, ref = render.Shelf(storage), storage.fetch("d@v1")
    with monkeypatch.context() as patch:
        patch.setattr(render, "made_view", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            views.made_view(ref, "[:3]", "")
    assert len(views.made_view(ref, "[:3]", "").view) == 3


def test_long_windows_and_packs_take_no_memory_for_the_names_of_all_their_records(tmp_path: Path) -> None:
    length, elements = 8000, 96
    tokens = ({"tokens": np.array([number], np.int32)} for number in range(length + elements))
    storage = cachelayer.Storage(tmp_path)
    ref = storage.submit(tokens, "d@v1", element_spec={"tokens": SPEC["tokens"]})
    for view in (ref.windows("tokens", length, stride=1), ref.packed("tokens", length)):
        numbers = range(len(view))[:elements]
        first = records_of_version(ref, view, numbers)[0]
        documents = sorted({piece.record for piece in view.document(0)})
        assert (first.first, first.count) == (documents[:4], len(documents))
        tracemalloc.start()
        records_of_version(ref, view, numbers)
        most = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert most < 2 << 20
