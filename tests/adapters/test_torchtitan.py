"""The data loader for torchtitan, against its base class and torch's distributed checkpoints."""

import subprocess
import sys
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import tyro
from forks import FORKS, importing
from torchtitan.components.dataloader import BaseDataLoader
from torchtitan_child import GLOBAL_BATCH, SEQ_LEN, Job, loader_of, train

import cachelayer
from cachelayer import ArraySpec, InvalidArgumentError, Storage
from cachelayer.adapters.torchtitan import TokenDataLoader

SPEC = {"tokens": ArraySpec("uint16", (None,)), "trained": ArraySpec("bool", (None,))}
SAVED, STEPS = 7, 16


def documents(count: int, longest: int, seed: int) -> list[dict[str, Any]]:
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, longest, count)
    return [
        {"tokens": rng.integers(1, 1000, n).astype(np.uint16), "trained": rng.integers(0, 2, n).astype(bool)}
        for n in lengths
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("torchtitan")
    storage = Storage(folder / "cache")
    storage.cache(documents(150, 30, 0), "stories@v1", element_spec=SPEC)
    storage.cache(documents(30, 10, 1), "sums@v1", element_spec=SPEC)
    return folder


def ref_of(folder: Path) -> Any:
    return Storage(folder / "cache").fetch("stories@v1")


def build(rows: Any, seq_len: int = SEQ_LEN, size: int = 4, rank: int = 0, ranks: int = 1, **config: Any) -> Any:
    told = TokenDataLoader.Config(rows=rows, **config)
    return told.build(
        dp_world_size=ranks,
        dp_rank=rank,
        tokenizer=None,
        seq_len=seq_len,
        local_batch_size=size,
        snapshot_every_n_steps=None,
    )


def run(job: Job) -> dict[str, np.ndarray]:
    """Run all ranks of a job, and return the columns of its global batches."""
    processes = [FORKS.Process(target=train, args=(job, rank)) for rank in range(job.ranks)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
        assert process.exitcode == 0
    parts = [np.load(job.batches(rank)) for rank in range(job.ranks)]
    return {name: np.concatenate([part[name] for part in parts], axis=1) for name in parts[0].files}


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["packed", "windows", "mixture"])
def test_a_checkpoint_of_four_ranks_goes_on_exactly_on_any_number_over_the_end_of_an_epoch(
    folder: Path, rows: str
) -> None:
    alone = loader_of(Job(folder, rows, 1, 0, STEPS), 0)
    whole = list(islice(alone, STEPS))
    # The checkpoint lies in the first epoch of the stories, and the end in the second.
    per_epoch = len(ref_of(folder).packed("tokens", SEQ_LEN + 1))
    assert SAVED * GLOBAL_BATCH < per_epoch < STEPS * GLOBAL_BATCH * 3 // 4
    with importing("torch.distributed.checkpoint", "torchtitan_child"):
        begun = run(Job(folder, rows, 4, 0, SAVED))
        for ranks in (1, 2, 3, 4, 6):
            rest = run(Job(folder, rows, ranks, SAVED, STEPS))
            for name, values in rest.items():
                column = [labels if name == "labels" else inputs[name] for inputs, labels in whole]
                assert np.array_equal(np.concatenate([begun[name], values]), np.stack(column))


def test_inputs_labels_and_positions_are_those_of_the_documents(folder: Path) -> None:
    ref = ref_of(folder)
    rows = ref.packed("tokens", SEQ_LEN + 1)
    loader = build(rows, size=len(rows), shuffle=False, infinite=False)
    assert isinstance(loader, BaseDataLoader)
    ((inputs, labels),) = list(loader)
    assert inputs.keys() == {"input", "positions"}
    assert {tensor.dtype for tensor in (*inputs.values(), labels)} == {torch.int64}
    predictions = 0
    for number in range(len(rows)):
        for piece in rows.sources(number):
            tokens = ref[piece.record]["tokens"][piece.begin : piece.end].astype(np.int64)
            cells = slice(piece.offset, min(piece.offset + len(tokens), SEQ_LEN))
            count = cells.stop - cells.start
            assert np.array_equal(inputs["input"][number, cells], tokens[:count])
            assert np.array_equal(inputs["positions"][number, cells], np.arange(count))
            following = np.append(tokens, -100)[1 : count + 1]
            assert np.array_equal(labels[number, cells], following)
            predictions += len(tokens) - 1
    assert int((labels != -100).sum()) == predictions


def test_windows_with_segments_are_packs_that_cut_documents(folder: Path) -> None:
    windows = ref_of(folder).windows("tokens", SEQ_LEN + 1, stride=SEQ_LEN, segments=True)
    inputs, labels = next(iter(build(windows, shuffle=False)))
    rows = windows.read(range(4))
    segments = rows["tokens_segment_ids"]
    goes_on = segments[:, 1:] == segments[:, :-1]
    assert np.array_equal(labels, np.where(goes_on, rows["tokens"][:, 1:].astype(np.int64), -100))
    assert np.array_equal(inputs["positions"], rows["tokens_positions"][:, :SEQ_LEN])
    assert int((inputs["positions"] == 0).sum()) > 4


def test_padding_is_one_document_without_labels(tmp_path: Path) -> None:
    document = {"tokens": np.array([5, 6, 7], np.uint16), "trained": np.ones(3, bool)}
    rows = Storage(tmp_path).cache([document], "short@v1", element_spec=SPEC).packed("tokens", 8)
    ((inputs, labels),) = list(build(rows, 8, 1, infinite=False))
    assert inputs["input"].tolist() == [[5, 6, 7, 0, 0, 0, 0, 0]]
    assert inputs["positions"].tolist() == [[0, 1, 2, 0, 1, 2, 3, 4]]
    assert labels.tolist() == [[6, 7, -100, -100, -100, -100, -100, -100]]


def test_a_mask_beside_the_tokens_takes_labels_away(folder: Path) -> None:
    rows = ref_of(folder).packed(("tokens", "trained"), SEQ_LEN + 1)
    (all_labels,) = [labels for _, labels in build(rows, size=len(rows), infinite=False)]
    ((_, labels),) = list(build(rows, size=len(rows), loss_mask="trained", infinite=False))
    order = build(rows, size=len(rows), infinite=False)._loader._stream.record_numbers(0)
    trained = rows.read(order)["trained"][:, 1:]
    assert np.array_equal(labels, np.where(trained, all_labels, -100))
    assert (labels != all_labels).any()


@pytest.mark.parametrize("length", [SEQ_LEN, SEQ_LEN + 1])
def test_windows_are_one_document_a_row(folder: Path, length: int) -> None:
    windows = ref_of(folder).windows("tokens", length, remainder="pad")
    inputs, labels = next(iter(build(windows, shuffle=False)))
    tokens = windows.read(range(4))["tokens"].astype(np.int64)
    assert np.array_equal(inputs["input"], tokens[:, :SEQ_LEN])
    assert np.array_equal(inputs["positions"], np.tile(np.arange(SEQ_LEN), (4, 1)))
    assert np.array_equal(labels[:, : length - 1], tokens[:, 1:])
    assert bool((labels[:, length - 1 :] == -100).all())
    *_, (_, last) = build(windows, shuffle=False, size=1, infinite=False)
    held = int(windows[-1]["tokens_length"])
    assert int((last != -100).sum()) == held - 1


def test_validation_reads_each_row_once_in_as_many_steps_on_every_rank(folder: Path) -> None:
    rows = ref_of(folder).packed("tokens", SEQ_LEN + 1)
    assert len(rows) % 12
    parts = [list(build(rows, size=4, rank=rank, ranks=3, infinite=False)) for rank in range(3)]
    assert [len(part) for part in parts] == [-(-len(rows) // 12)] * 3
    labels = sum(int((labels != -100).sum()) for part in parts for _, labels in part)
    ((_, whole),) = list(build(rows, size=len(rows), infinite=False))
    assert labels == int((whole != -100).sum())


def test_rows_are_shuffled_in_blocks_if_that_is_asked_for(folder: Path) -> None:
    rows = ref_of(folder).packed("tokens", SEQ_LEN + 1)
    inputs, _ = next(iter(build(rows, shuffle="blocks", seed=3)))
    expected = next(iter(rows.stream(4, shuffle="blocks", seed=3, num_epochs=None, remainder="wrap")))
    assert np.array_equal(inputs["input"], expected["tokens"][:, :SEQ_LEN])


def test_the_state_is_the_same_on_every_rank_and_stays_after_close(folder: Path) -> None:
    rows = ref_of(folder).packed("tokens", SEQ_LEN + 1)
    loaders = [build(rows, size=2, rank=rank, ranks=3) for rank in range(3)]
    for loader in loaders:
        list(islice(loader, 5))
    states = [loader.state_dict() for loader in loaders]
    assert states[0] == states[1] == states[2]
    loaders[0].close()
    assert loaders[0].state_dict() == states[1]
    inputs, _ = next(iter(loaders[0]))
    again = build(rows, size=2, rank=0, ranks=3)
    again.load_state_dict(states[2])
    assert np.array_equal(next(iter(again))[0]["input"], inputs["input"])
    with pytest.raises(cachelayer.StateError, match="digest"):
        build(rows[:20]).load_state_dict(states[0])


def test_a_reference_and_a_function_of_the_length_are_rows(folder: Path) -> None:
    ref = ref_of(folder)
    expected, _ = next(iter(build(ref.packed("tokens", SEQ_LEN + 1))))
    for config in ({"rows": None, "dataset": ref.reference}, {"rows": lambda length: ref.packed("tokens", length)}):
        inputs, _ = next(iter(build(**config)))
        assert np.array_equal(inputs["input"], expected["input"])


def test_the_command_line_of_torchtitan_takes_the_config() -> None:
    config = tyro.cli(
        TokenDataLoader.Config, args=["--dataset", "/data/cache/c4@v1", "--seed", "3", "--shuffle", "False"]
    )
    assert (config.dataset, config.seed, config.shuffle, config.infinite) == ("/data/cache/c4@v1", 3, False, True)
    assert config.to_dict()["dataset"] == "/data/cache/c4@v1"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"rows": None}, "dataset="),
        ({"rows": lambda ref: ref.packed("tokens", SEQ_LEN + 2)}, f"packed.'tokens', {SEQ_LEN + 1}"),
        ({"rows": lambda ref: ref}, "tokens"),
        ({"rows": lambda ref: cachelayer.mix([(ref.packed("tokens", SEQ_LEN), 1)]), "infinite": False}, "stop="),
        ({"rows": lambda ref: cachelayer.mix([(ref.packed("tokens", SEQ_LEN), 1)], stop="all")}, "stop="),
        ({"rows": lambda ref: ref.packed("tokens", SEQ_LEN), "loss_mask": "trained"}, "trained"),
    ],
)
def test_rows_that_do_not_fit_are_refused_with_the_fix(folder: Path, config: Any, message: str) -> None:
    make = config["rows"]
    with pytest.raises(InvalidArgumentError, match=message):
        build(**config | {"rows": make and make(ref_of(folder))})


@dataclass(kw_only=True, slots=True)
class Program:
    """The configuration of a program, as torchtitan's command line takes it."""

    dataloader: TokenDataLoader.Config = field(default_factory=TokenDataLoader.Config)


@pytest.mark.filterwarnings("error")
def test_any_rows_pass_the_command_line(folder: Path) -> None:
    packed = ref_of(folder).packed("tokens", SEQ_LEN + 1)
    for rows in (None, packed, cachelayer.mix([(packed, 1)]), lambda length: packed[:length]):
        told = Program(dataloader=TokenDataLoader.Config(rows=rows))
        heard = tyro.cli(Program, args=["--dataloader.seed", "5"], default=told)
        assert heard.dataloader.rows is rows
        assert heard.dataloader.seed == 5


def test_a_torchtitan_of_another_layout_is_named(tmp_path: Path) -> None:
    (tmp_path / "torchtitan" / "components").mkdir(parents=True)
    for package in ("torchtitan", "torchtitan/components"):
        (tmp_path / package / "__init__.py").touch()
    code = f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import cachelayer.adapters.torchtitan"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "No module named 'torchtitan.components.dataloader'" in done.stderr
    assert "needs torchtitan 0.3: pip install 'cachelayer[torchtitan]'" in done.stderr
