"""Read TensorFlow Datasets as sources: builders, and data sources, which can be read without TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from cachelayer.builds.as_source import Adapted
from cachelayer.builds.source import Source, source_of_items
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.records.value_conversion import leaf_spec
from cachelayer.specs import tree
from cachelayer.specs.spec import ArraySpec, RaggedSpec
from cachelayer.specs.tree import Tree
from cachelayer.support.extras import packages_of

with packages_of("tfds", "this needs TensorFlow Datasets"):
    import tensorflow_datasets as tfds
    from tensorflow_datasets.core.data_sources.base import BaseDataSource
    from tensorflow_datasets.core.decode import DeserializeMethod

__all__ = ["as_source"]

METADATA = "tfds"
_RECORDS_AT_ONCE = 64


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Adapted:
    """Return the source of a data source, or of a prepared builder with one split; None for anything else.

    A dict of data sources, as ``builder.as_data_source()`` returns it, becomes one source for each split.

    Raises:
        InvalidArgumentError: if a builder has no data yet.
        InvalidTypeError: if a builder has several splits, or a feature cannot be stored.

    Examples:
        >>> import numpy as np
        >>> import tensorflow_datasets as tfds
        >>> class Cubes(tfds.core.GeneratorBasedBuilder):
        ...     VERSION = tfds.core.Version("1.0.0")
        ...     def _info(self):
        ...         features = tfds.features.FeaturesDict({"cube": np.int64})
        ...         return tfds.core.DatasetInfo(builder=self, features=features, disable_shuffling=True)
        ...     def _split_generators(self, manager):
        ...         return {"train": self._generate_examples()}
        ...     def _generate_examples(self):
        ...         return ((number, {"cube": number**3}) for number in range(4))
        >>> builder = Cubes(data_dir=folder / "tfds", file_format="array_record")
        >>> builder.download_and_prepare()
        Downloading and preparing dataset ...
        >>> ref = cachelayer.Storage(folder / "cache").cache(builder, "cubes@v1")
        >>> [int(element["cube"]) for element in ref]
        [0, 1, 8, 27]
    """
    if isinstance(obj, Mapping) and obj and all(isinstance(part, BaseDataSource) for part in obj.values()):
        return {str(name): part for name, part in obj.items()}
    if not isinstance(obj, (tfds.core.DatasetBuilder, BaseDataSource)):
        return None
    if unbatch:
        raise InvalidArgumentError("unbatch=True: the examples of TFDS are elements already; leave it out")
    data = _only_split(obj) if isinstance(obj, tfds.core.DatasetBuilder) else obj
    if isinstance(data, BaseDataSource):
        return _source_of_examples(data, element_spec)
    from cachelayer.adapters.tensorflow import source_of_pipeline

    return replace(source_of_pipeline(data, element_spec), metadata=_metadata(obj.info, next(iter(obj.info.splits))))


def _only_split(builder: Any) -> Any:
    """Return the only split of a builder: a data source if its files have random access, else a ``tf.data.Dataset``."""
    splits = list(builder.info.splits)
    if not splits:
        raise InvalidArgumentError(f"{builder.info.full_name} has no data yet: call download_and_prepare() first")
    if len(splits) > 1:
        raise InvalidTypeError(
            f"{builder.info.full_name} has the splits {', '.join(splits)}, each a dataset of its own: pass "
            f"builder.as_data_source({splits[0]!r}) or builder.as_dataset(split={splits[0]!r}) for one of them, or "
            "builder.as_data_source() for all"
        )
    try:
        return builder.as_data_source(splits[0])
    except NotImplementedError:
        # Without interleaving, examples come in the order of the files.
        config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        try:
            return builder.as_dataset(split=splits[0], read_config=config)
        except ValueError as error:
            raise InvalidTypeError(f"TFDS does not read {builder.info.full_name}: {error}") from error


def _source_of_examples(data: BaseDataSource, declared: Tree | None) -> Source:
    """Return the source of the examples of a data source, with decoders or without, in a declared spec or its own."""
    spec = declared or _spec_of(data)
    source = source_of_items(data, fetch=partial(_examples_of, data), at_once=_RECORDS_AT_ONCE)
    metadata = _metadata(data.dataset_info, data.split)
    return replace(source, kind="tfds", element_spec=spec, metadata=metadata)


def _metadata(info: Any, split: Any) -> dict[str, Any]:
    names = dict(_class_names(info.features, ""))
    return {METADATA: {"dataset": info.full_name, "split": str(split), "class_names": names}}


def _examples_of(data: BaseDataSource, numbers: Sequence[int]) -> Iterable[Any]:
    try:
        examples: Iterable[Any] = data.__getitems__(list(numbers))
    except Exception:  # noqa: BLE001
        # Reading one by one raises at the example that fails.
        examples = (data[number] for number in numbers)
    return examples


def _spec_of(source: Any) -> Tree | None:
    """Return the spec that the features imply; the first example decides the spec of leaves with their own decoder."""
    if source.deserialize_method != DeserializeMethod.DESERIALIZE_AND_DECODE:
        return None
    spec = _spec(source.dataset_info.features.get_tensor_info(), "")
    return _with_decoded(spec, source.decoders, source[0]) if source.decoders and len(source) else spec


def _spec(info: Any, path: str) -> Tree:
    """Return the spec that features imply, with keys in the order in which TFDS returns them."""
    if isinstance(info, Mapping):
        return {name: _spec(info[name], f"{path}[{name!r}]") for name in sorted(info)}
    if info.dataset_lvl:
        raise InvalidTypeError(f"leaf {path} is a dataset within an example, which is not stored: use a Sequence")
    dtype = bytes if np.dtype(info.np_dtype).kind in "OSU" else np.dtype(info.np_dtype)
    unknown = max((axis for axis, dim in enumerate(info.shape) if dim is None), default=0)
    if unknown and info.sequence_rank:
        return RaggedSpec(dtype, (None,) * (unknown + 1) + tuple(info.shape[unknown + 1 :]), ragged_rank=unknown)
    return ArraySpec(dtype, tuple(info.shape))


def _with_decoded(spec: Tree, decoders: Any, example: Any) -> Tree:
    if isinstance(decoders, Mapping) and isinstance(spec, dict):
        own = {name: _with_decoded(spec[name], decoder, example[name]) for name, decoder in decoders.items()}
        return {**spec, **own}
    return tree.map_structure(example, lambda _, value: leaf_spec(value))


def _class_names(feature: Any, path: str) -> Iterator[tuple[str, list[str]]]:
    if isinstance(feature, tfds.features.ClassLabel):
        if feature.num_classes is not None:
            yield path, list(feature.names)
    elif isinstance(feature, tfds.features.FeaturesDict):
        for name, child in feature.items():
            yield from _class_names(child, f"{path}[{name!r}]")
    elif isinstance(feature, tfds.features.Sequence):
        yield from _class_names(feature.feature, path)
