"""Iterators that advance to a version with more records in mid-run."""

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import Blocks, InvalidArgumentError, InvalidTypeError, StateError
from cachelayer.streams.continuing import restore_reader
from cachelayer.streams.order.mixture import seed_of_part
from cachelayer.streams.stream import Stream, stream_of

OLD, NEW, NEWER = 40, 13, 22
ORDERS: dict[str, dict[str, Any]] = {
    "in order": {},
    "shuffled": {"shuffle": True, "seed": 3},
    "in blocks": {"shuffle": Blocks(4, 16, 8), "seed": 3},
}


@pytest.fixture(scope="module")
def refs(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    storage.submit(list(range(OLD)), "d@v1", shard_bytes=400)
    storage.append("d@v1", "v2", list(range(OLD, OLD + NEW)))
    storage.append("d@v2", "v3", list(range(OLD + NEW, OLD + NEW + NEWER)))
    return [storage.fetch(f"d@{version}") for version in ("v1", "v2", "v3")]


def advanced(iterators: list[Any], newer: Any) -> None:
    for iterator in iterators:
        iterator.advance_to(newer)


def continued(stream: Any, state: Any) -> Stream[Any]:
    """The stream whose step 0 is the one after a state."""
    reader, position = restore_reader(stream._reader, state)
    return stream_of(reader.starting_at(position))


def following(iterators: list[Any]) -> list[int] | None:
    """The next global batch; None at the end."""
    parts = [next(iterator, None) for iterator in iterators]
    if parts[0] is None:
        assert parts == [None] * len(parts)
        return None
    return [row for part in parts for row in part.tolist()]


def every(iterators: list[Any]) -> list[list[int]]:
    found = []
    while (batch := following(iterators)) is not None:
        found.append(batch)
    return found


@pytest.mark.parametrize("remainder", ["keep", "wrap"])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("steps", [0, 2, 5, 7, 10])
def test_the_epoch_ends_then_the_new_records_come_once_and_then_all(
    refs: list[Any], order: str, remainder: Any, steps: int
) -> None:
    def iterators(ref: Any, shards: int) -> list[Any]:
        options = {**ORDERS[order], "num_epochs": 3, "remainder": remainder}
        return [iter(ref.stream(8, shard=(shard, shards), **options)) for shard in range(shards)]

    alone = iterators(refs[0], 1)
    begun = [following(alone) for _ in range(steps)]
    under_way = max(1, -(-8 * steps // OLD))
    advanced(alone, refs[1])
    rest = every(alone)
    seen = [row for batch in [*begun, *rest] for row in batch]
    plain = [row for batch in every(iterators(refs[0], 1)) for row in batch]
    assert seen[: under_way * OLD] == plain[: under_way * OLD]
    after = seen[under_way * OLD :]
    assert sorted(after[:NEW]) == list(range(OLD, OLD + NEW))
    for first in range(NEW, NEW + (3 - under_way) * (OLD + NEW), OLD + NEW):
        assert sorted(after[first : first + OLD + NEW]) == list(range(OLD + NEW))
    whole = under_way * OLD + NEW + (3 - under_way) * (OLD + NEW)
    assert len(seen) == whole + (-whole % 8 if remainder == "wrap" else 0)

    # The same on any shards, and after a restore at any step, over the newer version.
    for shards in (1, 2, 4):
        several = iterators(refs[0], shards)
        assert [following(several) for _ in range(steps)] == begun
        advanced(several, refs[1])
        for step in range(len(rest) + 1):
            state = json.dumps(several[0].get_state())
            assert {json.dumps(iterator.get_state()) for iterator in several} == {state}
            if step % 5 == 0:
                restored = iterators(refs[1], 4 // shards)
                for iterator in restored:
                    iterator.set_state(state)
                assert every(restored) == rest[step:]
            following(several)


def test_an_iterator_advances_again_and_again(refs: list[Any]) -> None:
    iterator = iter(refs[0].stream(7, shuffle=True, seed=1, num_epochs=2))
    seen = [next(iterator).tolist() for _ in range(2)]
    advanced([iterator], refs[1])
    # Within the old records, within the new ones, and within all.
    for more in (0, 5, 8):
        other = pickle.loads(pickle.dumps(iterator))
        parts = [[row for batch in seen for row in batch]]
        parts.append([row for _ in range(more) for row in next(other).tolist()])
        other.advance_to(refs[2])
        parts.append([row for batch in other for row in batch.tolist()])
        rows = [row for part in parts for row in part]
        assert sorted(rows[:OLD]) == list(range(OLD))
        counts = [rows.count(record) for record in range(OLD + NEW + NEWER)]
        assert set(counts[OLD + NEW :]) == {1 if more == 8 else 2}
        assert set(counts[:OLD]) == {2}


def test_it_goes_on_after_the_end_and_to_the_same_version(refs: list[Any]) -> None:
    iterator = iter(refs[0].stream(8))
    assert len(list(iterator)) == 5
    iterator.advance_to(refs[1])
    assert [batch.tolist() for batch in iterator] == [list(range(40, 48)), list(range(48, 53))]
    state = iterator.get_state()
    iterator.advance_to(refs[1])
    assert iterator.get_state() == state


def test_steps_that_are_left_out_stay_so(refs: list[Any]) -> None:
    stream = refs[0].stream(8, shuffle=True, seed=1)
    gone = stream.record_numbers(3).tolist()
    iterator = iter(stream.without(steps=[3]))
    next(iterator)
    iterator.advance_to(refs[1])
    rows = [*stream[0].tolist(), *(row for batch in iterator for row in batch.tolist())]
    assert sorted(rows) == sorted(set(range(OLD + NEW)) - set(gone))


@pytest.mark.parametrize("remainder", ["keep", "drop", "wrap", "pad"])
@pytest.mark.parametrize("order", ORDERS)
def test_a_stream_goes_on_from_any_state_and_knows_its_steps_by_number(
    refs: list[Any], order: str, remainder: Any
) -> None:
    options = {**ORDERS[order], "num_epochs": None, "remainder": remainder}
    for before in (0, 3, 12):
        plain = [ref.stream(6, **options) for ref in refs]
        iterator = iter(plain[0].without(steps=[before + 1, before + 8]))
        for _ in range(before):
            next(iterator)
        for stream, newer in zip(plain, (None, refs[1], refs[2]), strict=True):
            if newer is not None:
                iterator.advance_to(newer)
            state = iterator.get_state()
            going_on = continued(stream, state)
            read = [next(iterator) for _ in range(40)]
            numbers = [batch[0][batch[1]] if remainder == "pad" else batch for batch in read]
            for step, expected in enumerate(numbers):
                assert going_on.record_numbers(step)[: len(expected)].tolist() == expected.tolist()
            iterator.set_state(state)
            next(iterator)


def test_functions_and_their_random_numbers_go_on(refs: list[Any]) -> None:
    def drawn(element: Any, rng: Any) -> Any:
        return int(element) * 1000 + int(rng.integers(1000))

    old, newer = (iter(ref.stream(8, shuffle=True, seed=1).map(drawn, rng=True)) for ref in refs[:2])
    old.advance_to(refs[1])
    newer.set_state(old.get_state())
    assert [batch.tolist() for batch in newer] == [batch.tolist() for batch in old]


def test_anything_else_is_refused(refs: list[Any], tmp_path: Path) -> None:
    old, newer, _ = refs
    storage, options = cachelayer.Storage(tmp_path), {"shuffle": True, "seed": 1}
    other = storage.submit(list(range(1, 90)), "d@v1")
    erased = storage.submit(list(range(OLD)), "e@v1", shard_bytes=400)
    for stream, after in [
        (old.stream(8, **options), other),
        (newer.stream(8, **options), old),
        (old[:20].stream(8, **options), newer),
        (old.stream(8, **options), newer[::-1]),
        (cachelayer.concat([old, old]).stream(8, **options), cachelayer.concat([newer, newer])),
        (newer.stream(8, **options), erased),
        (old.sample([1.0] * OLD, seed=1).stream(8), newer),
    ]:
        iterator = iter(stream)
        state = iterator.get_state()
        with pytest.raises(InvalidArgumentError):
            iterator.advance_to(after)
        assert iterator.get_state() == state
    with pytest.raises(InvalidTypeError, match="DataRef"):
        iter(old.stream(8)).advance_to("d@v2")


# Mixtures.


def mixed(weights: Any, datasets: Any, **options: Any) -> Any:
    return cachelayer.mix(list(zip(datasets, weights, strict=True)), **options)


@pytest.fixture(scope="module")
def others(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("others"))
    return [storage.submit(list(range(first, first + 25)), f"o{first}@v1") for first in (1000, 2000)]


def of_datasets(rows: list[int]) -> list[list[int]]:
    """The rows of each dataset of a mixture."""
    return [[row for row in rows if row // 1000 == number] for number in range(3)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("steps", [0, 2, 7, 23])
def test_every_part_of_a_mixture_goes_on_as_a_stream_of_its_own(
    refs: list[Any], others: list[Any], order: str, steps: int
) -> None:
    """A part grows twice, another comes later, and a third ends: each has all of its records exactly as often."""
    mixtures = [
        mixed((2, 1), (refs[0], others[0])),
        mixed((2, 1, 3), (refs[1], *others)),
        mixed((4, 0, 1), (refs[2], *others)),
    ]

    def iterators(mixture: Any, shards: int) -> list[Any]:
        return [iter(mixture.stream(8, shard=(shard, shards), **ORDERS[order])) for shard in range(shards)]

    alone = iterators(mixtures[0], 1)
    batches = [following(alone) for _ in range(steps)]
    states = []
    for newer in mixtures[1:]:
        advanced(alone, newer)
        states.append((len(batches), json.dumps(alone[0].get_state())))
        batches += [following(alone) for _ in range(30)]
        states.append((len(batches), json.dumps(alone[0].get_state())))
    batches += [following(alone) for _ in range(10)]
    rows = [row for batch in batches for row in batch or []]
    grown, second, third = of_datasets(rows)
    # Each dataset has had its shares.
    for begin, weights in ((0, (2, 1, 0)), (steps, (2, 1, 3)), (steps + 30, (4, 0, 1))):
        end = steps if begin == 0 else begin + 30
        counts = [len(of) for of in of_datasets([row for batch in batches[begin:end] for row in batch or []])]
        expected = np.array(weights) * (end - begin) * 8 / sum(weights)
        assert np.abs(counts - expected).max() <= 2
    # The records that were there first come at most once more often than those that came later.
    for records, of in ((range(1000, 1025), second), (range(2000, 2025), third)):
        counts = [of.count(record) for record in records]
        assert max(counts) - min(counts) <= 1
    if order != "in blocks":  # which arranges the rows of a step
        turns = [
            len(of_datasets([row for batch in batches[:count] for row in batch or []])[0])
            for count in (steps, steps + 30)
        ]
        iterator = iter(refs[0].stream(1, num_epochs=None, **part_seed(ORDERS[order])))
        plain: list[int] = []
        for count, newer in zip((*turns, len(grown)), (*refs[1:], None), strict=True):
            plain += [int(next(iterator)[0]) for _ in range(count - len(plain))]
            if newer is not None:
                iterator.advance_to(newer)
        assert grown == plain

    # The same on any shards, from any state, over the newer mixture.
    for shards in (1, 2, 4):
        for (count, state), newer in zip(states, (mixtures[1], mixtures[1], *mixtures[2:] * 2), strict=True):
            restored = iterators(newer, shards)
            for iterator in restored:
                iterator.set_state(state)
                assert iterator.get_state() == json.loads(state)
            more = len(batches) - count if newer is mixtures[2] else 30 - 30 * (count > steps)
            assert [following(restored) for _ in range(more)] == batches[count : count + more]


def part_seed(options: dict[str, Any]) -> dict[str, Any]:
    return {**options, "seed": seed_of_part(options["seed"], 0)} if options else options


def test_a_mixture_goes_on_over_shares_of_tokens_and_views_that_have_grown(texts: list[Any]) -> None:
    """Weights by the tokens of a dataset change as it grows: what came before stays as it was."""
    other = texts[0].fields("id", "tokens")
    mixtures = [mixed((1, 1), (ref.fields("id", "tokens"), other), by="tokens") for ref in texts[:2]]
    iterator = iter(mixtures[0].stream(4, shuffle=True, seed=1))
    for _ in range(5):
        next(iterator)
    iterator.advance_to(mixtures[1])
    restored = iter(mixtures[1].stream(4, shuffle=True, seed=1))
    restored.set_state(iterator.get_state())
    for _ in range(40):
        assert next(restored)["id"].tolist() == next(iterator)["id"].tolist()
    windows = iter(mixed((1,), (texts[0].windows("tokens", 7),)).stream(4, shuffle=True, seed=1))
    windows.advance_to(mixed((1,), (texts[1].windows("tokens", 7),)))
    assert windows.get_state()["order"]["advanced"]["segments"][0]


def test_later_weights_of_a_mixture_that_advanced_may_change(refs: list[Any], others: list[Any]) -> None:
    options: dict[str, Any] = {"shuffle": True, "seed": 1}
    iterator = iter(mixed((1, 0), (refs[0], others[0]), schedule={0: (1, 0), 100: (1, 1)}).stream(10, **options))
    next(iterator)
    newer = mixed((1, 3), (refs[1], others[0]))
    iterator.advance_to(newer)
    iterator.advance_to(newer)
    seen = [next(iterator).tolist() for _ in range(3)]
    assert sum(row >= 1000 for batch in seen for row in batch) in (22, 23)
    later = mixed((1, 3), (refs[1], others[0]), schedule={0: (1, 3), 40: (1, 0)})
    other = iter(later.stream(10, **options))
    other.set_state(iterator.get_state())
    assert max(row for _ in range(5) for row in next(other).tolist()) < 1000
    # The weights that counted before the state are compared, also if they came with the newer mixture.
    with pytest.raises(StateError, match="mixture before position 40"):
        iter(mixed((1, 2), (refs[1], others[0])).stream(10, **options)).set_state(iterator.get_state())
    # A mixture of other weights alone is a newer one too.
    iterator.advance_to(mixed((0, 1), (refs[1], others[0])))
    assert min(row for _ in range(5) for row in next(iterator).tolist()) >= 1000


def test_what_a_mixture_cannot_go_on_over_is_refused_by_name(refs: list[Any], others: list[Any]) -> None:
    stream = mixed((1, 1), (refs[0], others[0])).stream(4, shuffle=True, seed=1)
    iterator = iter(stream)
    next(iterator)
    state = iterator.get_state()
    for newer, name in (
        (mixed((1,), (refs[1],)), "1 datasets, and this stream 2"),
        (mixed((1, 1), (others[0], refs[1])), "begin with the 40 elements"),
        (mixed((1, 1), (refs[1], others[1])), "begin with the 25 elements"),
        (mixed((1, 1), (refs[1], others[0]), stop="all"), "stop="),
    ):
        with pytest.raises(InvalidArgumentError, match=name):
            iterator.advance_to(newer)
        assert iterator.get_state() == state
    with pytest.raises(InvalidTypeError, match="mixture"):
        iterator.advance_to(refs[1])
    with pytest.raises(InvalidTypeError, match="Mixture"):
        iter(refs[0].stream(4)).advance_to(mixed((1, 1), (refs[1], others[0])))
    grown = mixed((1, 1), (refs[1], others[0]))
    iterator.advance_to(grown)
    state = iterator.get_state()
    with pytest.raises(StateError, match="digest"):
        iter(stream).set_state(state)
    with pytest.raises(StateError, match="stop="):
        iter(mixed((1, 1), (refs[1], others[0]), stop="all").stream(4, shuffle=True, seed=1)).set_state(state)
    good = state["order"]["advanced"]
    segments = [[[*good["segments"][0][0][:4], "ab" * 32], good["segments"][0][1]], []]
    for damaged in (
        3,
        {},
        {**good, "position": -1},
        {**good, "position": "4"},
        {**good, "stages": [[0, [1]]]},
        {**good, "stages": [[0, [0, 0]]]},
        {**good, "stages": [[1, [1, 1]]]},
        {**good, "stages": [[0, [1, 1]], [4, [1, 1]]]},
        {**good, "stages": []},
        {**good, "segments": [good["segments"][0]]},
        {**good, "segments": [good["segments"][0][:1], []]},
        {**good, "segments": segments},
    ):
        with pytest.raises(StateError):
            iter(grown.stream(4, shuffle=True, seed=1)).set_state(
                {**state, "order": {**state["order"], "advanced": damaged}}
            )


def test_states_of_an_iterator_that_advanced_belong_to_the_newer_version(refs: list[Any]) -> None:
    iterator = iter(refs[0].stream(8, shuffle=True, seed=1))
    iterator.advance_to(refs[1])
    state = iterator.get_state()
    for stream in (refs[0].stream(8, shuffle=True, seed=1), refs[2].stream(8, shuffle=True, seed=1)):
        with pytest.raises(StateError, match="digest"):
            iter(stream).set_state(state)
    newer = refs[1].stream(8, shuffle=True, seed=1)
    with pytest.raises(StateError, match="epochs"):
        newer.epochs().set_state(state)
    forged = [[*state["segments"][0][:4], "ab" * 32], state["segments"][1]]
    with pytest.raises(StateError, match="begin"):
        iter(newer).set_state({**state, "segments": forged})
    for damaged in (3, [[1, 2]], [state["segments"][1]], [state["segments"][0]]):
        with pytest.raises(StateError):
            iter(newer).set_state({**state, "segments": damaged})


def test_blocks_of_default_sizes_go_on_in_their_sizes_though_appended_records_are_smaller(tmp_path: Path) -> None:
    storage, spec = cachelayer.Storage(tmp_path), cachelayer.ArraySpec(bytes)
    old: Any = storage.submit([bytes(30_000)] * 400, "d@v1", element_spec=spec, compression=None)
    new: Any = storage.append("d@v1", new="v2", source=[b"small"] * 1000)
    options: dict[str, Any] = {"shuffle": "blocks", "seed": 3, "num_epochs": 3}
    iterator = iter(old.stream(8, **options))
    iterator.advance_to(new)
    state, restored = iterator.get_state(), iter(new.stream(8, **options))
    assert state["order"]["blocks"] != restored.get_state()["order"]["blocks"]
    restored.set_state(json.dumps(state))
    assert restored.get_state() == state
    assert [len(batch) for batch in restored] == [len(batch) for batch in iterator]
    with pytest.raises(StateError, match="records of a block"):
        iter(new.stream(8, **{**options, "shuffle": Blocks(records=99)})).set_state(state)
    given = Blocks(**state["order"]["blocks"])
    iter(new.stream(8, **{**options, "shuffle": given})).set_state(state)


@pytest.mark.filterwarnings("ignore:.*equal records")
def test_default_sizes_do_not_depend_on_what_was_erased_before_records_were_appended(tmp_path: Path) -> None:
    def blocks(folder: Path, erased: list[int]) -> Any:
        storage, spec = cachelayer.Storage(folder), cachelayer.ArraySpec("uint8", (None,))
        rows = [{"x": np.zeros(3000, np.uint8)} for _ in range(500)]
        storage.submit(rows, "d@v1", element_spec={"x": spec}, compression=None, shard_bytes=1 << 18)
        storage.add_columns("d@v1", new="v2", columns={"more": np.ones((500, 900))})
        if erased:
            storage.erase("d@v2", records=erased, reason="asked to", progress=False)
        newer = storage.append("d@v2", new="v3", source=[{"x": np.zeros(2000, np.uint8), "more": np.ones(900)}] * 100)
        return iter(newer.stream(8, shuffle="blocks", seed=1)).get_state()["order"]["blocks"]

    assert blocks(tmp_path / "one", []) == blocks(tmp_path / "other", list(range(200)))


# Views.

TEXT = {"id": 0, "tokens": np.arange(0, dtype=np.uint16), "kind": "a"}
VIEWS: dict[str, Any] = {
    "fields": lambda ref: ref.fields("id", "kind"),
    "one field": lambda ref: ref.fields("id"),
    "padded": lambda ref: ref.padded({"tokens": 5}),
    "padded fields": lambda ref: ref.fields("tokens", "id").padded({"tokens": 5}),
    "part of a split": lambda ref: ref.split({"train": 0.7, "val": 0.3}, seed=1)["train"],
    "part of a split by": lambda ref: ref.split({"train": 0.7, "val": 0.3}, seed=1, by="kind")["train"],
    "part of a stratified split": lambda ref: ref.split({"train": 0.7, "val": 0.3}, seed=1, stratify="kind")["train"],
    "where": lambda ref: ref.where("id % 3 != 1"),
    "where all, and then not": lambda ref: ref.where("id != 45"),
    "every other": lambda ref: ref[1::2],
    "windows": lambda ref: ref.windows("tokens", 7),
    "windows that overlap": lambda ref: ref.windows("tokens", 7, stride=3, separator=9, segments=True, beside="id"),
    "windows of a split": lambda ref: ref.split({"train": 0.7, "val": 0.3}, seed=1)["train"].windows("tokens", 7),
    "windows from the fifth": lambda ref: ref.windows("tokens", 7)[5:],
    "packs": lambda ref: ref.packed("tokens", 7),
    "packs in another order": lambda ref: ref.packed("tokens", 7, long="drop", seed=4, segments=False, beside="id"),
    "packs of a split": lambda ref: ref.split({"train": 0.7, "val": 0.3}, seed=1)["train"].packed("tokens", 7),
    "packs of concat": lambda ref: ref.packed("tokens", 7),
    "fields of concat": lambda ref: ref.fields("id", "kind"),
    "windows of concat": lambda ref: ref.windows("tokens", 7),
    "split of concat": lambda ref: ref.split({"train": 0.7, "val": 0.3}, seed=1)["train"],
    "concat": lambda ref: ref,
}


def documents(begin: int, end: int) -> list[Any]:
    # 40 documents have 96 tokens, which windows of eight fill; 53 have 126.
    return [
        {**TEXT, "id": each, "kind": "abc"[each % 3], "tokens": np.full(each % 6, each, np.uint16)}
        for each in range(begin, end)
    ]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    storage = cachelayer.Storage(tmp_path_factory.mktemp("storage"))
    storage.submit(documents(0, OLD), "d@v1", shard_bytes=400)
    storage.append("d@v1", "v2", documents(OLD, OLD + NEW))
    storage.append("d@v2", "v3", documents(OLD + NEW, OLD + NEW + NEWER))
    return [storage.fetch(f"d@{version}") for version in ("v1", "v2", "v3")]


def listed(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: listed(values) for name, values in batch.items()}
    return batch.to_list() if hasattr(batch, "to_list") else np.asarray(batch).tolist()


@pytest.mark.parametrize("view", VIEWS)
def test_streams_of_views_go_on_over_the_same_view_of_newer_versions(texts: list[Any], view: str) -> None:
    # Before the version that grows lies another dataset.
    first = [texts[0][:9]] if "concat" in view else []
    old, new, newer = (VIEWS[view](cachelayer.concat([*first, ref]) if first else ref) for ref in texts)
    options: dict[str, Any] = {"shuffle": True, "seed": 3, "num_epochs": 2}
    stream = old.stream(4, **options)
    iterator = iter(stream)
    begun = next(iterator)
    before = iterator.get_state()
    iterator.advance_to(new)
    numbers = [continued(new.stream(4, **options), iterator.get_state()).record_numbers(step) for step in range(5)]
    state = json.dumps(iterator.get_state())
    rest = [listed(batch) for batch in iterator]
    # The epoch under way, the new elements, and all elements once.
    counts = [len(next(iter(tree_leaves(batch)))) for batch in rest]
    assert sum(counts) == 2 * len(new) - 4
    for batch, of_batch in zip(rest, numbers, strict=False):
        assert batch == listed(new.read(of_batch))
    assert listed(begun) == listed(new.read(stream.record_numbers(0)))

    # States of before and of after go on alike, on any shards.
    again = iter(old.stream(4, **options))
    again.set_state(before)
    again.advance_to(new)
    assert [listed(batch) for batch in again] == rest
    for shards in (1, 2):
        several = [iter(new.stream(4, shard=(shard, shards), **options)) for shard in range(shards)]
        for each in several:
            each.set_state(state)
        shares = [len(next(iter(tree_leaves(listed(batch))))) for each in several for batch in each]
        assert sum(shares) == sum(counts)
    iterator.set_state(state)
    iterator.advance_to(newer)
    restored = iter(newer.stream(4, **options))
    restored.set_state(iterator.get_state())
    assert [listed(batch) for batch in restored] == [listed(batch) for batch in iterator]


def tree_leaves(batch: Any) -> list[Any]:
    return [leaf for value in batch.values() for leaf in tree_leaves(value)] if isinstance(batch, dict) else [batch]


def test_views_that_new_records_change_are_refused(texts: list[Any]) -> None:
    old, new, _ = texts
    for view, other in [
        (lambda ref: ref.windows("tokens", 7, remainder="pad"), None),
        (lambda ref: ref[::-1], None),
        (lambda ref: ref.rolling(2, by="kind", order="id"), None),
        (lambda ref: cachelayer.concat([ref, ref]), None),
        (lambda ref: ref.fields("id"), lambda ref: ref),
        (lambda ref: ref, lambda ref: ref.fields("id")),
        (lambda ref: ref.padded({"tokens": 5}), lambda ref: ref.padded({"tokens": 6})),
        (lambda ref: ref.windows("tokens", 7), lambda ref: ref.windows("tokens", 8)),
    ]:
        iterator = iter(view(old).stream(4, shuffle=True, seed=1))
        next(iterator)
        state = iterator.get_state()
        with pytest.raises(InvalidArgumentError, match="newer"):
            iterator.advance_to((other or view)(new))
        assert iterator.get_state() == state
        next(iterator)


def test_padded_windows_go_on_if_none_of_them_is_padded(texts: list[Any]) -> None:
    old, new, newer = (ref.windows("tokens", 8, remainder="pad") for ref in texts)
    iterator = iter(old.stream(4))
    iterator.advance_to(new)
    assert [listed(batch) for batch in iterator] == [listed(batch) for batch in iter(new.stream(4))]
    with pytest.raises(InvalidArgumentError):
        iterator.advance_to(newer)


def test_a_view_may_have_no_new_elements(texts: list[Any]) -> None:
    old, new, newer = texts
    options: dict[str, Any] = {"shuffle": True, "seed": 1, "num_epochs": 2}
    iterator = iter(old[:20].stream(4, **options))
    batches = [listed(next(iterator))]
    iterator.advance_to(new[:20])
    restored = iter(new[:20].stream(4, **options))
    restored.set_state(iterator.get_state())
    restored.advance_to(newer[:20])
    assert batches + [listed(batch) for batch in restored] == [listed(batch) for batch in old[:20].stream(4, **options)]


def test_a_version_goes_on_over_any_view_that_begins_with_it(texts: list[Any]) -> None:
    old, new, newer = texts
    for view in (new[:50], cachelayer.concat([old, newer]), new.where("id >= 0")):
        iterator = iter(old.stream(4, shuffle=True, seed=1))
        iterator.advance_to(view)
        ids = [int(each) for batch in iterator for each in batch["id"]]
        assert sorted(ids) == sorted(view.read(slice(None), fields=["id"])["id"].tolist())
