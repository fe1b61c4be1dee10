"""TFDS itself: builders that the tests make, and the data sources of their splits."""

import io
import re
import warnings
from contextlib import redirect_stdout
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from values_across import assert_same

from cachelayer import ArraySpec, ImageSpec, Ragged, Storage
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, SourceError
from cachelayer.testing import SourceTests

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow_datasets as tfds

from repository import ROOT

from cachelayer.adapters.tfds import as_source

CLASSES = ["cat", "dog", "hen"]


def image(number: int) -> np.ndarray[Any, Any]:
    return np.arange(48, dtype=np.uint8).reshape(4, 4, 3) + np.uint8(number % 200)


def example(number: int) -> dict[str, Any]:
    """Example ``number``, as a builder gives it to TFDS."""
    return {
        "image": image(number),
        "label": number % 3,
        "text": f"näme {number}",
        "nested": {"half": np.float32(number / 2), "even": number % 2 == 0},
        "texts": [f"t{k}" for k in range(number % 3)],
        "boxes": [{"x": k, "name": f"b{k}"} for k in range(number % 3)],
        "lists": [[k] * k for k in range(number % 4)],
    }


FEATURES = {
    "image": tfds.features.Image(shape=(4, 4, 3)),
    "label": tfds.features.ClassLabel(names=CLASSES),
    "text": tfds.features.Text(),
    "nested": {"half": np.float32, "even": np.bool_},
    "texts": tfds.features.Sequence(tfds.features.Text()),
    "boxes": tfds.features.Sequence({"x": np.int64, "name": tfds.features.Text()}),
    "lists": tfds.features.Sequence(tfds.features.Sequence(np.int64)),
}


ODD = np.array([0x7FC00001, 0x80000000, 1], np.uint32).view(np.float32)
NASTY: dict[str, tuple[Any, Any]] = {
    "bytes": (tfds.features.Tensor(shape=(2,), dtype=np.bytes_), np.array([b"\xff\0", b""], object)),
    "dict": ({"a": np.bool_}, {"a": np.bool_(True)}),
    "float16": (tfds.features.Tensor(shape=(2,), dtype=np.float16), np.array([np.nan, -0.0], np.float16)),
    "float32": (tfds.features.Tensor(shape=(3,), dtype=np.float32), ODD),
    "int64": (tfds.features.Tensor(shape=(2,), dtype=np.int64), np.array([2**63 - 1, -(2**63)])),
    "open": (tfds.features.Tensor(shape=(None, None), dtype=np.uint8, encoding="bytes"), np.ones((2, 3), np.uint8)),
    "uint32": (tfds.features.Scalar(np.uint32), np.uint32(2**32 - 1)),
    "width": (tfds.features.Tensor(shape=(0, 3), dtype=np.float32), np.zeros((0, 3), np.float32)),
}


class Tiny(tfds.core.GeneratorBasedBuilder):  # type: ignore[misc]
    """A builder of so many examples in each split."""

    VERSION = tfds.core.Version("1.0.0")

    def __init__(self, counts: dict[str, int], features: Any = None, **options: Any) -> None:
        self.counts = counts
        self.given = features
        super().__init__(**options)

    def _info(self) -> Any:
        features = tfds.features.FeaturesDict(FEATURES if self.given is None else self.given)
        return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)

    def _split_generators(self, _: Any) -> Any:
        return {name: self._generate_examples(count) for name, count in self.counts.items()}

    def _generate_examples(self, count: int) -> Any:
        if self.given is not None:
            return ((number, {name: NASTY[name][1] for name in self.given}) for number in range(count))
        return ((number, example(number)) for number in range(count))


def builder(folder: Path, form: str = "array_record", features: Any = None, **counts: int) -> Any:
    made = Tiny(counts, features, data_dir=folder / form, file_format=form)
    made.download_and_prepare()
    return made


class TestDataSource(SourceTests):
    def source(self, count: int, folder: Path) -> Any:
        return builder(folder, train=count, test=1).as_data_source("train")

    def element(self, number: int) -> Any:
        lists = [[k] * k for k in range(number % 4)]
        return {
            "boxes": {
                "name": np.array([f"b{k}".encode() for k in range(number % 3)], object),
                "x": np.arange(number % 3),
            },
            "image": image(number),
            "label": np.int64(number % 3),
            "lists": Ragged(np.array(list(chain.from_iterable(lists)), np.int64), np.cumsum([0, *map(len, lists)])),
            "nested": {"even": np.bool_(number % 2 == 0), "half": np.float32(number / 2)},
            "text": f"näme {number}".encode(),
            "texts": np.array([f"t{k}".encode() for k in range(number % 3)], object),
        }


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return builder(tmp_path_factory.mktemp("tiny"), train=100, test=7)


def cached(folder: Path, source: Any, **options: Any) -> Any:
    return Storage(folder / "cache").cache(source, "d@v1", **options)


@pytest.mark.filterwarnings("ignore:.*is compared without this")
@pytest.mark.parametrize("form", ["array_record", "tfrecord"])
def test_the_edges_of_what_tfds_keeps_come_out_as_they_are(tmp_path: Path, form: str) -> None:
    features = {name: feature for name, (feature, _) in NASTY.items()}
    ref = cached(tmp_path, builder(tmp_path, form, features, train=1))
    assert ref.element_spec["open"] == ArraySpec("uint8", (None, None))
    (found,) = ref
    for name, (_, wanted) in NASTY.items():
        assert_same(found[name], wanted)


def test_the_data_sources_of_all_splits_are_a_dataset_each(tmp_path: Path, tiny: Any) -> None:
    refs = cached(tmp_path, tiny.as_data_source())
    assert {name: (ref.dataset_id, len(ref)) for name, ref in refs.items()} == {
        "train": ("d.train", 100),
        "test": ("d.test", 7),
    }
    known = refs["test"].metadata["tfds"]
    assert known == {"dataset": "tiny/1.0.0", "split": "test", "class_names": {"['label']": CLASSES}}


@pytest.mark.parametrize("form", ["array_record", "tfrecord"])
def test_the_names_of_classes_are_kept_of_any_file_format(tmp_path: Path, form: str) -> None:
    ref = cached(tmp_path, builder(tmp_path, form, test=3))
    wanted = {"dataset": "tiny/1.0.0", "split": "test", "class_names": {"['label']": CLASSES}}
    assert ref.metadata["tfds"] == wanted


def test_files_that_are_not_decoded_may_be_images_of_ours(tmp_path: Path, tiny: Any) -> None:
    decoders = {"image": tfds.decode.SkipDecoding()}
    source = tiny.as_data_source("test", decoders=decoders)
    raw = cached(tmp_path / "raw", source)
    assert raw.element_spec["image"] == ArraySpec(bytes)
    assert (np.asarray(Image.open(io.BytesIO(raw[5]["image"]))) == image(5)).all()

    ref = cached(tmp_path / "images", source, element_spec={**raw.element_spec, "image": ImageSpec("RGB")})
    assert (ref[5]["image"] == image(5)).all()
    assert ref.raw()[5]["image"] == raw[5]["image"]


def test_an_example_that_does_not_decode_names_its_record(tmp_path: Path, tiny: Any) -> None:
    class Failing(tfds.decode.Decoder):  # type: ignore[misc]
        def decode_example(self, example: Any) -> Any:
            decoded = self.feature.decode_example_np(example)
            if (decoded == image(70)).all():
                raise ArithmeticError("no such image")
            return decoded

    source = tiny.as_data_source("train", decoders={"image": Failing()})
    with pytest.raises(SourceError, match="record 70"):
        cached(tmp_path, source)


def test_what_is_not_one_prepared_split_is_refused_or_nothing_of_tfds(tmp_path: Path, tiny: Any) -> None:
    with pytest.raises(InvalidTypeError, match="'train'"):
        cached(tmp_path, tiny)
    with pytest.raises(InvalidArgumentError, match="download_and_prepare"):
        as_source(Tiny({"train": 1}, data_dir=tmp_path))
    with pytest.raises(InvalidArgumentError, match="leave it out"):
        as_source(tiny.as_data_source("test"), unbatch=True)
    assert as_source({"train": 1}) is None
    assert as_source({}) is None
    assert as_source([1]) is None


def test_the_page_is_right() -> None:
    page = ROOT / "docs" / "loaders.md"
    blocks = re.findall(r"```python\n(.*?)```\n(?:```text\n(.*?)```)?", page.read_text(), re.DOTALL)
    assert len(blocks) == 2
    names: dict[str, Any] = {"__name__": "page"}
    for code, output in blocks:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(code, str(page), "exec"), names)
        # TFDS says on the same way that it prepares a dataset.
        assert printed.getvalue().endswith(output)
