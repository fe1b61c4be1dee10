"""Documents in every kind of view, the elements that each view has, and the values of their leaves."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import cachelayer
from cachelayer import ArraySpec, Nullable, Ragged, Sparse, Storage

SPEC = {
    "id": ArraySpec("int64"),
    "tokens": ArraySpec("int32", (None,)),
    "meta": {"weights": ArraySpec("float32", (None,)), "text": ArraySpec(str)},
    "maybe": ArraySpec("uint16", (None,), nullable=True),
}
BUILDS: dict[str, dict[str, Any]] = {
    "one": {},
    "many": {"shard_bytes": 1500},
    "zstd": {"shard_bytes": 4000, "compression": "zstd"},
}
KINDS = ["one", "many", "zstd", "slice", "backwards", "chosen", "fields", "joined", "joined fields"]
LEAVES: dict[str, tuple[str, Callable[[dict[str, Any]], Any]]] = {
    "tokens": ("tokens", lambda each: each["tokens"]),
    "meta/weights": ("weights", lambda each: each["meta"]["weights"]),
    "meta/text": ("text", lambda each: np.frombuffer(each["meta"]["text"].encode(), np.uint8)),
    "maybe": ("maybe", lambda each: np.empty(0, np.uint16) if each["maybe"] is None else each["maybe"]),
}
"""The key of each leaf in rows, and its values in an element."""
STORED: dict[str, Any] = {}
"""The elements of each version, by its reference."""


def element(number: int) -> dict[str, Any]:
    rng = np.random.default_rng(number)
    length = int(rng.integers(0, 30)) if number % 5 else 0
    tokens = rng.integers(1, 1000, length).astype(np.int32)
    maybe = None if number % 3 == 0 else rng.integers(1, 99, number % 7).astype(np.uint16)
    text = "".join(rng.choice(list("aé雪"), number % 9))
    weights = (tokens / 2).astype(np.float32)
    return {"id": number, "tokens": tokens, "meta": {"weights": weights, "text": text}, "maybe": maybe}


ELEMENTS = [element(number) for number in range(90)]


def document_views(folder: Path) -> dict[str, tuple[Any, list[dict[str, Any]]]]:
    """Every kind of view, and the elements that it has."""
    storage = Storage(folder)
    built = {
        name: storage.cache(ELEMENTS, f"docs@{name}", element_spec=SPEC, **options) for name, options in BUILDS.items()
    }
    many = built["many"]
    chosen = [5, 88, 3, 3, 40, 0, 41]
    fields = ("tokens", "meta", "maybe")
    some = [{name: each[name] for name in fields} for each in ELEMENTS]
    others = [{"score": np.float32(1), **each} for each in some[10:40]]
    other_spec = {"score": ArraySpec("float32"), **{name: SPEC[name] for name in fields}}
    other = storage.cache(others, "docs@other", element_spec=other_spec, shard_bytes=1000)
    both = cachelayer.concat([many.fields(*fields)[::-1], other.fields(*fields)])
    STORED.update({ref.reference: ELEMENTS for ref in built.values()} | {other.reference: ELEMENTS[10:40]})
    return {name: (ref, ELEMENTS) for name, ref in built.items()} | {
        "slice": (many[7:81], ELEMENTS[7:81]),
        "backwards": (many[::-2], ELEMENTS[::-2]),
        "chosen": (many.select(chosen), [ELEMENTS[number] for number in chosen]),
        "fields": (many.fields(*fields), some),
        "joined": (cachelayer.concat([built["zstd"], many[10:20]])[2:95], (ELEMENTS + ELEMENTS[10:20])[2:95]),
        "joined fields": (both[:110], (some[::-1] + some[10:40])[:110]),
    }


def values_of(elements: list[dict[str, Any]], leaf: str) -> list[Any]:
    """The values of a leaf in each element."""
    return [LEAVES[leaf][1](each) for each in elements]


def plain(value: Any) -> Any:
    """An element or a batch as lists and numbers."""
    if isinstance(value, dict):
        return {key: plain(child) for key, child in value.items()}
    if isinstance(value, (tuple, list)):
        return [plain(child) for child in value]
    if isinstance(value, Nullable):
        return [plain(value.values), plain(value.valid)]
    if isinstance(value, Ragged):
        return value.to_list()
    if isinstance(value, Sparse):
        return value.to_dense().tolist()
    return value.tolist() if hasattr(value, "tolist") else value


def same(found: Any, expected: Any) -> None:
    """Raise unless two batches of arrays are the same."""
    assert found.keys() == expected.keys()
    for key, values in expected.items():
        if isinstance(values, dict):
            same(found[key], values)
        else:
            assert found[key].dtype == values.dtype, key
            assert np.array_equal(found[key], values), key
