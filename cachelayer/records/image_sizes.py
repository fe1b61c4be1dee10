"""The sizes to which a reader has images decoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cachelayer.arguments import boolean, integer
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.records import tree
from cachelayer.records.leaf_names import leaf_numbers
from cachelayer.records.spec import ImageSize, ImageSpec
from cachelayer.records.tree import Tree

# Readers would take a size that is too large for a damaged file.
_MOST_PIXELS = (1 << 16) - 1


def image_size(size: Any, crop: Any) -> ImageSize:
    """Return the size that a user asks for."""
    if isinstance(size, (str, bytes)) or not isinstance(size, Sequence):
        raise InvalidTypeError(f"size {size!r} of type {type(size).__name__}: pass (height, width)")
    if len(size) != 2:
        raise InvalidArgumentError(f"size {size!r} has {len(size)} numbers: pass (height, width)")
    height, width = (integer(f"size {size!r}:", number, least=1) for number in size)
    if max(height, width) > _MOST_PIXELS:
        raise InvalidArgumentError(f"size {size!r}: height and width must be at most {_MOST_PIXELS}")
    return ImageSize(height, width, crop=boolean("crop", crop))


def image_leaves(spec: Tree, names: Sequence[str]) -> list[int]:
    """Return the numbers of the images of and below some names; of all images if there are no names."""
    images = [number for number, (_, leaf) in enumerate(tree.leaves(spec)) if isinstance(leaf, ImageSpec)]
    if not images:
        raise InvalidArgumentError(
            f"there are no images to decode: elements are {tree.describe(spec)}. Declare them when you cache, with "
            "element_spec= and ImageSpec()"
        )
    if not names:
        return images
    chosen = [number for name in names for number in _images_below(spec, name, images)]
    return sorted({*chosen})


def _images_below(spec: Tree, name: str, images: Sequence[int]) -> list[int]:
    found = [number for number in leaf_numbers(spec, [name]) if number in images]
    if not found:
        raise InvalidArgumentError(f"{name!r} is no image: elements are {tree.describe(spec)}")
    return found


def sized_spec(spec: Tree, sizes: Mapping[int, ImageSize]) -> Tree:
    """Return a spec whose images of these leaf numbers are decoded to these sizes."""
    sized = {path: sizes[number] for number, (path, _) in enumerate(tree.leaves(spec)) if number in sizes}
    return tree.map_structure(spec, lambda path, leaf: leaf.sized(sized[path]) if path in sized else leaf)
