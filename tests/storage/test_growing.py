"""What `cache(..., wait=False)` returns is the version from the first step on, whoever builds, dies or takes over."""

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from growing_child import BATCH, RECORDS, SHARD_BYTES, FailsAt, Gated, readers, rows
from growing_child import __file__ as program
from repository import ROOT

import cachelayer
from cachelayer import Blocks, DataRef, Nullable, Ragged, Storage
from cachelayer.errors import (
    CacheLayerWarning,
    ElementError,
    InvalidArgumentError,
    InvalidTypeError,
    SourceError,
    StateError,
    VersionNotFoundError,
)
from cachelayer.specs import tree
from cachelayer.testing.engines import wait_until

OPTIONS: dict[str, Any] = {"shard_bytes": SHARD_BYTES}


def plain(value: Any) -> Any:
    """A batch, or an element, as values that can be compared."""
    if isinstance(value, Nullable):
        return ["nullable", plain(value.values[value.valid]), value.valid.tolist()]
    if isinstance(value, Ragged):
        return ["ragged", value.values.dtype.str, value.values.tolist(), value.row_splits.tolist()]
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, tuple):
        return [plain(child) for child in value]
    return [value.dtype.str, value.tolist()] if isinstance(value, np.ndarray | np.generic) else value


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TRAINER", str(os.getpid()))
    monkeypatch.setenv("FOLDER", str(tmp_path))
    monkeypatch.setenv("GATE", str(RECORDS // 2))


@contextmanager
def growing(folder: Path, source: Any = None, **options: Any) -> Iterator[DataRef[Any]]:
    """A version that is being built: its builder waits in the middle until the block ends."""
    try:
        yield Storage(folder / "storage").cache(source or Gated(), "d@v1", wait=False, **OPTIONS, **options)
    finally:
        (folder / "open").touch()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> DataRef[Any]:
    """The version of a build that was waited for."""
    folder = tmp_path_factory.mktemp("whole")
    os.environ.setdefault("TRAINER", str(os.getpid()))
    return Storage(folder / "storage").cache(Gated(), "d@v1", **OPTIONS)


PARTS = {"train": 0.7, "rest": 0.3}
STREAMS: dict[str, dict[str, Any]] = {
    "in order": {},
    "exact": {"shuffle": True, "seed": 3, "num_epochs": 2},
    "blocks": {"shuffle": Blocks(records=10, window=8, lanes=4), "seed": 3},
    "padded": {"shuffle": True, "seed": 3, "remainder": "pad", "global_batch_size": 64},
    "second shard": {"shuffle": True, "seed": 3, "shard": (1, 2)},
}


def test_elements_batches_and_streams_are_those_of_the_version_before_it_is_stored(
    tmp_path: Path, whole: DataRef[Any]
) -> None:
    with growing(tmp_path) as ref:
        assert (len(ref), ref.dataset_id, ref.dataset_version) == (RECORDS, "d", "v1")
        assert "being built" in repr(ref)
        assert ref.element_spec == whole.element_spec
        wait_until(lambda: len(list((tmp_path / "storage/d/_builds/v1").glob("*/0*.json"))) > 1)
        for _ in range(2):
            for number in (0, -1, 17, RECORDS // 2):
                assert plain(ref[number]) == plain(whole[number])
            numbers = np.random.default_rng(0).permutation(RECORDS)[:100]
            assert plain(ref.read(numbers)) == plain(whole.read(numbers))
            assert plain(ref.read(slice(None, None, 7), fields="text")) == plain(
                whole.read(slice(None, None, 7), "text")
            )
            views = [(ref[5:500:3], whole[5:500:3]), (ref.fields("x", "tokens"), whole.fields("x", "tokens"))]
            views += [(ref.split(PARTS, seed=4)[name], whole.split(PARTS, seed=4)[name]) for name in PARTS]
            views += [(ref.folds(3, seed=4)[1][0], whole.folds(3, seed=4)[1][0])]
            views += [(ref.exclude([1, 2])[::-1], whole.exclude([1, 2])[::-1])]
            views += [(cachelayer.concat([ref[:50], ref[400:]]), cachelayer.concat([whole[:50], whole[400:]]))]
            for mine, theirs in views:
                assert [plain(batch) for batch in mine.stream(50)] == [plain(batch) for batch in theirs.stream(50)]
            mixtures = [cachelayer.mix([(each[:200], 3), (each[200:], 1)], stop="first") for each in (ref, whole)]
            assert [plain(batch) for batch in mixtures[0].stream(50)] == [
                plain(batch) for batch in mixtures[1].stream(50)
            ]
            assert all("being built" in text for text in (repr(mixtures[0]), ref._repr_html_(), ref[1:]._repr_html_()))
            # In another process, such as a worker of a DataLoader, nothing is known of the build but what is stored.
            ref = pickle.loads(pickle.dumps(ref))
        for options in STREAMS.values():
            options = {"global_batch_size": BATCH, **options}
            mine, theirs = ref.stream(**options), whole.stream(**options)
            assert len(mine) == len(theirs)
            assert [plain(batch) for batch in mine] == [plain(batch) for batch in theirs]
    assert ref.digest == whole.digest
    assert ref.provenance["plan"] == whole.provenance["plan"]


def test_what_needs_the_whole_version_waits_for_it(tmp_path: Path, whole: DataRef[Any]) -> None:
    with growing(tmp_path) as ref:
        wait_until(lambda: readers(tmp_path))
        results: list[Any] = []
        waiting = threading.Thread(target=lambda: results.append((ref.digest, ref[3:7].digest, ref.total("tokens"))))
        waiting.start()
        assert not results
    waiting.join()
    assert results == [(whole.digest, whole[3:7].digest, whole.total("tokens"))]
    assert cachelayer.open(ref[3:7].reference).digest == whole[3:7].digest
    streams = [each.stream(BATCH, shuffle="blocks", seed=1) for each in (ref, whole)]
    assert [plain(batch) for batch in streams[0]] == [plain(batch) for batch in streams[1]]
    assert repr(ref) == repr(whole)


def test_a_state_goes_on_in_the_version_that_the_plan_made_and_in_no_other(tmp_path: Path, whole: DataRef[Any]) -> None:
    options: Any = {"global_batch_size": BATCH, "shuffle": True, "seed": 5, "num_epochs": 2}
    expected = [plain(batch) for batch in whole.stream(**options)]
    with growing(tmp_path) as ref:
        iterator, view = iter(ref.stream(**options)), iter(ref[1:].stream(**options))
        first = [plain(next(iterator)) for _ in range(4)]
        next(view)
        state, of_view = iterator.get_state(), json.loads(json.dumps(view.get_state()))
        finished = iter(whole.stream(**options))
        next(finished)
        with pytest.raises(StateError, match="being built"):
            iterator.set_state(finished.get_state())
        again = iter(ref.stream(**options))
        again.set_state(state)
        assert first + [plain(batch) for batch in again] == expected
    assert ref.digest == whole.digest
    # Any version that a build of this plan made: here, elsewhere, waited for or not.
    for version in (ref, whole, Storage(tmp_path / "storage").fetch("d@v1")):
        restored = iter(version.stream(**options))
        restored.set_state(state)
        assert first + [plain(batch) for batch in restored] == expected
        assert restored.get_state()["digest"] == whole.digest
        of_rest = iter(version[1:].stream(**options))
        of_rest.set_state(of_view)
        with pytest.raises(StateError):
            of_rest.set_state(state)
    iterator.set_state(finished.get_state())
    assert plain(next(iterator)) == expected[1]
    other = Storage(tmp_path / "other").cache([rows(number) for number in range(RECORDS)], "d@v1", **OPTIONS)
    assert other.digest == whole.digest
    with pytest.raises(StateError, match="digest"):
        iter(other.stream(**options)).set_state(state)


JOINS: dict[str, Any] = {
    "mixture": lambda ref, other: cachelayer.mix([(ref, 3), (other, 1)]),
    "mixture of a concat": lambda ref, other: cachelayer.mix([(cachelayer.concat([other, ref]), 3), (other[5:], 1)]),
    "concat": lambda ref, other: cachelayer.concat([other, ref]),
    "part of a concat": lambda ref, other: cachelayer.concat([ref, other])[::-1],
    "concat of fields": lambda ref, other: cachelayer.concat([ref.fields("x"), other.fields("x")]),
}


@pytest.mark.parametrize("name", JOINS)
def test_a_state_of_a_growing_and_a_finished_version_goes_on_once_all_is_built(
    tmp_path: Path, whole: DataRef[Any], name: str
) -> None:
    options: Any = {"global_batch_size": BATCH, "shuffle": True, "seed": 5}
    # This one is built, and has a plan too.
    other = Storage(tmp_path / "other").cache([rows(number) for number in range(100)], "d@v1", **OPTIONS)
    expected = iter(JOINS[name](whole, other).stream(**options))
    with growing(tmp_path) as ref:
        join = JOINS[name](ref, other)
        iterator = iter(join.stream(**options))
        assert plain(next(iterator)) == plain(next(expected))
        state = iterator.get_state()
        again = iter(join.stream(**options))
        again.set_state(state)
        assert again.get_state() == state
    assert ref.digest == whole.digest
    following = [plain(next(expected)) for _ in range(3)]
    finished = JOINS[name](whole, other).stream(**options)
    for stream in (finished, join.stream(**options), JOINS[name](ref, other).stream(**options)):
        for saved in (state, finished.state(1)):
            restored = iter(stream)
            restored.set_state(saved)
            assert [plain(next(restored)) for _ in range(3)] == following
            assert restored.get_state() == finished.state(4)


def test_a_version_that_exists_is_returned(tmp_path: Path, whole: DataRef[Any]) -> None:
    storage = Storage(tmp_path / "storage")
    storage.cache(Gated(), "d@v1", **OPTIONS)
    assert storage.cache(Gated(), "d@v1", wait=False, **OPTIONS).digest == whole.digest
    assert not readers(tmp_path)


@pytest.mark.slow
def test_a_builder_that_is_killed_is_followed_by_another_that_goes_on(tmp_path: Path, whole: DataRef[Any]) -> None:
    with growing(tmp_path) as ref:
        wait_until(lambda: readers(tmp_path))
        [first] = readers(tmp_path)
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: len(readers(tmp_path)) > 1)
        assert plain(ref[-1]) == plain(whole[-1])
    assert ref.digest == whole.digest


@pytest.mark.slow
def test_a_builder_that_is_killed_again_and_again_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GATE", "1")
    with growing(tmp_path) as ref:
        for count in (1, 2):
            wait_until(lambda count=count: len(readers(tmp_path)) == count)
            for process in readers(tmp_path):
                try:
                    os.kill(process, signal.SIGKILL)
                except ProcessLookupError:
                    continue
        with pytest.raises(SourceError, match="killed twice"):
            _ = ref.digest
        with pytest.raises(SourceError, match="killed twice"):
            next(iter(ref.stream(BATCH)))


def start_trainer(folder: Path, steps: int, states: str = "", end: str = "") -> subprocess.Popen[str]:
    """Start a trainer that has its states in a folder, and ends in one of several ways."""
    return subprocess.Popen(
        [sys.executable, program, str(folder / "storage"), str(folder / states), str(steps), end],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lines_of(trainer: subprocess.Popen[str]) -> list[Any]:
    """The lines that a trainer printed until it ended."""
    output, errors = trainer.communicate()
    assert trainer.returncode == 0, errors
    return [json.loads(line) for line in output.splitlines()]


@pytest.mark.slow
def test_trainers_that_are_killed_in_epoch_0_resume_on_two_hosts(tmp_path: Path, whole: DataRef[Any]) -> None:
    stream = whole.stream(BATCH, shuffle=True, seed=5, num_epochs=2)
    expected = [batch["x"][:, 0].tolist() for batch in stream]
    trainer = start_trainer(tmp_path, 1000)
    assert trainer.stdout is not None
    done = [json.loads(trainer.stdout.readline()) for _ in range(10)]
    wait_until(lambda: readers(tmp_path))
    trainer.kill()
    trainer.communicate()
    # The builder ends with the trainer.
    for process in readers(tmp_path):
        wait_until(lambda process=process: not Path(f"/proc/{process}").exists())
    position = json.loads((tmp_path / "state.json").read_text())["position"] // BATCH
    assert done == expected[:10]
    # Two hosts: each resumes where the first was; one of them builds what is left.
    (tmp_path / "second").mkdir()
    (tmp_path / "second/state.json").write_bytes((tmp_path / "state.json").read_bytes())
    (tmp_path / "open").touch()
    hosts = [start_trainer(tmp_path, 1000), start_trainer(tmp_path, 1000, "second")]
    assert [lines_of(host) for host in hosts] == [[*expected[position:], whole.digest]] * 2
    assert [*Storage(tmp_path / "storage").versions("d")] == ["v1"]


@pytest.mark.slow
def test_a_program_that_is_killed_in_epoch_0_ends_on_two_hosts_with_the_losses_of_one_that_waited(
    tmp_path: Path,
) -> None:
    def start(folder: str, *arguments: str) -> subprocess.Popen[str]:
        (tmp_path / folder).mkdir(exist_ok=True)
        command = [sys.executable, ROOT / "examples/train_while_caching.py", tmp_path / folder, *arguments]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

    expected, _ = start("waited", "--wait").communicate()
    killed = start("killed")
    assert killed.stdout is not None
    before = [killed.stdout.readline() for _ in range(5)]
    killed.kill()
    before += killed.communicate()[0].splitlines(keepends=True)
    first, second = start("killed", "0", "2"), start("killed", "1", "2")
    after, _ = first.communicate()
    second.communicate()
    lines = dict.fromkeys([*before, *after.splitlines(keepends=True)])
    assert "".join(lines) == expected
    assert len(lines) == 101


def test_an_error_of_the_source_is_raised_by_reads_and_names_the_record(tmp_path: Path) -> None:
    ref = Storage(tmp_path / "storage").cache(FailsAt(), "d@v1", wait=False, **OPTIONS)
    assert ref[399]["text"] == "text 399"
    with pytest.raises(SourceError, match="record 403: ValueError: no such row"):
        _ = ref[403]
    (tmp_path / "open").touch()
    with pytest.raises(SourceError, match="record 403: ValueError: no such row"):
        _ = ref.digest
    # Others are not read either: nobody should train on for hours without a version in the end.
    with pytest.raises(SourceError, match="record 403"):
        list(ref.stream(BATCH))
    assert Storage(tmp_path / "storage").datasets() == []


class OtherFrom(Gated):
    def __getitem__(self, number: int) -> dict[str, Any]:
        return {**super().__getitem__(number), **({"text": 7} if number == 403 else {})}


class NoneAt(Gated):
    def __getitem__(self, number: int) -> dict[str, Any]:
        return {**super().__getitem__(number), **({"text": None} if number == 403 else {})}


def test_elements_that_do_not_fit_are_the_same_errors_as_in_a_build(tmp_path: Path) -> None:
    ref = Storage(tmp_path / "storage").cache(OtherFrom(), "d@v1", wait=False, **OPTIONS)
    with pytest.raises(ElementError, match=r"record 403, leaf \['text'\]"):
        ref.read([399, 401, 403])
    (tmp_path / "open").touch()


def test_a_none_that_the_first_elements_do_not_show_is_refused_with_its_leaf(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "storage")
    ref = storage.cache(NoneAt(), "d@v1", wait=False, **OPTIONS)
    with pytest.raises(SourceError, match=r"\['text'\].*nullable=True"):
        list(ref.stream(BATCH))
    spec = {"text": cachelayer.ArraySpec(str, nullable=True)}
    (tmp_path / "open").touch()
    declared = storage.cache(NoneAt(), "d@v2", wait=False, element_spec=spec, **OPTIONS)
    assert declared[403]["text"] is None
    waited = Storage(tmp_path / "waited").cache(NoneAt(), "d@v2", element_spec=spec, **OPTIONS)
    assert [plain(batch) for batch in declared.stream(50)] == [plain(batch) for batch in waited.stream(50)]
    assert declared.digest == waited.digest


class Locked(Gated):
    def __init__(self) -> None:
        self.lock = threading.Lock()


def test_what_cannot_be_read_or_built_so_is_refused_by_name(tmp_path: Path) -> None:
    storage = Storage(tmp_path / "storage")
    with pytest.raises(InvalidArgumentError, match="no items by number"):
        storage.cache((rows(number) for number in range(9)), "d@v1", wait=False)
    with pytest.raises(InvalidTypeError, match="pass a function that makes it"):
        storage.cache(Locked(), "d@v1", wait=False)
    for options in ({"on_error": "skip"}, {"resume": False}, {"pack": {"leaves": "tokens", "length": 8}}):
        with pytest.raises(InvalidArgumentError, match="wait=False"):
            storage.cache(Gated(), "d@v1", wait=False, **options)  # type: ignore[arg-type]
    with pytest.raises(InvalidArgumentError, match="memory"):
        Storage("memory://growing").cache(Gated(), "d@v1", wait=False)
    with pytest.raises(SourceError, match="no element"):
        storage.cache([], "d@v1", wait=False)
    assert len(storage.cache([], "d@v1", wait=False, allow_empty=True)) == 0
    (tmp_path / "open").touch()
    made = storage.cache(Locked, "d@v2", wait=False)
    assert made[3]["text"] == "text 3"
    assert made.digest == storage.fetch("d@v2").digest


def test_a_version_that_another_build_publishes_under_the_name_is_refused(tmp_path: Path) -> None:
    with growing(tmp_path) as ref:
        other = Storage(tmp_path / "other")
        other.submit([{"x": 1}], "d@v1")
        other.copy("d@v1", to=Storage(tmp_path / "storage"))
        with pytest.raises(SourceError, match="something else"):
            _ = ref.digest


def interrupted(trainer: subprocess.Popen[str], text: str) -> str:
    """What a trainer says after Ctrl-C, which comes once it has said a text."""
    assert trainer.stderr is not None
    said = ""
    while text not in said:
        line = trainer.stderr.readline()
        assert line, said
        said += line
    trainer.send_signal(signal.SIGINT)
    return said + trainer.communicate()[1]


@pytest.mark.parametrize("end", ["", "exit", "error", "thread"])
def test_a_program_that_ends_before_waits_for_its_build(tmp_path: Path, end: str) -> None:
    ending = start_trainer(tmp_path, 1, end=end)
    assert ending.stderr is not None
    said = ""
    while "waits for it" not in said:
        line = ending.stderr.readline()
        assert line, said
        said += line
    assert "d@v1" in said
    assert ("no such batch" in said) == (end == "error")
    assert not Storage(tmp_path / "storage").datasets()
    (tmp_path / "open").touch()
    ending.communicate()
    assert ending.returncode == {"exit": 3, "error": 1}.get(end, 0)
    assert len(Storage(tmp_path / "storage").fetch("d@v1")) == RECORDS


def test_programs_that_resume_a_killed_run_wait_for_the_one_that_builds(tmp_path: Path) -> None:
    (tmp_path / "second").mkdir()
    hosts = [start_trainer(tmp_path, 1), start_trainer(tmp_path, 1, "second")]
    for host in hosts:
        assert host.stderr is not None
        assert "waits for it" in host.stderr.readline()
    (tmp_path / "open").touch()
    assert [(host.communicate()[0] != "", host.returncode) for host in hosts] == [(True, 0), (True, 0)]
    assert [*Storage(tmp_path / "storage").versions("d")] == ["v1"]


@pytest.mark.parametrize("end", ["", "interrupted"])
def test_a_program_that_is_asked_not_to_wait_says_what_is_left(tmp_path: Path, end: str) -> None:
    """By Ctrl-C while it waits, or by the one that ended it."""
    ended = start_trainer(tmp_path, 1, end=end)
    errors = interrupted(ended, "waits for it") if not end else ended.communicate()[1]
    assert CacheLayerWarning.__name__ in errors
    assert "d@v1 is not finished" in errors
    assert "next storage.cache() goes on" in errors
    assert ("waits for it" in errors) == (not end)
    for process in readers(tmp_path):
        wait_until(lambda process=process: not Path(f"/proc/{process}").exists())
    (tmp_path / "open").touch()
    assert len(lines_of(start_trainer(tmp_path, 1))) == 1
    assert len(Storage(tmp_path / "storage").fetch("d@v1")) == RECORDS


def test_a_program_says_at_its_end_that_its_build_failed(tmp_path: Path) -> None:
    (tmp_path / "open").touch()
    ended = start_trainer(tmp_path, 1, end="failing")
    errors = ended.communicate()[1]
    assert ended.returncode == 0
    assert "d@v1 was not built" in errors
    assert "record 403" in errors


class Rows:
    def __init__(self, values: Any) -> None:
        self.values = values

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"n": self.values[number]}


MADE = [{"n": number} for number in range(40)]


def change_rows(source: Any) -> None:
    if isinstance(source, list):
        for row in source:
            row["n"] = -1
        source.append({"n": -2})
    elif isinstance(source, np.ndarray):
        source[:] = -1
    elif isinstance(source, dict):
        source["n"][:] = -1
    elif isinstance(source, Rows):
        source.values[:] = [-1] * len(source)
    else:
        source["n"] = -1


@pytest.mark.parametrize("kind", ["list", "array", "arrays", "object", "frame"])
def test_rows_that_change_in_place_afterwards_change_nothing(tmp_path: Path, kind: str) -> None:
    rows = [{"n": number} for number in range(40)]
    sources: dict[str, Any] = {
        "list": rows,
        "array": np.arange(40),
        "arrays": {"n": np.arange(40)},
        "object": Rows([*range(40)]),
        "frame": pd.DataFrame({"n": np.arange(40)}),
    }
    source = sources[kind]
    ref = Storage(tmp_path).cache(source, "d@v1", wait=False, shard_bytes=500)
    change_rows(source)
    first = plain(ref.read(range(40)))
    assert "-1" not in str(first)
    assert ref.digest
    assert plain(Storage(tmp_path).fetch("d@v1").read(range(40))) == first == plain(ref.read(range(40)))
    assert len(ref) == 40


def made_rows() -> list[dict[str, Any]]:
    return MADE


class Different(Rows):
    """Rows of which one differs in each process, which is none of those that a plan compares."""

    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"n": os.getpid() if number == 6 else number}


class DifferentEverywhere(Rows):
    def __getitem__(self, number: int) -> dict[str, Any]:
        return {"n": os.getpid() + number}


def test_a_source_that_differs_in_the_process_that_builds_is_an_error(tmp_path: Path) -> None:
    ref = Storage(tmp_path).cache(DifferentEverywhere(range(40)), "d@v1", wait=False)
    with pytest.raises(SourceError, match="record 0 differs"):
        ref.digest  # noqa: B018 - it waits


@pytest.mark.parametrize("kind", ["function", "object"])
def test_what_was_read_and_is_not_what_is_stored_is_an_error(tmp_path: Path, kind: str) -> None:
    """A function gives what a module holds, or an object gives other rows in other processes."""
    source: Any = made_rows if kind == "function" else Different(range(40))
    ref = Storage(tmp_path).cache(source, "d@v1", wait=False, shard_bytes=500)
    try:
        MADE[6]["n"] = -1
        read = ref[6]["n"]
        assert read != 6
        try:
            ref.digest  # noqa: B018 - it waits
        except SourceError as error:
            assert "record 6 " in str(error)  # noqa: PT017
            with pytest.raises(SourceError, match="record 6 "):
                ref[7]
        else:
            # The process that builds began after the change, or had published before a row was read here.
            assert kind == "function" or read != os.getpid()
            assert ref[6]["n"] == read
    finally:
        MADE[6]["n"] = 6


# For a moment the build that has published is still at work.
@pytest.mark.filterwarnings("ignore:a build of 'd' is at work")
def test_a_version_that_is_deleted_once_it_is_built_stays_deleted(tmp_path: Path, whole: DataRef[Any]) -> None:
    storage = Storage(tmp_path / "storage")
    with growing(tmp_path) as ref:
        assert plain(ref[3]) == plain(whole[3])
        other = pickle.loads(pickle.dumps(ref))
    wait_until(lambda: bool(storage.versions("d")) if storage.datasets() else False)
    storage.delete("d@v1", grace=0)
    storage.gc(grace=0.0)
    for each in (ref, other):
        # Who saw that it was published reads on, as of any deleted version; nobody waits for it.
        with suppress(VersionNotFoundError):
            assert each.digest == whole.digest
        with suppress(VersionNotFoundError):
            assert plain(each[5]) == plain(whole[5])
    wait_until(lambda: "cachelayer-build" not in [thread.name for thread in threading.enumerate()])
    assert not storage.versions("d")
    assert storage.cache(Gated(), "d@v1", **OPTIONS).digest == whole.digest


def test_functions_of_a_stream_see_what_they_see_of_the_version(tmp_path: Path, whole: DataRef[Any]) -> None:
    with growing(tmp_path) as ref:
        mine = ref.stream(BATCH).map(lambda element: {"text": element["text"], "sum": element["x"].sum()})
        theirs = whole.stream(BATCH).map(lambda element: {"text": element["text"], "sum": element["x"].sum()})
        assert [plain(batch) for batch in mine] == [plain(batch) for batch in theirs]
        assert [path for path, _ in tree.leaves(ref.element_spec)] == [
            path for path, _ in tree.leaves(whole.element_spec)
        ]
