"""A keyword that a call does not have is refused with those that it has, and with what to write for a peer's word."""

from __future__ import annotations

import inspect
from functools import partial
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import Storage, UnknownOptionError
from cachelayer.adapters import folders, npy, tfrecord
from cachelayer.arguments import explains_options

CALLS: list[tuple[str, str, str]] = [
    ("ref.stream", "batch_size", "global_batch_size=64"),
    ("ref.stream", "num_workers", "prefetch="),
    ("ref.stream", "shuffle_buffer", "shuffle=True"),
    ("ref.stream", "drop_last", "remainder='drop'"),
    ("ref.stream", "world_size", "shard="),
    ("mixture.stream", "batch_size", "global_batch_size=64"),
    ("sampled.stream", "batch_size", "global_batch_size=64"),
    ("stream.map", "num_workers", "threads="),
    ("stream.map", "batched", "map_batches"),
    ("stream.map", "randm", "there are fn, rng"),
    ("ref.head", "size", "n=5"),
    ("ref.split", "random_state", "seed="),
    ("ref.split", "test_size", "shares="),
    ("ref.folds", "n_splits", "k="),
    ("ref.folds", "groups", "by="),
    ("ref.sample", "n", "ref.head"),
    ("ref.sample", "random_state", "seed="),
    ("ref.windows", "size", "length="),
    ("ref.windows", "overlap", "stride="),
    ("ref.packed", "seq_len", "length="),
    ("ref.padded", "pad_value", "value="),
    ("ref.read", "columns", "fields="),
    ("ref.to_arrow", "columns", "ref.fields"),
    ("ref.where", "expr", "condition="),
    ("ref.count_by", "column", "field="),
    ("ref.mirror", "num_proc", "there are progress"),
    ("submit", "num_proc", "workers="),
    ("submit", "batch_size", r"ref.stream\(64\)"),
    ("cache", "shuffle", r"ref.stream\(64, shuffle=True"),
    ("storage.fetch", "revision", "version="),
    ("storage.derive", "filter", "keep="),
    ("storage.derive", "where", "keep="),
    ("storage.diff", "on", "key="),
    ("ref.rolling", "on", "order="),
    ("ref.rolling", "window_size", "length="),
    ("storage.rewrite", "seed", "shuffle_seed="),
    ("storage.verify", "deep", "there are dataset_id"),
    ("Storage", "cache_dir", "local_cache="),
    ("cachelayer.wrap", "batch_size", r"ref.stream\(64\)"),
    ("cachelayer.mix", "probabilities", "mix"),
    ("cachelayer.concat", "axis", "there are refs"),
    ("cachelayer.sharded", "num_shards", "there are function"),
    ("folders.from_image_folder", "batch_size", r"ref.stream\(64\)"),
    ("npy.from_npy", "batch_size", r"ref.stream\(64\)"),
    ("tfrecord.from_tfrecord", "shuffle_buffer", r"ref.stream\(64, shuffle=True"),
    ("cachelayer.ArraySpec", "optional", "nullable="),
    ("cachelayer.ImageSpec", "size", "there are nullable|there are mode"),
    ("cachelayer.AudioSpec", "sample_rate", "sampling_rate="),
    ("cachelayer.Nullable", "mask", "valid=~mask"),
    ("partial(storage.cache, [1])", "name", "dataset_id="),
    ("partial(storage.append, 'd@v1', new='v2')", "data", "source="),
    ("cachelayer.Blocks", "buffer_size", "shuffle=True"),
    ("cachelayer.Buckets", "boundaries", "there are"),
    ("ragged.to_dense", "pad_value", "value=0"),
    ("nullable.filled", "fill_value", "value=0"),
]


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    storage = Storage(tmp_path_factory.mktemp("arguments"))
    ref = storage.submit({"x": np.arange(100)}, "d@v1")
    return {
        "storage": storage,
        "submit": partial(storage.submit, [1], "other@v1"),
        "cache": partial(storage.cache, [1], "other@v1"),
        "ref": ref,
        "stream": ref.stream(4),
        "mixture": cachelayer.mix([(ref, 1)]),
        "sampled": ref.sample("x", seed=1),
        "ragged": cachelayer.Ragged(np.arange(3), np.array([0, 3])),
        "nullable": cachelayer.Nullable(np.arange(3), np.ones(3, bool)),
        "cachelayer": cachelayer,
        "partial": partial,
        "Storage": Storage,
        "folders": folders,
        "npy": npy,
        "tfrecord": tfrecord,
    }


@pytest.mark.parametrize(("call", "word", "cure"), CALLS, ids=lambda text: text)
def test_a_keyword_that_there_is_not_is_named_with_what_to_write(
    names: dict[str, Any], call: str, word: str, cure: str
) -> None:
    with pytest.raises(UnknownOptionError, match=f"'{word}'.*{cure}"):
        eval(call, names)(**{word: 3})
    with pytest.raises(TypeError):
        eval(call, names)(**{word: 3})


FRAMEWORKS = {
    "torch": ["loader", "to_torch", "Sampler", "BatchSampler"],
    "tensorflow": ["to_tf"],
    "jax": ["global_batches"],
    "keras": ["to_keras"],
    "grain": ["iter_dataset", "Sampler"],
    "pandas": ["to_pandas"],
    "polars": ["to_polars"],
    "pyarrow": ["to_arrow", "from_parquet", "from_csv", "from_json", "from_ipc"],
    "huggingface": ["to_datasets"],
    "webdataset": ["from_webdataset"],
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_frameworks_take_is_decided_by_the_stream(framework: str) -> None:
    adapter = pytest.importorskip(f"cachelayer.adapters.{framework}", exc_type=ImportError)
    for name in FRAMEWORKS[framework]:
        with pytest.raises(UnknownOptionError, match=r"stream\(64\)|global_batch_size"):
            getattr(adapter, name)(batch_size=64)


def test_what_has_no_random_access_says_where_to_call_it(names: dict[str, Any]) -> None:
    for kind in ("mixture", "sampled"):
        for attribute in ("split", "where", "head", "to_arrow", "folds"):
            with pytest.raises(AttributeError, match=f"'{attribute}'.*before"):
                getattr(names[kind], attribute)
        assert not hasattr(names[kind], "__array__")


def test_signatures_and_errors_of_other_kinds_stay_as_they_are() -> None:
    @explains_options
    def call(count: int, *, seed: int = 0) -> int:
        """Say so."""
        return count + seed

    assert (str(inspect.signature(call)), call.__doc__) == ("(count: 'int', *, seed: 'int' = 0) -> 'int'", "Say so.")
    assert call(1, seed=2) == 3
    with pytest.raises(TypeError, match="missing"):
        call()  # type: ignore[call-arg]
    assert str(inspect.signature(cachelayer.View.split)).startswith("(self, shares")
    assert "shuffle" in inspect.signature(cachelayer.View.stream).parameters


# What is neither True nor False, or no text, would be taken for one without a word.
WRONG_TYPES: list[tuple[str, Any]] = [
    ("force", lambda storage: storage.delete("d@v1", force="no")),
    ("dry_run", lambda storage: storage.gc(grace=0, dry_run="no")),
    ("dry_run", lambda storage: storage.repair("d@v1", dry_run="no")),
    ("allow_empty", lambda storage: storage.derive("d@v1", new="v2", keep=[0], allow_empty="no")),
    ("unbatch", lambda storage: storage.cache([1], "d", "v2", unbatch="no")),
    ("description", lambda storage: storage.cache([1], "d", "v2", description=3)),
    ("description", lambda storage: storage.append("d@v1", new="v2", source=[1], description=b"more")),
    ("description", lambda storage: storage.derive("d@v1", new="v2", keep=[0], description=["few"])),
    ("cacheable", lambda storage: storage.cacheable("d", "v2")([1, 2])),
    ("nullable", lambda _: cachelayer.ArraySpec("int64", nullable="no")),
    ("nullable", lambda _: cachelayer.ImageSpec(nullable="no")),
]


@pytest.mark.parametrize(("name", "call"), WRONG_TYPES)
def test_a_value_of_another_type_is_refused_by_name_and_changes_nothing(storage: Storage, name: str, call: Any) -> None:
    storage.submit([1, 2], "d", "v1")
    storage.tag("d@v1", tag="kept")
    with pytest.raises(cachelayer.InvalidTypeError, match=name):
        call(storage)
    assert (list(storage.versions("d")), storage.tags("d")) == (["v1"], {"kept": "v1"})
