"""PyTorch in and out, against PyTorch and torchdata themselves."""

import gc
import itertools
import json
import multiprocessing
import os
import pickle
import random
import re
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import ml_dtypes
import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from forks import importing
from hypothesis import given, settings
from hypothesis import strategies as st
from pages import run_page
from PIL import Image
from samples import examples
from torch.testing._internal.distributed import fake_pg  # noqa: F401 - PyTorch has its backend then
from torch.utils import data
from torchdata.stateful_dataloader import StatefulDataLoader
from values_across import Row, ValuesAcross, assert_same

import cachelayer
from cachelayer import (
    ArraySpec,
    Blocks,
    DataRef,
    InvalidTypeError,
    JsonSpec,
    Nullable,
    Ragged,
    RaggedSpec,
    Sparse,
    SparseSpec,
    Storage,
)
from cachelayer.adapters.torch import BatchSampler, Sampler, loader, tensors, to_torch
from cachelayer.builds.as_source import as_source
from cachelayer.specs import tree
from cachelayer.specs.schema import Schema
from cachelayer.specs.tree import leaves
from cachelayer.testing import FailingSourceTests, ResumableSinkTests, SourceTests
from cachelayer.testing.loops import BATCH, ORDERS, LoopTests
from cachelayer.testing.loops import RECORDS as RECORDS_OF_LOOPS
from cachelayer.testing.sinks import STREAMS

# Forks beside threads are what DataLoader does, and what these tests are about.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    "ignore:os.fork.. was called:RuntimeWarning",
    "ignore:'set_vital' is deprecated:UserWarning",  # torchdata 0.11 calls it
)
RECORDS = 60


def item(number: int) -> dict[str, Any]:
    return {
        "image": torch.full((2, 3), number, dtype=torch.bfloat16),
        "label": number,
        "name": f"n{number}",
        "pair": (torch.tensor(number / 3), torch.arange(2) + number),
    }


def stored(number: int) -> dict[str, Any]:
    """The item as it is read from the cache."""
    return item(number) | {
        "image": np.full((2, 3), number, ml_dtypes.bfloat16),
        "label": np.int64(number),
        "pair": (np.float32(number / 3), np.arange(2) + number),
    }


class Items(data.Dataset[Any]):
    """Items, of which number 17 may raise an error."""

    def __init__(self, count: int, error: Exception | None = None) -> None:
        self.count = count
        self.error = error

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, number: int) -> Any:
        if self.error is not None and number == 17:
            raise self.error
        return item(number)


class Stream(data.IterableDataset[Any]):
    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset

    def __iter__(self) -> Iterator[Any]:
        return (self.dataset[number] for number in range(len(self.dataset)))


# In.


class TestDataset(FailingSourceTests):
    # PyTorch's loaders take a StopIteration of an item for the end.
    named = "17|after 1 "

    def source(self, count: int, folder: Path) -> Any:
        return Items(count, self.error)

    def element(self, number: int) -> Any:
        return stored(number)


class TestIterableDataset(TestDataset):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        return Stream(Items(count, self.error))


class TestUnbatchedLoader(TestDataset):
    seeks = False

    def source(self, count: int, folder: Path) -> Any:
        # Each tensor of each element travels from a worker by a file of its own: seconds for thousands.
        return data.DataLoader(Items(count, self.error), batch_size=None, num_workers=2 if count < 100 else 0)


class TestBatchedLoader(TestDataset):
    seeks = False
    options: ClassVar = {"unbatch": True}

    def source(self, count: int, folder: Path) -> Any:
        return data.DataLoader(Items(count, self.error), batch_size=17, num_workers=2)

    def element(self, number: int) -> Any:
        # A DataLoader's own collate makes lists of tuples.
        return stored(number) | {"pair": list(stored(number)["pair"])}


class TestTensorDataset(SourceTests):
    def source(self, count: int, folder: Path) -> Any:
        return data.TensorDataset(torch.arange(3 * count).view(count, 3), torch.arange(count).to(torch.bfloat16))

    def element(self, number: int) -> Any:
        return np.arange(3) + 3 * number, np.asarray(number, ml_dtypes.bfloat16)


@pytest.fixture(autouse=True, scope="module")
def _forks() -> Iterator[None]:
    with importing("torch.utils.data", "cachelayer.adapters.torch"):
        yield


def test_tensors_of_any_kind_are_stored_by_value(storage: Storage) -> None:
    base = torch.arange(6.0, requires_grad=True)
    conjugate = torch.tensor([1 + 2j, 3 - 1j]).conj()
    given = {"grad": base * 2, "strided": base[::2], "expanded": torch.ones(1).expand(4), "conj": conjugate}
    element = storage.cache(data.DataLoader([given], batch_size=None), "d@v1")[0]
    for name, tensor in given.items():
        assert element[name].tolist() == tensor.tolist()
    rows = base.view(3, 2).to(torch.bfloat16)
    for number, source in enumerate([rows, list(rows), {"x": rows}, iter(rows)]):
        leaves = [leaf for row in storage.submit(source, f"rows@v{number}") for _, leaf in tree.leaf_values(row)]
        assert {leaf.dtype for leaf in leaves} == {np.dtype(ml_dtypes.bfloat16)}
        assert [leaf.tolist() for leaf in leaves] == [[0, 1], [2, 3], [4, 5]]


@pytest.mark.parametrize(
    "bad",
    [
        torch.eye(3).to_sparse(),
        torch.empty(3, device="meta"),
        torch.nested.nested_tensor([torch.ones(2), torch.ones(1)], layout=torch.jagged),
    ],
)
def test_a_tensor_that_numpy_cannot_hold_is_refused_with_its_leaf(storage: Storage, bad: Any) -> None:
    for good in range(2):
        elements = [{"x": torch.ones(3)}] * good + [{"x": bad}]
        with pytest.raises(cachelayer.ElementError, match=rf"record {good}, leaf \['x'\]"):
            storage.cache(data.DataLoader(elements, batch_size=None), "d@v1")


class Saying(data.IterableDataset[Any]):
    """Thirty elements, of which it says that they are forty."""

    def __len__(self) -> int:
        return 40

    def __iter__(self) -> Iterator[Any]:
        return iter([torch.tensor(number) for number in range(30)])


def test_a_length_is_a_promise_of_a_dataset_and_a_hint_of_its_loader(storage: Storage) -> None:
    with pytest.raises(cachelayer.SourceError, match="ended after 30 elements, but its length is 40"):
        storage.cache(Saying(), "d@v1")
    assert len(storage.cache(data.DataLoader(Saying(), batch_size=None), "d@v1")) == 30
    # A chain has a length only if its parts have one, and says so by a TypeError.
    assert len(storage.cache(data.ChainDataset([Stream(Items(3)), Stream(Items(4))]), "d@v2")) == 7


def test_batches_that_have_not_a_row_for_each_sample_are_refused(storage: Storage) -> None:
    for collate in (lambda items: torch.stack(items, 1), list):
        batches = data.DataLoader(list(torch.ones(8, 6)), batch_size=4, collate_fn=collate)
        with pytest.raises(cachelayer.SourceError, match="its length is 8"):
            storage.cache(batches, "d@v1", unbatch=True)


class Pictures(data.Dataset[Any]):
    """Pictures of Pillow, opened by name or made of a mode, with their number."""

    def __init__(self, *names: str) -> None:
        self.names = names

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: int) -> Any:
        name = self.names[number]
        return {"image": Image.open(name) if "/" in name else picture(name, number), "label": number}


def picture(mode: str, number: int = 0) -> Any:
    return Image.fromarray(np.arange(60, dtype=np.uint8).reshape(4, 5, 3) + number).convert(mode)


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "CMYK", "I", "F", "1"])
def test_pictures_are_stored_as_files_that_lose_nothing(storage: Storage, mode: str) -> None:
    ref: Any = storage.cache(Pictures(mode, mode, mode), f"mode-{mode}@v1")
    assert ref.raw().element_spec == {"image": cachelayer.ImageSpec(mode), "label": ArraySpec("int64")}
    made = [np.asarray(picture(mode, number)).tolist() for number in range(3)]
    assert [row["image"].tolist() for row in ref] == made
    assert storage.cache(Stream(Pictures(mode)), f"iterated-{mode}@v1").element_spec == ref.element_spec


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # as people leave pictures open
def test_pictures_that_were_opened_are_their_files_and_palettes_are_colours(storage: Storage, tmp_path: Path) -> None:
    picture("RGB").save(tmp_path / "a.jpg")
    picture("RGB").quantize(8).save(tmp_path / "b.png")
    names = [str(tmp_path / name) for name in ("a.jpg", "b.png")]
    ref: Any = storage.cache(Pictures(*names), "opened@v1")
    assert [row["image"] for row in ref.raw()] == [Path(name).read_bytes() for name in names]
    assert ref[1]["image"].tolist() == np.asarray(Image.open(names[1]).convert("RGB")).tolist()
    odd = Pictures(*["L"] * 70, "RGB")
    with pytest.raises(cachelayer.ElementError, match=r"record 70, leaf \['image'\].*ImageSpec\('RGB'\)"):
        storage.cache(odd, "odd@v1")
    spec = {"image": cachelayer.ImageSpec("RGB"), "label": ArraySpec("int64")}
    assert storage.cache(odd, "odd@v1", element_spec=spec)[0]["image"].shape == (4, 5, 3)


def test_datasets_of_hugging_face_are_left_to_their_adapter() -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_dict({"x": [1, 2]})
    for source in (rows.with_format("torch"), rows.to_iterable_dataset().with_format("torch")):
        assert as_source(source).kind == "datasets"


# Out.


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Storage(tmp_path_factory.mktemp("torch")).submit(Items(RECORDS), "items@v1", shard_bytes=400)


def plain(value: Any) -> Any:
    """Tensors and arrays as lists."""
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(child) for child in value]
    return value.tolist() if hasattr(value, "tolist") else value


def test_a_dataset_gives_elements_batches_and_parts(ref: Any) -> None:
    dataset = to_torch(ref)
    assert len(dataset) == RECORDS
    assert plain(dataset[7]) == plain(ref[7])
    assert dataset[7]["image"].dtype == torch.bfloat16
    assert dataset[7]["label"].dtype == torch.int64
    for indices in ([5, 3, -1], np.array([5, 3, -1]), torch.tensor([5, 3, -1]), []):
        assert plain(dataset[indices]) == plain(ref.read(list(indices)))
        assert plain(dataset.__getitems__(list(indices))) == plain(ref.__getitems__(list(indices)))
    assert plain(list(dataset[10:20:3])) == plain(list(ref[10:20:3]))
    with pytest.raises(cachelayer.RecordIndexError):
        dataset[RECORDS]


def test_tensors_share_the_memory_of_arrays_that_may_be_written(ref: Any) -> None:
    batch = ref.read([3, 4])
    converted = tensors(batch)
    assert converted["image"].data_ptr() == batch["image"].ctypes.data
    assert converted["label"].data_ptr() == batch["label"].ctypes.data
    array = np.arange(3)
    array.setflags(write=False)
    tensors(array)[0] = 7
    assert array.tolist() == [0, 1, 2]


def read(dataset: Any) -> Iterator[Any]:
    """The items as a ref has them."""
    spec = dataset._ref.element_spec
    for item in dataset:
        schema = Schema.of(spec)
        yield schema.pack(list(map(_leaf, [leaf.spec for leaf in schema.leaves], schema.flatten(item))))


def _leaf(spec: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return array[()] if (array := value.numpy()).ndim == 0 else array
    if not isinstance(value, list) or isinstance(spec, JsonSpec):
        return value
    if isinstance(spec, RaggedSpec):
        rows = [np.asarray(row) for row in value]
        flat = np.concatenate(rows) if rows else np.empty(0, spec.dtype)
        return Ragged(flat, np.cumsum([0, *map(len, rows)]))
    return np.array(value, object)


def spec(ref: DataRef[Any]) -> dict[str, Any]:
    """What tells lists that are rows from lists that are structure."""
    has_width = any(isinstance(leaf.dtype, np.dtype) and leaf.dtype.kind == "U" for _, leaf in leaves(ref.element_spec))
    return {} if has_width else {"element_spec": ref.element_spec}


class TestTorchValues(ValuesAcross):
    row = Row("torch", out=to_torch, read=read, options=spec)


def test_leaves_of_unknown_shape_are_lists_of_tensors_in_batches(storage: Storage) -> None:
    spec = {
        "rows": RaggedSpec("f8", (2, None)),
        "sparse": SparseSpec("f8", (2, 2)),
        "empty": ArraySpec("f4", (None, 4)),
    }
    elements = [
        {
            "rows": Ragged(np.arange(2.0), np.array([0, i, 2])),
            "sparse": Sparse([[i, 1]], [5.0], [2, 2]),
            "empty": np.zeros((i, 4), "f4"),
        }
        for i in range(2)
    ]
    dataset = to_torch(storage.cache(elements, "d@v1", element_spec=spec))
    batch, items = dataset[[0, 1]], dataset.__getitems__([0, 1])
    assert [item["sparse"].to_dense().tolist() for item in items] == batch["sparse"].to_dense().tolist()
    assert batch["sparse"].to_dense().tolist() == [[[0, 5], [0, 0]], [[0, 0], [0, 5]]]
    assert plain(batch["rows"]) == [plain(item["rows"]) for item in items] == [[[], [0, 1]], [[0], [1]]]
    assert [tuple(leaf.shape) for leaf in batch["empty"]] == [(0, 4), (1, 4)]
    nullable = to_torch(storage.cache([{"x": np.int32(4)}, {"x": None}], "nullable@v1"))[[0, 1]]["x"]
    assert isinstance(nullable, Nullable)
    assert (nullable.values.tolist(), nullable.valid.tolist()) == ([4, 0], [True, False])


def test_nulls_are_filled_as_in_arrays(storage: Storage) -> None:
    rows = [
        {"q": 1.5, "n": 3, "text": "a", "tokens": [1, 2], "who": {"age": 3}, "grid": np.ones((2, 2), "f4")},
        {"q": None, "n": None, "text": None, "tokens": None, "who": None, "grid": None},
    ]
    ref = storage.cache(rows, "rows@v1")
    for batch in (to_torch(ref)[[0, 1]], next(iter(loader(ref.stream(2)))), tensors(ref.read([0, 1]))):
        assert batch["q"].filled(0).tolist() == [1.5, 0]
        assert np.isnan(batch["q"].filled(np.nan)[1].item())
        assert torch.equal(batch["n"].filled(-1), torch.tensor([3, -1]))
        assert batch["text"].filled("none") == ["a", "none"]
        assert batch["who"]["age"].filled(9).tolist() == [3, 9]
        assert batch["grid"].filled(2).tolist() == [[[1, 1], [1, 1]], [[2, 2], [2, 2]]]
        assert [len(row) for row in batch["tokens"].filled(torch.zeros(4))] == [2, 4]
        assert {name: part.to_list() for name, part in batch.items()} == {
            name: [part.tolist() if isinstance(part, np.ndarray) else part, None] for name, part in rows[0].items()
        }
        assert {name: part[np.array([1, 0])].to_list()[0] for name, part in batch.items()} == rows[1]
    for fractions in (0.5, np.nan, np.inf):
        for batch in (ref.read([0, 1]), to_torch(ref)[[0, 1]]):
            with pytest.raises(InvalidTypeError, match="int64"):
                batch["n"].filled(fractions)


SMALL = [
    *("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    pytest.param("float8_e8m0fnu", marks=pytest.mark.needs("torch>=2.7")),
]


@pytest.mark.parametrize("dtype", SMALL)
def test_every_pattern_of_a_small_float_crosses_in_items_and_batches(dtype: str, storage: Storage) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype))
    patterns = np.arange(256, dtype="u1" if kind.itemsize == 1 else "u2").view(kind)
    ref = storage.cache([{"x": value, "y": patterns[::-1]} for value in patterns], "d@v1")
    given = to_torch(ref)
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "items": (given, {}),
        "batches": (data.DataLoader(given, batch_size=100), {"unbatch": True}),
    }
    for name, (source, options) in ways.items():
        again = storage.cache(source, f"{name}@v1", **options)
        assert again.element_spec == ref.element_spec
        for got, wanted in zip(again, ref, strict=True):
            assert_same(got, wanted)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float4_e2m1fn", "float8_e3m4", "M8[s]"])
def test_a_dtype_that_torch_has_not_is_refused_with_the_fields_to_choose(dtype: str, storage: Storage) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    element = {"n": 1, "meta": {"odd": np.zeros(2, kind), "url": "a"}, "took": np.timedelta64(1, "s")}
    ref: Any = storage.cache([element] * 4, "d@v1")
    for use in (to_torch, lambda ref: loader(ref.stream(2)), lambda ref: loader(ref.stream(2), num_workers=1)):
        with pytest.raises(InvalidTypeError, match=rf"\['odd'\] is {re.escape(kind.name)}.*fields\('n', 'meta/url'\)"):
            use(ref)
    assert next(iter(loader(ref.fields("n", "meta/url").stream(2))))["meta"] == {"url": ["a", "a"]}
    converted = ref.stream(2).map(lambda element: {"odd": element["meta"]["odd"].astype(int)})
    assert next(iter(loader(converted)))["odd"].dtype == torch.int64


def test_batches_of_our_own_with_lists_that_may_be_rows_or_columns_are_refused(storage: Storage) -> None:
    rows = [{"x": np.array(["a", "b"], object)}, {"x": np.array(["c", "d"], object)}]
    spec = {"x": ArraySpec(str, (2,))}
    ref: DataRef[Any] = storage.cache(rows, "d@v1", element_spec=spec)
    whole = data.DataLoader(to_torch(ref), batch_size=None, sampler=[[0, 1]])
    with pytest.raises(InvalidTypeError, match="DataRef"):
        storage.cache(whole, "again@v1", unbatch=True)
    assert len(storage.cache(ref.stream(2), "again@v1", unbatch=True, element_spec=spec)) == 2


# Streams.


class TestLoader(ResumableSinkTests):
    workers: ClassVar[int] = 0

    def sink(self, stream: Any) -> Any:
        return loader(stream, num_workers=self.workers)

    def state(self, sink: Any, iterator: Any) -> Any:
        assert sink.state_dict() == sink.get_state()
        assert sink.state_dict()["position"] == iterator.get_state()["position"]
        return sink.state_dict()

    def restored(self, make: Any, state: Any) -> Any:
        again = self.sink(make())
        again.load_state_dict(state)
        return iter(again)


class TestLoaderWithWorkers(TestLoader):
    # Workers read steps, whatever a stream is of.
    without: ClassVar = STREAMS.keys() - {"epochs", "mapped", "packed", "endless from a start", "mixture"}
    workers = 2


def labels(batches: Any) -> list[int]:
    return [label for batch in batches for label in batch["label"].tolist()]


def test_elements_have_no_workers_and_batches_may_have_spawned_ones(ref: Any) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError, match="num_workers"):
        loader(ref.stream(), num_workers=1)
    stream = ref.stream(16, shuffle=True, seed=4)
    assert labels(loader(stream, num_workers=1, multiprocessing_context="spawn")) == labels(stream)


def with_process(element: dict[str, Any]) -> dict[str, Any]:
    return {"label": element["label"], "process": os.getpid()}


def test_workers_stay_from_epoch_to_epoch_whatever_was_left_early_or_restored(ref: Any) -> None:
    stream = ref.stream(16, shuffle=True, seed=4, remainder="wrap").map(with_process)
    loaders = [loader(stream, num_workers=2), loader(stream)]
    processes = set[int]()

    def both(count: int | None = None) -> None:
        for batch, expected in itertools.islice(zip(*loaders, strict=True), count):
            assert batch["label"].tolist() == expected["label"].tolist()
            processes.update(batch["process"].tolist())

    both()
    both(3)
    both()
    state = loaders[0].state_dict()
    both(2)
    for each in loaders:
        each.load_state_dict(state)
    both()
    for each in loaders:
        each.set_epoch(7)
    both()
    assert len(processes) == 2
    del each
    loaders.clear()
    gc.collect()
    assert not processes & {child.pid for child in multiprocessing.active_children()}


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_measures_its_last_iteration(ref: Any, workers: int) -> None:
    batches = loader(ref.stream(16, shuffle=True, seed=4), num_workers=workers)
    assert str(batches.stats()) == "nothing read yet"
    for _ in range(2):
        rows = sum(len(batch["label"]) for batch in batches)
        stats = batches.stats()
        assert rows == len(ref)
        assert 0 < stats.waited <= stats.seconds


class TestLoopsOfLoader(LoopTests):
    workers: ClassVar[int] = 0

    def loops(self, **order: Any) -> Any:
        return loader(numbers(RECORDS_OF_LOOPS).stream(BATCH, **order), num_workers=self.workers)


class InOneOrder:
    """Loops of workers, which read whatever order there is."""

    @pytest.fixture
    def order(self) -> dict[str, Any]:
        return ORDERS["shuffled"]


class TestLoopsOfLoaderWithWorkers(InOneOrder, TestLoopsOfLoader):
    workers = 2
    stops = range(2, 4)


class TestLoopsOfSampler(LoopTests):
    per_epoch = RECORDS_OF_LOOPS
    stops = range(1, 3 * RECORDS_OF_LOOPS + 1)

    def loops(self, **order: Any) -> Any:
        return Sampler(numbers(RECORDS_OF_LOOPS), **{"shuffle": False, **order})


class TestLoopsOfBatchSampler(LoopTests):
    def loops(self, **order: Any) -> Any:
        return BatchSampler(numbers(RECORDS_OF_LOOPS), BATCH, **{"shuffle": False, **order})


class TestLoopsOfDataLoader(LoopTests):
    """A ``DataLoader`` of PyTorch; the state is that of the sampler, which does not know of the loop."""

    is_told_the_loop = False

    def loops(self, **order: Any) -> Any:
        ref = numbers(RECORDS_OF_LOOPS)
        return data.DataLoader(to_torch(ref), BATCH, sampler=Sampler(ref, **{"shuffle": False, **order}))

    def set_epoch(self, loops: Any, epoch: int) -> None:
        loops.sampler.set_epoch(epoch)

    def state(self, loops: Any) -> Any:
        return loops.sampler.state_dict()

    def restore(self, loops: Any, state: Any) -> None:
        loops.sampler.load_state_dict(state)


class TestLoopsOfStatefulDataLoader(LoopTests):
    """torchdata's, whose state tells the end of a loop, with the samplers' own."""

    options: ClassVar[dict[str, Any]] = {"batch_size": BATCH}
    test_the_structure_of_a_state_is_always_the_same = None  # type: ignore[assignment]

    def sampler(self, ref: Any, **order: Any) -> Any:
        return Sampler(ref, **order)

    def loops(self, **order: Any) -> Any:
        ref = numbers(RECORDS_OF_LOOPS)
        sampler = self.sampler(ref, **{"shuffle": False, **order})
        return StatefulDataLoader(to_torch(ref), sampler=sampler, **self.options)

    def set_epoch(self, loops: Any, epoch: int) -> None:
        loops.sampler.set_epoch(epoch)


class TestLoopsOfStatefulDataLoaderOfBatches(TestLoopsOfStatefulDataLoader):
    options: ClassVar = {"batch_size": None}

    def sampler(self, ref: Any, **order: Any) -> Any:
        return BatchSampler(ref, BATCH, **order)


class TestLoopsOfStatefulDataLoaderWithWorkers(InOneOrder, TestLoopsOfStatefulDataLoader):
    # Workers ask for the numbers of a short epoch at once.
    test_an_epoch_that_is_left_early_is_not_used_up = None  # type: ignore[assignment]
    test_the_rest_of_an_epoch_that_is_left_early_after_a_restore_is_not_lost = None  # type: ignore[assignment]
    test_loops_that_all_end_early_get_a_warning = None  # type: ignore[assignment]
    options: ClassVar = {"batch_size": BATCH, "num_workers": 2, "snapshot_every_n_steps": 2}
    stops = range(2, 5)
    # Its iter() asks ahead.
    test_an_iterator_that_nothing_was_asked_of_is_no_epoch = None  # type: ignore[assignment]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
@pytest.mark.needs("torch>=2.13")  # Older ones save with other arguments.
def test_a_distributed_checkpoint_holds_a_state_whatever_steps_it_leaves_out(ref: Any, tmp_path: Path) -> None:
    stream = ref.stream(16, shuffle=True, seed=4)
    for saved, restored in itertools.product((False, True), repeat=2):
        batches, again = (loader(stream.without(steps=[1] * leaves_out)) for leaves_out in (saved, restored))
        next(iter(batches))
        folder = str(tmp_path / f"{saved} {restored}")
        dcp.save({"data": batches}, checkpoint_id=folder, no_dist=True)
        dcp.load({"data": again}, checkpoint_id=folder, no_dist=True)
        assert labels(again) == labels(
            stream[step] for step in range(1, len(stream)) if step > 1 or not (saved or restored)
        )


@pytest.mark.parametrize("workers", [0, 1])
def test_a_loader_that_failed_goes_on_with_the_batch_that_it_has_not_handed_out(
    ref: Any, workers: int, tmp_path: Path
) -> None:
    done = tmp_path / "done"

    def fails_once(batch: Any) -> Any:
        if batch["label"][0] == 32 and not done.exists():
            done.touch()
            raise OSError("gone")
        return batch

    batches = loader(ref.stream(16).map_batches(fails_once), num_workers=workers)
    iterator = iter(batches)
    seen = labels(itertools.islice(iterator, 2))
    with pytest.raises(OSError, match="gone"):
        next(iterator)
    assert batches.state_dict()["position"] == 32
    assert seen + labels(iterator) == list(range(len(ref)))


class Unpicklable(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(f"{one} and {two}")


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("has_iterator", [False, True])
def test_a_loader_takes_the_order_of_a_state_whole(ref: Any, workers: int, has_iterator: bool) -> None:
    saved = loader(ref.stream(10, shuffle=Blocks(records=5, window=8, lanes=4), seed=1))
    begun = iter(saved)
    next(begun)
    state = saved.state_dict()
    restored = loader(ref.stream(10, shuffle="blocks", seed=1), num_workers=workers)
    # A framework may have called iter() before it restores.
    iterator = iter(restored) if has_iterator else None
    restored.load_state_dict(state)
    assert restored.state_dict() == state
    rest = list(restored if iterator is None else iterator)
    assert [batch["label"].tolist() for batch in rest] == [batch["label"].tolist() for batch in begun]
    # The next epoch has the order of the state too.
    assert restored.state_dict() == saved.state_dict()
    first, expected = next(iter(restored)), next(iter(saved))
    assert first["label"].tolist() == expected["label"].tolist()


def test_samplers_take_the_order_of_a_state_whole(ref: Any) -> None:
    saved, restored = (BatchSampler(ref, 10, shuffle=each, seed=1) for each in (Blocks(5, 8, 4), "blocks"))
    begun = iter(saved)
    next(begun)
    iterator = iter(restored)
    restored.load_state_dict(saved.state_dict())
    assert restored.state_dict() == saved.state_dict()
    assert list(iterator) == list(begun)


def test_an_endless_loader_advances_to_a_newer_version_within_a_loop(storage: Storage) -> None:
    rows = [{"label": number, "tokens": np.arange(number % 5)} for number in range(53)]
    storage.submit(rows[:40], "grows@v1")
    storage.append("grows@v1", "v2", rows[40:])
    options: dict[str, Any] = {"shuffle": True, "seed": 1}
    for name, view in (("label", lambda ref: ref.fields("label")), ("tokens", lambda ref: ref.packed("tokens", 8))):
        old, new = (view(storage.fetch(f"grows@{version}")) for version in ("v1", "v2"))
        plain = iter(old.stream(4, num_epochs=None, **options))
        batches = loader(old.stream(4, num_epochs=None, **options))
        for before in (0, 2, 3):
            for step, batch in enumerate(batches if before else []):
                assert batch[name].tolist() == next(plain)[name].tolist()
                if step + 1 == before:
                    break
            plain.advance_to(new)
            batches.advance_to(new)
            again = loader(new.stream(4, num_epochs=None, **options))
            again.load_state_dict(batches.state_dict())
            expected = [next(plain)[name].tolist() for _ in range(20)]
            for going_on in (batches, again):
                assert [batch[name].tolist() for batch in itertools.islice(going_on, 20)] == expected
            # Back to the state is possible too.
            assert batches.state_dict() == again.state_dict()
            batches.load_state_dict(json.loads(json.dumps(again.state_dict())))
        with pytest.raises(cachelayer.InvalidArgumentError, match="num_epochs=None"):
            loader(old.stream(4, **options)).advance_to(new)
    in_workers = loader(old.stream(4, num_epochs=None, shuffle=True, seed=3), num_workers=2)
    plain = iter(old.stream(4, num_epochs=None, shuffle=True, seed=3))
    for newer in (None, new):
        if newer is not None:
            plain.advance_to(newer)
            in_workers.advance_to(newer)
        for batch in itertools.islice(in_workers, 20):
            assert batch[name].tolist() == next(plain)[name].tolist()


def unlucky(element: dict[str, Any]) -> dict[str, Any]:
    if element["label"] in (3, 40):
        raise Unpicklable(1, 2) if element["label"] == 40 else ValueError("three")
    return element


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.filterwarnings("ignore:record .* stands in for it:cachelayer.CacheLayerWarning")
def test_failures_in_workers_are_counted_and_listed_in_the_main_process(ref: Any, workers: int) -> None:
    stream = ref.stream(16, shuffle=True, seed=4).map(unlucky, on_error="replace")
    iterator = iter(loader(stream, num_workers=workers))
    expected = iter(stream)
    for found, want in zip(iterator, expected, strict=True):
        assert plain(found) == plain(want)
        shown = [(each.record, each.position, each.stand_in) for each in expected.failures]
        assert [(each.record, each.position, each.stand_in) for each in iterator.failures] == shown
    errors = {each.record: each.error for each in iterator.failures}
    assert str(errors[3]) == "three"
    assert "1 and 2" in str(errors[40])
    assert all("raised by a function passed to map()" in error.__notes__[0] for error in errors.values())
    stream = ref.stream(16).map(unlucky, on_error="replace")
    iterator = iter(loader(stream, num_workers=workers))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(cachelayer.CacheLayerWarning):
            next(iterator)
    # Nothing was handed out, so the same batch comes now.
    assert plain(list(iterator)) == plain(list(stream))
    few = iter(loader(ref.stream(16).map(unlucky, on_error="replace", max_failures=1), num_workers=workers))
    with pytest.raises(cachelayer.ElementError, match=r"ref\.exclude\(\[3, 40\]\)"):
        list(few)
    assert few.get_state()["position"] == 32


# Samplers.


def numbers(n: int) -> Any:
    return cachelayer.wrap(list(range(n)), identity="numbers")


def order(n: int, seed: int, epoch: int) -> list[int]:
    return [int(number) for number in numbers(n).stream(shuffle=True, seed=seed, num_epochs=epoch + 1, start=epoch * n)]


@given(st.integers(1, 40), st.integers(1, 5), st.integers(0, 2**64 - 1), st.integers(0, 3))
@settings(deadline=None, max_examples=examples(60))
def test_samplers_of_all_ranks_give_each_record_once_in_our_order(n: int, ranks: int, seed: int, epoch: int) -> None:
    samplers = [Sampler(numbers(n), ranks, rank, seed=seed, drop_last=False) for rank in range(ranks)]
    for sampler in samplers:
        sampler.set_epoch(epoch)
    found = [list(sampler) for sampler in samplers]
    assert [len(sampler) for sampler in samplers] == list(map(len, found))
    together = [number for step in itertools.zip_longest(*found) for number in step if number is not None]
    assert together == order(n, seed, epoch)
    assert {sampler.state_dict()["position"] for sampler in samplers} == {(epoch + 1) * n}


@given(
    n=st.integers(1, 40),
    share=st.integers(1, 2),
    ranks=st.tuples(*[st.sampled_from([1, 2, 4])] * 2),
    stop=st.integers(0, 40),
    options=st.fixed_dictionaries({"drop_last": st.booleans(), "epoch": st.integers(0, 3)}),
)
@settings(deadline=None, max_examples=examples(60))
def test_batch_samplers_give_the_batches_of_the_stream_and_go_on_on_another_number_of_ranks(
    n: int, share: int, ranks: tuple[int, int], stop: int, options: dict[str, Any]
) -> None:
    size, epoch, drop = 4 * share, options["epoch"], options["drop_last"]

    def samplers(count: int) -> list[Any]:
        made = [BatchSampler(numbers(n), size, count, rank, seed=5, drop_last=drop) for rank in range(count)]
        for sampler in made:
            sampler.set_epoch(epoch)
        return made

    def steps(parts: list[list[list[int]]]) -> list[list[int]]:
        return [[number for part in step for number in part] for step in zip(*parts, strict=True)]

    stream = numbers(n).stream(
        size, shuffle=True, seed=5, num_epochs=epoch + 1, start=epoch * n, remainder="drop" if drop else "keep"
    )
    expected = [stream.record_numbers(step).tolist() for step in range(len(stream))]
    stop = stop % len(expected) if expected else 0
    first, second = map(samplers, ranks)
    assert {len(sampler) for sampler in first + second} == {len(stream)}
    begun = steps([list(itertools.islice(iter(sampler), stop)) for sampler in first])
    assert begun == expected[:stop]
    for sampler in second:
        sampler.load_state_dict(json.loads(json.dumps(first[0].state_dict())))
        sampler.set_epoch(epoch)
    assert begun + steps([list(sampler) for sampler in second]) == expected
    for sampler in second:
        sampler.set_epoch(epoch)
    assert steps([list(sampler) for sampler in second]) == expected


def test_a_stateful_data_loader_refuses_the_state_of_other_records(storage: Storage) -> None:
    states = []
    for name in ("one", "other"):
        ref = storage.cache(np.arange(9) + len(name), f"{name}@v1")
        batches = StatefulDataLoader(to_torch(ref), batch_size=None, sampler=BatchSampler(ref, 4, seed=1))
        next(iter(batches))
        states.append(batches.state_dict())
    batches.load_state_dict(states[0])
    with pytest.raises(ValueError, match="another stream: digest is"):
        next(iter(batches))


@pytest.mark.parametrize("rank", [0, 1])
def test_rank_and_world_are_those_of_torch_distributed(rank: int) -> None:
    # This backend of PyTorch's own knows rank and world, and opens no connection.
    torch.distributed.init_process_group("fake", store=torch.distributed.HashStore(), rank=rank, world_size=2)
    try:
        assert list(Sampler(numbers(10), seed=6)) == order(10, 6, 0)[rank::2]
    finally:
        torch.distributed.destroy_process_group()


def test_a_stream_that_gives_all_ranks_the_same_is_named() -> None:
    torch.distributed.init_process_group("fake", store=torch.distributed.HashStore(), rank=0, world_size=2)
    try:
        with pytest.warns(cachelayer.CacheLayerWarning, match="shard="):
            loader(numbers(10).stream(2))
        assert len(loader(numbers(10).stream(2, shard=(0, 2)))) == 5
    finally:
        torch.distributed.destroy_process_group()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda ref: Sampler(ref, 7, 0), "60 records do not divide into steps of 7 over 7 ranks: pass drop_last"),
        (lambda ref: BatchSampler(ref, 16, 2, 0), "60 records do not divide into steps of 16"),
        (lambda ref: BatchSampler(ref, 15, 2, 0, drop_last=True), "not divisible by the shard count 2"),
        (lambda ref: Sampler(ref, 2, 2), re.escape("(2, 2): the index must lie in [0, 2)")),
        (lambda ref: Sampler(ref, 0, 0), "num_replicas"),
        (lambda ref: Sampler(ref, seed=-1), "seed"),
    ],
)
def test_arguments_that_cannot_be_are_refused_with_their_name(ref: Any, make: Any, message: str) -> None:
    with pytest.raises(cachelayer.InvalidArgumentError, match=message):
        make(ref)


@pytest.mark.needs("torch>=2.13")  # Older ones warn of themselves.
def test_the_page_shows_what_happens() -> None:
    run_page("torch.md")


def test_batches_of_a_loader_that_are_cached_are_named(storage: Storage) -> None:
    batches = data.DataLoader(data.TensorDataset(torch.arange(6)), batch_size=2, shuffle=True)
    with pytest.warns(cachelayer.CacheLayerWarning, match="shuffle=True, batch_size=2"):
        assert len(storage.cache(batches, "batches@v1")) == 3
    assert len(storage.cache(batches, "rows@v1", unbatch=True)) == 6


# Worker processes.

FULL = """
import sys
import numpy as np
import cachelayer
from cachelayer.adapters.torch import loader

with open("/dev/shm/other", "wb") as other:
    other.truncate(0)
    try:
        other.write(bytes(int(sys.argv[1])))
    except OSError:
        pass
batches = loader(cachelayer.wrap(np.zeros((64, 100_000), "u1"), identity="x").stream(16), num_workers=2)
try:
    list(batches)
except cachelayer.StorageError as error:
    print("refused", "shm" in str(error))
"""


@pytest.mark.parametrize("taken", [500_000, 2_000_000])
def test_workers_without_shared_memory_are_an_error_and_never_wait(taken: int) -> None:
    mount = "mount -t tmpfs -o size=1m tmpfs /dev/shm"
    if subprocess.run(["unshare", "-rm", "sh", "-c", mount], capture_output=True, check=False).returncode:
        pytest.skip("this system has no mounts of one's own")
    command = ["unshare", "-rm", "sh", "-c", f'{mount} && exec "$@"', "sh", sys.executable, "-c", FULL, str(taken)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.stdout == "refused True\n", done.stderr


def test_what_no_process_can_send_is_an_error() -> None:
    stream = numbers(8).stream(4).map_batches(lambda batch: {"n": batch, "fn": lambda: 0})
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError), match="lambda"):
        list(loader(stream, num_workers=1))


# Random numbers.


def seeds_all(n: Any, rng: Any) -> float:
    torch.manual_seed(int(rng.integers(2**32)))
    return float(n) + torch.rand(1).item()


GLOBAL: dict[str, Callable[..., Any]] = {
    "random": lambda n: float(n) + random.random(),
    "numpy": lambda n: float(n) + np.random.rand(),
    "torch": lambda n: float(n) + torch.rand(1).item(),
}


@pytest.mark.parametrize("name", GLOBAL)
@pytest.mark.parametrize("batched", [True, False])
def test_functions_that_draw_from_global_generators_get_one_warning(name: str, batched: bool) -> None:
    stream = numbers(20).stream(4 if batched else None)
    fn = GLOBAL[name]
    with pytest.warns(cachelayer.CacheLayerWarning, match=f"global generator of {name}.*rng='torch'") as caught:
        assert len(list(stream.map(fn))) == len(stream)
    assert len(caught) == 1
    if batched:
        with pytest.warns(cachelayer.CacheLayerWarning, match=name):
            list(stream.map_batches(lambda batch: batch * fn(1)))
    with pytest.warns(cachelayer.CacheLayerWarning, match="torch"):
        list(numbers(9).stream(3, seed=1).map(seeds_all, rng=True))


@pytest.mark.parametrize("threads", [0, 4])
def test_a_torch_generator_has_the_same_numbers_everywhere(threads: int) -> None:
    def drawn_by_torch(n: Any, generator: Any) -> dict[str, Any]:
        return {"n": n, "noise": torch.rand(2, generator=generator, dtype=torch.float64).numpy()}

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    stream = numbers(31).stream(8, shuffle=True, seed=3).map(drawn_by_torch, rng="torch", threads=threads)
    batches = [batch["noise"].tolist() for batch in stream]
    assert torch.equal(torch.rand(3), expected)
    assert stream[2]["noise"].tolist() == batches[2]
    halves = [numbers(31).stream(8, shuffle=True, seed=3, shard=(half, 2)) for half in (0, 1)]
    first = [half.map(drawn_by_torch, rng="torch")[0]["noise"].tolist() for half in halves]
    assert first[0] + first[1] == batches[0]
    numpy_too = numbers(31).stream(8, shuffle=True, seed=3).map(lambda n, rng: rng.integers(2**63), rng=True)[0]
    seeded = [torch.rand(2, generator=torch.Generator().manual_seed(int(n)), dtype=torch.float64) for n in numpy_too]
    assert torch.stack(seeded).tolist() == batches[0]


def test_samplers_and_loaders_leave_out_excluded_records(tmp_path: Path) -> None:
    storage = cachelayer.Storage(tmp_path)
    storage.cache(range(20), "d@v1")
    storage.erase("d@v1", records=[1, 4, 5, 6, 7], reason="asked for", progress=False)
    ref = storage.fetch("d@v1", erased="exclude")
    left = [n for n in range(20) if n not in (1, 4, 5, 6, 7)]
    batches = [[n for n in range(at, at + 4) if n in left] for at in range(0, 20, 4)]
    assert list(Sampler(ref, shuffle=False)) == left
    assert len(Sampler(ref, shuffle=False)) == len(left)
    sampler = Sampler(ref, shuffle=False)
    iterator = iter(sampler)
    assert [next(iterator) for _ in range(3)] == left[:3]
    resumed = Sampler(ref, shuffle=False)
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == left[3:]
    assert list(BatchSampler(ref, 4, shuffle=False)) == batches
    for workers in (0, 2):
        assert [batch.tolist() for batch in loader(ref.stream(4), num_workers=workers)] == batches
