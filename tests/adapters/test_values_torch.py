"""Values that cross PyTorch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.utils import data
from torchdata.stateful_dataloader import StatefulDataLoader
from values_across import Row, ValuesAcross, assert_same

from cachelayer import ArraySpec, DataRef, InvalidTypeError, Ragged, Storage
from cachelayer.adapters.torch import BatchSampler, Sampler, loader, to_torch
from cachelayer.records import tree
from cachelayer.records.spec import RaggedSpec
from cachelayer.records.tree import leaves


def read(dataset: Any) -> Iterator[Any]:
    """The items as a ref has them."""
    spec = dataset._ref.element_spec
    for item in dataset:
        yield tree.packer(spec)(map(_leaf, [leaf for _, leaf in leaves(spec)], tree.flatten_like(spec, item)))


def _leaf(spec: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return array[()] if (array := value.numpy()).ndim == 0 else array
    if not isinstance(value, list):
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


class TestTorch(ValuesAcross):
    row = Row("torch", out=to_torch, read=read, options=spec)


SMALL = ["bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu"]


@pytest.mark.parametrize("dtype", SMALL)
def test_every_pattern_of_a_small_float_crosses_in_items_and_batches(dtype: str, tmp_path: Any) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype))
    patterns = np.arange(256, dtype="u1" if kind.itemsize == 1 else "u2").view(kind)
    ref = Storage(tmp_path).cache([{"x": value, "y": patterns[::-1]} for value in patterns], "d", "v1")
    given = to_torch(ref)
    ways: dict[str, tuple[Any, dict[str, Any]]] = {
        "items": (given, {}),
        "batches": (data.DataLoader(given, batch_size=100), {"unbatch": True}),
    }
    for name, (source, options) in ways.items():
        again = Storage(tmp_path).cache(source, name, "v1", **options)
        assert again.element_spec == ref.element_spec
        for got, wanted in zip(again, ref, strict=True):
            assert_same(got, wanted)


@pytest.mark.parametrize("dtype", ["int4", "uint4", "float4_e2m1fn", "float8_e3m4", "complex"])
def test_a_dtype_that_torch_has_not_is_refused_before_anything_is_read(dtype: str, tmp_path: Any) -> None:
    kind = np.dtype(getattr(ml_dtypes, dtype, dtype))
    ref = Storage(tmp_path).cache([{"x": np.zeros(2, kind)}], "d", "v1")
    if dtype == "complex":
        assert to_torch(ref)[0]["x"].dtype == torch.complex128
        return
    with pytest.raises(InvalidTypeError, match=rf"leaf \['x'\] has dtype {kind}, which PyTorch does not have"):
        to_torch(ref)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_dtype_that_torch_has_not_is_refused_with_the_fields_to_choose(workers: int, tmp_path: Any) -> None:
    element = {"n": 1, "meta": {"when": np.datetime64("2026-01-01", "s"), "url": "a"}, "took": np.timedelta64(1, "s")}
    ref = Storage(tmp_path).cache([element] * 4, "d", "v1")
    for use in (to_torch, lambda ref: loader(ref.stream(2), num_workers=workers)):
        with pytest.raises(InvalidTypeError, match=r"\['when'\] has dtype datetime64.*fields\('n', 'meta/url'\)"):
            use(ref)
    chosen = loader(ref.fields("n", "meta/url").stream(2), num_workers=workers)
    assert next(iter(chosen))["meta"] == {"url": ["a", "a"]}
    converted = ref.stream(2).map(lambda element: {"when": element["meta"]["when"].astype(int)})
    assert next(iter(loader(converted, num_workers=workers)))["when"].dtype == torch.int64


def test_batches_of_our_own_with_lists_that_may_be_rows_or_columns_are_refused(tmp_path: Any) -> None:
    rows = [{"x": np.array(["a", "b"], object)}, {"x": np.array(["c", "d"], object)}]
    spec = {"x": ArraySpec(str, (2,))}
    ref: DataRef[Any] = Storage(tmp_path).cache(rows, "d", "v1", element_spec=spec)
    whole = data.DataLoader(to_torch(ref), batch_size=None, sampler=[[0, 1]])
    with pytest.raises(InvalidTypeError, match="DataRef"):
        Storage(tmp_path).cache(whole, "again", "v1", unbatch=True)
    assert len(Storage(tmp_path).cache(ref.stream(2), "again", "v1", unbatch=True, element_spec=spec)) == 2


ORDERS: dict[str, Any] = {
    "whole reads": lambda ref: {"batch_size": None, "sampler": BatchSampler(ref, 4, seed=1)},
    "our records": lambda ref: {"batch_size": 4, "sampler": Sampler(ref, seed=1)},
}


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
@pytest.mark.parametrize(
    ("order", "workers", "every"),
    [("whole reads", 2, 3), ("whole reads", 0, 1), ("our records", 2, 1), ("our records", 0, 1)],
)
def test_a_stateful_data_loader_goes_on_in_the_middle_of_any_epoch(
    order: str, workers: int, every: int, tmp_path: Any
) -> None:
    ref = Storage(tmp_path).cache(np.arange(21), "d", "v1")

    def loaded() -> Any:
        options = ORDERS[order](ref)
        return options["sampler"], StatefulDataLoader(
            to_torch(ref), num_workers=workers, snapshot_every_n_steps=every, **options
        )

    def epoch(sampler: Any, batches: Any, number: int) -> Iterator[Any]:
        sampler.set_epoch(number)
        return (batch.tolist() for batch in batches)

    sampler, batches = loaded()
    list(epoch(sampler, batches, 0))
    second = epoch(sampler, batches, 1)
    for _ in range(2):
        next(second)
    state, rest = batches.state_dict(), list(second)
    sampler, batches = loaded()
    batches.load_state_dict(state)
    assert list(epoch(sampler, batches, 1)) == rest
    assert len(rest) == 4


@pytest.mark.filterwarnings("ignore:'set_vital' is deprecated")
def test_a_stateful_data_loader_refuses_the_state_of_other_records(tmp_path: Any) -> None:
    states = []
    for name in ("one", "other"):
        ref = Storage(tmp_path).cache(np.arange(9) + len(name), name, "v1")
        batches = StatefulDataLoader(to_torch(ref), batch_size=None, sampler=BatchSampler(ref, 4, seed=1))
        next(iter(batches))
        states.append(batches.state_dict())
    batches.load_state_dict(states[0])
    with pytest.raises(ValueError, match="another stream: digest is"):
        next(iter(batches))


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_dtypes_of_ml_dtypes_come_in_by_lists_and_dicts_too(tmp_path: Path, name: str) -> None:
    storage = Storage(tmp_path)
    rows = torch.arange(6.0).reshape(3, 2).to(getattr(torch, name))
    expected = np.arange(6.0).reshape(3, 2)
    for number, source in enumerate([list(rows), {"x": rows}, [{"x": row} for row in rows], iter(rows), [[rows]]]):
        ref = storage.submit(source, "rows", f"v{number}")
        leaves = [leaf for element in ref for _, leaf in tree.leaf_values(element)]
        assert {leaf.dtype.name for leaf in leaves} == {name}
        np.testing.assert_array_equal(np.concatenate(leaves).reshape(3, 2).astype(float), expected)
