"""Loaders that others made, in our order and with our state; and timm's reader, without timm."""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import pickle
import random
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils import data

import cachelayer
from cachelayer import ArraySpec, ElementError, ImageSpec, InvalidArgumentError, InvalidTypeError, StateError, Storage
from cachelayer.adapters.timm import reader
from cachelayer.adapters.torch import resumable

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    "ignore:os.fork.. was called:RuntimeWarning",
)
RECORDS, BATCH, SEED = 50, 8, 3


class Jittered(data.Dataset):
    """The numbers of records, with draws from the generators that transformations use."""

    def __init__(self, records: int = RECORDS) -> None:
        self.records = records

    def __len__(self) -> int:
        return self.records

    def __getitem__(self, number: int) -> list[float]:
        return [number, random.random(), np.random.random(), torch.rand(()).item()]


class ReadsAhead:
    """A loader that is one batch ahead of what it returns, as timm's PrefetchLoader is."""

    def __init__(self, loader: Any) -> None:
        self.loader = loader

    def __iter__(self) -> Iterator[Any]:
        held = None
        for batch in self.loader:
            if held is not None:
                yield held
            held = batch
        yield held


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Storage(tmp_path_factory.mktemp("cache")).cache({"x": np.arange(RECORDS)}, "x", "v1")


def rows(batch: Any) -> Any:
    return torch.tensor(batch, dtype=torch.float64).tolist()


def batches(ref: Any, workers: int = 0, **options: Any) -> Any:
    loader = data.DataLoader(
        Jittered(), batch_size=BATCH, num_workers=workers, collate_fn=rows, shuffle=True, **options
    )
    return resumable(ReadsAhead(loader), ref, seed=SEED)


def test_the_records_are_those_of_the_stream_epoch_by_epoch(ref: Any) -> None:
    loader = batches(ref)
    for epoch in range(2):
        expected = [batch["x"].tolist() for batch in ref.stream(BATCH, shuffle=True, seed=SEED).epoch(epoch)]
        assert [[row[0] for row in batch] for batch in loader] == expected
        assert len(loader) == len(expected)


def test_the_seeds_of_an_element_are_those_of_the_docs(ref: Any) -> None:
    for position, row in enumerate(row for batch in batches(ref) for row in batch):
        key = SEED.to_bytes(8, "little") + position.to_bytes(8, "little")
        seed = int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")
        generators = random.Random(seed), np.random.RandomState(seed % 2**32), torch.Generator().manual_seed(seed)
        python, numpy, pytorch = generators
        assert row[1:] == [python.random(), numpy.random_sample(), torch.rand((), generator=pytorch).item()]


@pytest.mark.parametrize("persistent", [False, True])
def test_a_resumed_run_has_the_batches_and_the_random_numbers_of_one_run(ref: Any, persistent: bool) -> None:
    whole = batches(ref)
    expected = [batch for _ in range(3) for batch in whole]
    first = batches(ref)
    begun = [*first, *itertools.islice(first, 3)]
    state = json.loads(json.dumps(first.state_dict()))
    assert state["position"] == RECORDS + 3 * BATCH
    rest = batches(ref, workers=1, persistent_workers=persistent)
    rest.load_state_dict(state)
    rest.set_epoch(1)
    assert begun + [batch for _ in range(2) for batch in rest] == expected
    assert rest.state_dict()["position"] == 3 * RECORDS


def test_iterations_at_once_have_epochs_and_states_of_their_own(ref: Any) -> None:
    loader = batches(ref)
    first, second = iter(loader), iter(loader)
    whole = batches(ref)
    expected = [list(whole), list(whole)]
    assert [list(first), list(second)] == expected
    assert loader.state_dict()["position"] == 2 * RECORDS


class SlowAtFirst(Jittered):
    """Records of which the first batch takes longest."""

    def __init__(self, done: Any) -> None:
        super().__init__()
        self.done = done

    def __getitem__(self, number: int) -> list[float]:
        worker = data.get_worker_info()
        if worker is not None and worker.id == 0:
            self.done.wait(10)
        elif worker is not None:
            self.done.set()
        return super().__getitem__(number)


def test_workers_that_may_overtake_others_keep_our_order(ref: Any) -> None:
    dataset = SlowAtFirst(torch.multiprocessing.get_context("fork").Event())
    loader = data.DataLoader(dataset, batch_size=BATCH, num_workers=2, collate_fn=rows, in_order=False)
    assert list(resumable(loader, ref, seed=SEED)) == list(batches(ref))


def test_what_is_set_on_the_dataset_of_the_loader_reaches_it(ref: Any) -> None:
    loader = batches(ref)
    seeded = loader.loader.loader.dataset
    seeded.records, seeded.transform = 7, "resize"
    assert len(seeded) == 7
    assert seeded.transform == pickle.loads(pickle.dumps(seeded)).transform == "resize"


def test_elements_draw_nothing_from_the_generators_of_the_model(ref: Any) -> None:
    def draws() -> tuple[Any, ...]:
        return random.random(), np.random.random(), torch.rand(2).tolist()

    def seed() -> None:
        random.seed(1), np.random.seed(1), torch.manual_seed(1)

    seed()
    expected = draws()
    seed()
    list(batches(ref))
    assert draws() == expected


def test_dropped_rows_are_counted_and_another_epoch_can_be_chosen(ref: Any) -> None:
    loader = batches(ref, drop_last=True)
    assert len(list(loader)) == RECORDS // BATCH
    assert loader.state_dict()["position"] == RECORDS
    loader.set_epoch(4)
    stream = ref.stream(BATCH, shuffle=True, seed=SEED, remainder="drop")
    assert [[row[0] for row in batch] for batch in loader] == [batch["x"].tolist() for batch in stream.epoch(4)]


def test_a_state_of_another_order_is_refused(ref: Any) -> None:
    with pytest.raises(StateError, match="seed"):
        batches(ref).load_state_dict(iter(ref.stream(BATCH, shuffle=True, seed=1)).get_state())


@pytest.mark.parametrize(
    ("loader", "error", "message"),
    [
        ([1, 2], InvalidTypeError, "a list is not a DataLoader"),
        (SimpleNamespace(loader=[1]), InvalidTypeError, "a SimpleNamespace is not a DataLoader"),
        (data.DataLoader(Jittered(7), batch_size=2), InvalidArgumentError, "7 elements, and the ref has 50"),
        (data.DataLoader(Jittered(), batch_size=None), InvalidArgumentError, "no batch size of its own"),
        (data.DataLoader(data.ChainDataset([]), batch_size=2), InvalidTypeError, "iterable"),
    ],
)
def test_loaders_that_have_no_order_to_replace_are_refused(
    ref: Any, loader: Any, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        resumable(loader, ref, seed=0)


@pytest.fixture(scope="module")
def images(tmp_path_factory: pytest.TempPathFactory) -> Any:
    def elements() -> Iterator[dict[str, Any]]:
        for number in range(4):
            file = io.BytesIO()
            Image.new("RGB", (2, 3), (number, 0, 0)).save(file, "png")
            yield {"image": file.getvalue(), "class": number}

    spec = {"image": ImageSpec(), "class": ArraySpec("int64")}
    storage = Storage(tmp_path_factory.mktemp("images"))
    return storage.cache(elements, "images", "v1", element_spec=spec, metadata={"classes": ["a", "b", "c", "d"]})


def test_timms_reader_gives_the_files_as_they_were_and_their_classes(images: Any) -> None:
    read = pickle.loads(pickle.dumps(reader(images, target="class")))
    file, target = read[2]
    assert (Image.open(file).getpixel((0, 0)), target) == ((2, 0, 0), 2)
    assert (len(read), read.class_to_idx["d"], read.filename(2), len(read.filenames())) == (4, 3, "2", 4)


def test_timms_reader_refuses_what_has_no_files(images: Any, ref: Any) -> None:
    with pytest.raises(InvalidArgumentError, match="no 'label', but 'image', 'class'"):
        reader(images)
    with pytest.raises(InvalidTypeError, match="cache the bytes of image files"):
        reader(ref, "x", "x")
    with pytest.raises(InvalidTypeError, match="list is not a DataRef"):
        reader([])  # type: ignore[arg-type]
    assert isinstance(images, cachelayer.DataRef)


@pytest.mark.parametrize("label", ["cat", 1.5, np.array([1, 2])])
def test_timms_reader_refuses_what_is_no_class_number(label: Any, tmp_path: Any) -> None:
    ref = Storage(tmp_path).cache([{"image": b"file", "label": label}], "d", "v1")
    with pytest.raises(InvalidTypeError, match=r"leaf 'label' is .*: class numbers are integers"):
        reader(ref)


@pytest.mark.parametrize("missing", ["image", "label"])
def test_timms_reader_names_the_record_that_lacks_its_image_or_class(missing: str, tmp_path: Any) -> None:
    whole = {"image": b"file", "label": 3}
    spec = {"image": ImageSpec(nullable=True), "label": ArraySpec("int64", nullable=True)}
    read = reader(Storage(tmp_path).cache([whole, {**whole, missing: None}], "d", "v1", element_spec=spec))
    assert read[0][1] == 3
    with pytest.raises(ElementError, match=f"record 1, leaf \\['{missing}'\\].*None"):
        read[1]
