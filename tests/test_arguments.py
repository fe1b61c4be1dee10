"""A keyword that a call does not have is refused with those that it has."""

import inspect
from functools import partial
from typing import Any

import numpy as np
import pytest

import cachelayer
from cachelayer import Storage, UnknownOptionError
from cachelayer.adapters import folders, npy, tfrecord
from cachelayer.support.arguments import explains_options

CALLS: list[tuple[str, str, str]] = [
    ("ref.stream", "batch_size", "did you mean global_batch_size"),
    ("ref.stream", "num_workers", "there are global_batch_size"),
    ("mixture.stream", "shuffle_buffer", "there are global_batch_size"),
    ("sampled.stream", "batch_size", "did you mean global_batch_size"),
    ("stream.map", "randm", "there are fn, rng"),
    ("ref.split", "random_state", "there are shares"),
    ("ref.sample", "n", "there are weights"),
    ("ref.windows", "size", "length"),
    ("ref.packed", "seq_len", "length"),
    ("ref.where", "expr", "there are condition"),
    ("ref.mirror", "num_proc", "there are progress"),
    ("submit", "num_proc", "workers"),
    ("cache", "shuffle", "workers"),
    ("storage.fetch", "revision", "did you mean version"),
    ("storage.derive", "filter", "keep"),
    ("storage.verify", "deep", "there are version"),
    ("Storage", "cache_dir", "local_cache"),
    ("cachelayer.wrap", "batch_size", "there are"),
    ("cachelayer.mix", "probabilities", "there are"),
    ("cachelayer.concat", "axis", "there are refs"),
    ("cachelayer.sharded", "num_shards", "there are function"),
    ("folders.from_image_folder", "batch_size", "there are"),
    ("npy.from_npy", "batch_size", "there are"),
    ("tfrecord.from_tfrecord", "shuffle_buffer", "there are"),
    ("cachelayer.ArraySpec", "optional", "nullable"),
    ("cachelayer.ImageSpec", "size", "there are nullable|there are mode"),
    ("partial(storage.append, 'd@v1', new='v2')", "data", "there are element_spec"),
    ("cachelayer.Blocks", "buffer_size", "there are"),
    ("cachelayer.Buckets", "boundaries", "there are"),
    ("ragged.to_dense", "pad_value", "did you mean value"),
    ("nullable.filled", "fill_value", "did you mean value"),
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


@pytest.mark.parametrize(("call", "word", "told"), CALLS, ids=lambda text: text)
def test_a_keyword_that_there_is_not_is_named_with_those_that_there_are(
    names: dict[str, Any], call: str, word: str, told: str
) -> None:
    with pytest.raises(UnknownOptionError, match=f"'{word}'.*{told}"):
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
def test_what_frameworks_do_not_take_is_named(framework: str) -> None:
    adapter = pytest.importorskip(f"cachelayer.adapters.{framework}", exc_type=ImportError)
    for name in FRAMEWORKS[framework]:
        with pytest.raises(UnknownOptionError, match="batch_size"):
            getattr(adapter, name)(batch_size=64)


def test_signatures_and_errors_of_other_kinds_stay_as_they_are() -> None:
    @explains_options
    def call(count: int, *, seed: int = 0) -> int:
        """Say so."""
        return count + seed

    assert (str(inspect.signature(call)), call.__doc__) == ("(count: int, *, seed: int = 0) -> int", "Say so.")
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
    ("unbatch", lambda storage: storage.cache([1], "d@v2", unbatch="no")),
    ("description", lambda storage: storage.cache([1], "d@v2", description=3)),
    ("description", lambda storage: storage.append("d@v1", new="v2", source=[1], description=b"more")),
    ("description", lambda storage: storage.derive("d@v1", new="v2", keep=[0], description=["few"])),
    ("cacheable", lambda storage: storage.cacheable("d@v2")([1, 2])),
    ("nullable", lambda _: cachelayer.ArraySpec("int64", nullable="no")),
    ("nullable", lambda _: cachelayer.ImageSpec(nullable="no")),
]


@pytest.mark.parametrize(("name", "call"), WRONG_TYPES)
def test_a_value_of_another_type_is_refused_by_name_and_changes_nothing(storage: Storage, name: str, call: Any) -> None:
    storage.submit([1, 2], "d@v1")
    storage.tag("d@v1", tag="kept")
    with pytest.raises(cachelayer.InvalidTypeError, match=name):
        call(storage)
    assert (list(storage.versions("d")), storage.tags("d")) == (["v1"], {"kept": "v1"})
