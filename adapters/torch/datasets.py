"""Read PyTorch datasets and loaders as sources, and give PyTorch records as a dataset."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch.utils import data

from cachelayer.adapters.frameworks.stream_or_ref import check_ref, warn_of_steps
from cachelayer.adapters.torch.as_tensors import check_dtypes, tensors
from cachelayer.builds.array_source import array_source, columns_of
from cachelayer.builds.batches import snapshot
from cachelayer.builds.source import Source, by_number, length_of, read_once, source_of_items
from cachelayer.builds.unbatched_source import unbatched
from cachelayer.errors import InvalidTypeError
from cachelayer.objects.local import located
from cachelayer.records.selection import record_numbers
from cachelayer.records.value_conversion import as_leaf
from cachelayer.specs.schema import Schema
from cachelayer.specs.spec import ArraySpec, ImageSpec, LeafSpec
from cachelayer.specs.tree import Tree
from cachelayer.support.arguments import explains_options
from cachelayer.support.user_warnings import warn
from cachelayer.views.view import View

# Datasets of PyTorch as sources.


def as_source(obj: Any, *, unbatch: bool = False, element_spec: Tree | None = None) -> Source | None:
    """Return the source of a tensor, ``Dataset``, ``IterableDataset`` or ``DataLoader``; None for anything else.

    Raises:
        InvalidTypeError: if a dataset has neither a length nor its own order, or the rows of batches are unknown.

    Examples:
        >>> import torch
        >>> from torch.utils.data import TensorDataset
        >>> dataset = TensorDataset(torch.arange(6).view(3, 2), torch.tensor([0, 1, 0]))
        >>> ref = cachelayer.Storage(folder).cache(dataset, "pairs@v1")
        >>> ref[1]
        (array([2, 3]), np.int64(1))
    """
    if isinstance(obj, torch.Tensor) and obj.ndim and not unbatch:
        return array_source(as_leaf(obj))
    # A subclass may make other elements of its tensors.
    if type(obj) is data.TensorDataset and not unbatch:
        return array_source(columns_of(obj.tensors))
    rows: int | None = None
    if isinstance(obj, data.DataLoader):
        batches, rows = _lengths_of(obj)
        items = map(snapshot, _loaded(obj))
        if not unbatch and obj.batch_size is not None:
            shuffle = ["shuffle=True"] if isinstance(obj.sampler, data.RandomSampler) else []
            warn_of_steps("DataLoader", [*shuffle, f"batch_size={obj.batch_size} (pass batch_size=None)"])
        source = Source("torch", read_once(items), length=batches)
        if unbatch and obj.batch_size is None and isinstance(obj.dataset, _RefDataset):
            raise InvalidTypeError(
                "unbatch=True: a list in batches of to_torch() may be rows or columns: pass the DataRef itself"
            )
    elif isinstance(obj, data.IterableDataset):
        items = map(snapshot, obj)
        source = Source("torch", read_once(items), length=length_of(obj))
    elif _is_image_folder(obj):
        source = _source_of_image_folder(obj)
    elif isinstance(obj, data.Dataset):
        # Arrays for tensors, and files for pictures.
        source = source_of_items(obj, fetch=partial(by_number, obj, convert=snapshot))
    else:
        return None
    return unbatched(source, rows, declared=element_spec) if unbatch else source


def _source_of_image_folder(folder: Any) -> Source:
    """Return the source of the files of torchvision's ``ImageFolder`` and their classes, without transforms."""
    if folder.transform is not None or folder.target_transform is not None:
        warn(
            "the transforms of the ImageFolder are not cached: files and labels are, and loader(stream.map(fn)) or "
            "the training program applies fn to what is read"
        )
    files = [(located(path), label) for path, label in folder.samples]
    source = source_of_items(files, fetch=partial(by_number, files, convert=_file_and_label))
    # torchvision turns no image.
    spec = ImageSpec("RGB", upright=False), ArraySpec("int64")
    metadata = {"classes": list(folder.classes)}
    return replace(source, kind=type(folder).__name__, items=folder.samples, element_spec=spec, metadata=metadata)


def _file_and_label(sample: tuple[str, int]) -> tuple[bytes, int]:
    path, label = sample
    return Path(path).read_bytes(), label


def _is_image_folder(obj: Any) -> bool:
    """Return whether a dataset is an ``ImageFolder`` that reads files as torchvision does."""
    folder = sys.modules.get("torchvision.datasets.folder")
    if folder is None or not isinstance(obj, folder.ImageFolder):
        return False
    reads_items = type(obj).__getitem__ is folder.DatasetFolder.__getitem__
    return reads_items and obj.loader in (folder.default_loader, folder.pil_loader)


def _loaded(loader: data.DataLoader) -> Iterator[Any]:
    """Yield what a loader yields. Its workers start with the first item, and end with this generator."""
    yield from loader


def _lengths_of(loader: data.DataLoader) -> tuple[int | None, int | None]:
    """Return the number of items of a loader, and of rows in all of them, as far as they are known."""
    # PyTorch takes the length of an IterableDataset for a hint. A sampler need not know its length.
    if isinstance(loader.dataset, data.IterableDataset) or (items := length_of(loader)) is None:
        return None, None
    if loader.batch_size is None:
        return items, None
    return items, items * loader.batch_size if loader.drop_last else length_of(loader.sampler)


# Records for PyTorch.


@explains_options
def to_torch(ref: View[Any]) -> data.Dataset:
    """Return a map-style ``Dataset`` of tensors: ``dataset[3]``, a batch ``dataset[[3, 1, 2]]``, ``__getitems__``.

    A list of numbers, or a mask, returns a batch in one read, which is the fast way: pass ``batch_size=None`` and a
    :class:`BatchSampler` as ``sampler`` to a ``DataLoader``. ``__getitems__`` is for loaders that collate.

    Args:
        ref: the records.

    Returns:
        A picklable Dataset. Leaves are tensors that share memory with the data that was read. A str or bytes leaf stays
        as it is, and becomes a list in batches. A leaf of unknown shape becomes a list of tensors in batches. A Sparse
        becomes a sparse COO tensor.

    Raises:
        InvalidTypeError: if the argument is not a ref, or PyTorch does not have the dtype of a leaf.

    Examples:
        >>> import numpy as np
        >>> from cachelayer.adapters.torch import to_torch
        >>> rows = [{"x": np.float32(n), "name": f"n{n}"} for n in range(4)]
        >>> dataset = to_torch(cachelayer.wrap(rows, identity="rows"))
        >>> dataset[3]
        {'x': tensor(3.), 'name': 'n3'}
        >>> dataset[[2, 0]]
        {'x': tensor([2., 0.]), 'name': ['n2', 'n0']}
    """
    check_ref(ref)
    check_dtypes(ref.element_spec)
    return _RefDataset(ref)


class _RefDataset(data.Dataset):  # type: ignore[misc]
    def __init__(self, ref: View[Any]) -> None:
        self._ref = ref
        self._schema = Schema.of(ref.element_spec)
        self._stacks = not self._schema.marks and all(_stacks(leaf.spec) for leaf in self._schema.leaves)

    def __len__(self) -> int:
        return len(self._ref)

    def __getitem__(self, index: Any) -> Any:
        """Return an element for a number, or a batch for several numbers or a mask."""
        if isinstance(index, slice):
            return _RefDataset(self._ref[index])
        if isinstance(index, (str, bytes)) or not isinstance(index, Iterable) or getattr(index, "ndim", None) == 0:
            return tensors(self._ref[index])
        return tensors(self._ref.read(record_numbers(index, len(self._ref))))

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Return the elements with these numbers; they are views of one batch."""
        if not self._stacks:
            return [tensors(element) for element in self._ref.__getitems__(indices)]
        # To convert a batch and take it apart takes half the time of converting each element.
        numbers = record_numbers(indices, len(self._ref))
        columns = map(tensors, self._schema.flatten(self._ref.read(numbers)))
        rows = [column if isinstance(column, list) else column.unbind(0) for column in columns]
        return self._schema.pack_rows(rows, {}, len(numbers))

    def __repr__(self) -> str:
        return f"to_torch({self._ref!r})"


def _stacks(leaf: LeafSpec) -> bool:
    """Return whether row i of a batch's leaf is the leaf of element i."""
    return isinstance(leaf, ArraySpec) and None not in leaf.shape
