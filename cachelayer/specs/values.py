"""Values for which numpy has no type: ragged, sparse and nullable arrays."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from cachelayer.errors import InvalidArgumentError, InvalidTypeError, RecordIndexError
from cachelayer.specs import dtypes
from cachelayer.support.arguments import explains_options, integer


def _make_arrays(value: Any, *names: str) -> None:
    """Convert attributes of a frozen object to arrays."""
    for name in names:
        if not isinstance(getattr(value, name), np.ndarray):
            object.__setattr__(value, name, np.asarray(getattr(value, name)))


class NoArray:
    """A value that numpy must not convert: it would make an array of objects without an error."""

    _ADVICE = ""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NoReturn:
        """Raise, because whether the value fits into one array depends on its content."""
        raise InvalidTypeError(f"a {type(self).__name__} is not an array: {self._ADVICE}")


@dataclass(frozen=True, eq=False, repr=False)
class Ragged(NoArray):
    """Rows of different lengths, as one flat array and the places where rows begin.

    ::

        rows         [7, 8]   [9]   []   [4, 5, 6]
        values       7 8 9 4 5 6
        row_splits   0   2 3 3     6                  row i is values[row_splits[i]:row_splits[i + 1]]

    Examples:
        >>> ragged = cachelayer.Ragged([7, 8, 9, 4, 5, 6], [0, 2, 3, 3, 6])
        >>> ragged.to_list(), len(ragged), ragged[-1]
        ([[7, 8], [9], [], [4, 5, 6]], 4, array([4, 5, 6]))
        >>> cachelayer.Ragged(ragged, [0, 3, 4]).to_list()  # two levels: rows of rows
        [[[7, 8], [9], []], [[4, 5, 6]]]
    """

    values: NDArray[Any] | Nullable | Ragged
    """The rows one after another: an array of shape ``[total, ...]``; a Nullable of one if some values are null; a
    Ragged if rows are ragged too."""
    row_splits: NDArray[Any]
    """Where each row begins in the values, and the end: integers of shape ``[rows + 1]``."""
    row_shapes: NDArray[Any] | None = None
    """The dimensions of each row, if rows are arrays in which several dimensions vary, such as images: integers of
    shape ``[rows, levels]``; else None."""

    _ADVICE = "call to_dense() to pad its rows to one length, or use values, row_splits, or a row by its number"

    def __post_init__(self) -> None:
        if not isinstance(self.values, (Nullable, Ragged)):
            _make_arrays(self, "values")
        _make_arrays(self, "row_splits")

    def __len__(self) -> int:
        return max(len(self.row_splits) - 1, 0)

    def __getitem__(self, row: int) -> Any:
        """Return a row: an array, or a Ragged if the row is ragged itself.

        Examples:
            >>> ragged = cachelayer.Ragged([7, 8, 9], [0, 2, 3])
            >>> ragged[0].tolist(), [row.tolist() for row in ragged]
            ([7, 8], [[7, 8], [9]])
        """
        rows = len(self)
        row = integer("row", row)
        if not -rows <= row < rows:
            raise RecordIndexError(f"row {row} of a Ragged with {rows} rows")
        row %= rows
        start = int(self.row_splits[row])
        stop = int(self.row_splits[row + 1])
        values = _rows(self.values, start, stop)
        if self.row_shapes is None or not isinstance(values, Ragged):
            return values
        flat = values.flat_values
        shape = self.row_shapes[row].tolist()
        if isinstance(flat, Nullable):
            return Nullable(*(part.reshape(*shape, *part.shape[1:]) for part in (flat.values, flat.valid)))
        return flat.reshape(*shape, *flat.shape[1:])

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def rows(self, start: int, stop: int) -> Ragged:
        """Return some consecutive rows, without a copy of the values.

        Examples:
            >>> cachelayer.Ragged([7, 8, 9, 4, 5, 6], [0, 2, 3, 3, 6]).rows(1, 4).to_list()
            [[9], [], [4, 5, 6]]
        """
        if not len(self):
            return self
        shapes = None if self.row_shapes is None else self.row_shapes[start:stop]
        splits = self.row_splits[start : stop + 1]
        return Ragged(_rows(self.values, int(splits[0]), int(splits[-1])), splits - splits[0], shapes)

    @property
    def flat_values(self) -> Any:
        """The innermost values: an array, or a Nullable of one."""
        return self.values.flat_values if isinstance(self.values, Ragged) else self.values

    @property
    def nested_row_splits(self) -> tuple[NDArray[Any], ...]:
        """The row splits of every level, outermost first.

        Examples:
            >>> rows = cachelayer.Ragged([7, 8, 9], [0, 2, 3])
            >>> cachelayer.Ragged(rows, [0, 2]).nested_row_splits  # one row, which has two rows
            (array([0, 2]), array([0, 2, 3]))
        """
        inner = self.values.nested_row_splits if isinstance(self.values, Ragged) else ()
        return (self.row_splits, *inner)

    @classmethod
    def from_nested(cls, flat_values: NDArray[Any] | Nullable, nested_row_splits: tuple[NDArray[Any], ...]) -> Ragged:
        """Return a Ragged from its innermost values and the row splits of every level, outermost first.

        Examples:
            >>> cachelayer.Ragged.from_nested([7, 8, 9], ([0, 2], [0, 2, 3])).to_list()
            [[[7, 8], [9]]]

        Raises:
            InvalidTypeError: if there are no row splits.
        """
        values: NDArray[Any] | Nullable | Ragged = flat_values
        for row_splits in reversed(nested_row_splits):
            values = cls(values, row_splits)
        if not isinstance(values, Ragged):
            raise InvalidTypeError("nested_row_splits is empty: a Ragged needs the row splits of at least one level")
        return values

    def to_list(self) -> list[Any]:
        """Return the rows as nested lists.

        Examples:
            >>> cachelayer.Ragged([7, 8, 9], [0, 2, 2, 3]).to_list()
            [[7, 8], [], [9]]
        """
        return [_listed(row) for row in self]

    def filled(self, value: Any) -> Ragged:
        """Return the same rows with a value in place of each null within them.

        Examples:
            >>> import numpy as np
            >>> values = cachelayer.Nullable(np.array([7, 0, 9]), np.array([True, False, True]))
            >>> ragged = cachelayer.Ragged(values, [0, 2, 3])
            >>> ragged.to_list(), ragged.filled(-1).to_list()
            ([[7, None], [9]], [[7, -1], [9]])
        """
        flat = self.flat_values
        return with_flat_values(self, flat.filled(value)) if isinstance(flat, Nullable) else self

    @explains_options
    def to_dense(
        self, length: int | Sequence[int | None] | None = None, value: Any = 0, *, truncate: bool = False
    ) -> NDArray[Any]:
        """Return the rows as one array, padded at their ends.

        Args:
            length: the length of all rows; a sequence with one length for each level if there are several. None for
                the length of the longest row.
            value: the value to pad with; for strings, 0 stands for the empty string.
            truncate: cut rows that are longer than ``length`` instead of raising.

        Examples:
            >>> ragged = cachelayer.Ragged([7, 8, 9, 4, 5, 6], [0, 2, 3, 6])
            >>> ragged.to_dense().tolist()
            [[7, 8, 0], [9, 0, 0], [4, 5, 6]]
            >>> ragged.to_dense(2, value=-1, truncate=True).tolist()
            [[7, 8], [9, -1], [4, 5]]

        Returns:
            An array of shape ``[rows, length, ...]`` with the dtype of the values.

        Raises:
            InvalidArgumentError: if a row is longer and ``truncate`` is False, or the dtype cannot hold the value.
            InvalidTypeError: if a length is not an integer.
        """
        levels = len(self.nested_row_splits)
        lengths: list[Any] = list(length) if isinstance(length, (tuple, list)) else [length]
        if len(lengths) > levels:
            raise InvalidArgumentError(
                f"length {length!r} of a Ragged of {levels} levels: pass at most one for each level"
            )
        lengths = [None if wanted is None else integer("length", wanted, 0) for wanted in lengths]
        if isinstance(self.flat_values, Nullable):
            raise InvalidTypeError("to_dense(): some values within the rows are null: call filled(value) before")
        filler = _filler(self.flat_values, value)
        return self._padded([*lengths, *[None] * (levels - len(lengths))], filler, truncate=truncate)

    def _padded(self, lengths: Sequence[int | None], filler: NDArray[Any], *, truncate: bool) -> NDArray[Any]:
        values: Any
        if isinstance(self.values, Ragged):
            values = self.values._padded(lengths[1:], filler, truncate=truncate)
        else:
            values = self.values
        splits = np.asarray(self.row_splits, np.int64)
        row_lengths = np.diff(splits)
        longest = int(row_lengths.max(initial=0))
        width = longest if lengths[0] is None else lengths[0]
        if longest > width and not truncate:
            row = int(row_lengths.argmax())
            raise InvalidArgumentError(
                f"row {row} has length {longest}, more than {width}: pass a larger length, or truncate=True"
            )
        dense = np.empty((len(row_lengths), width, *values.shape[1:]), values.dtype)
        dense[...] = filler
        places = np.arange(width) < row_lengths[:, None]
        kept = values[splits[0] : splits[-1]] if len(splits) else values[:0]
        if longest > width:
            kept = kept[np.arange(len(kept)) - np.repeat(splits[:-1] - splits[0], row_lengths) < width]
        dense[places] = kept
        return dense

    def __repr__(self) -> str:
        flat = self.flat_values
        shown = repr(flat) if isinstance(flat, Nullable) else f"{flat.dtype}{list(flat.shape)}"
        return f"Ragged(rows={len(self)}, levels={len(self.nested_row_splits)}, values={shown})"


def _filler(values: NDArray[Any], value: Any) -> NDArray[Any]:
    """Return a padding value as an array without dimensions, in the dtype of the values."""
    dtype = values.dtype
    is_text = dtype.kind == "O"
    text = type(values.flat[0]) if is_text and values.size else bytes
    if isinstance(value, (int, np.integer)) and value == 0:
        return np.array(text(), object) if is_text else np.zeros((), dtype)
    try:
        filler = np.array(value, dtype)
        fits = filler.shape == () and (dtypes.number_kind(dtype) in "fc" or filler.item() == value)
    except (TypeError, ValueError, OverflowError):
        fits = False
    if not fits or (is_text and not isinstance(value, text)):
        kind = text.__name__ if is_text else dtype
        raise InvalidArgumentError(f"value {value!r} does not fit dtype {kind} of the values")
    return filler


def _rows(values: Any, start: int, stop: int) -> Any:
    return values.rows(start, stop) if isinstance(values, Ragged) else values[start:stop]


@dataclass(frozen=True, eq=False, repr=False)
class Sparse(NoArray):
    """A sparse array in coordinate form: the values that are not zero, and the place of each.

    Examples:
        >>> sparse = cachelayer.Sparse(indices=[[0, 1], [2, 0]], values=[5, 6], dense_shape=[3, 2])
        >>> sparse
        Sparse(nnz=2, dense_shape=[3, 2], dtype=int64)
        >>> sparse.to_dense().tolist()
        [[0, 5], [0, 0], [6, 0]]
    """

    indices: NDArray[np.int64]
    """The place of each value: int64 of shape ``[nnz, rank]``, *nnz* being the number of values."""
    values: NDArray[Any]
    """The values: an array of shape ``[nnz]``."""
    dense_shape: NDArray[np.int64]
    """The shape of the dense array: int64 of shape ``[rank]``."""

    _ADVICE = "call to_dense(), or use indices and values"

    def __post_init__(self) -> None:
        _make_arrays(self, "indices", "values", "dense_shape")

    def to_dense(self) -> NDArray[Any]:
        """Return a dense array with zeros (``b""`` or ``""`` for strings) where there is no value.

        Examples:
            >>> cachelayer.Sparse([[1], [3]], [0.5, 0.25], [4]).to_dense().tolist()
            [0.0, 0.5, 0.0, 0.25]
        """
        shape = tuple(int(n) for n in self.dense_shape)
        if self.values.dtype == object:
            dense = np.full(shape, type(self.values[0])() if len(self.values) else b"", dtype=object)
        else:
            dense = np.zeros(shape, self.values.dtype)
        dense[tuple(self.indices.T)] = self.values
        return dense

    def __repr__(self) -> str:
        return f"Sparse(nnz={len(self.values)}, dense_shape={self.dense_shape.tolist()}, dtype={self.values.dtype})"


@explains_options
@dataclass(frozen=True, eq=False, repr=False)
class Nullable(NoArray):
    """The rows of a field of a batch, some of them None; or an array, some of whose values are None.

    Examples:
        >>> rows = [{"score": 0.5}, {"score": None}, {"score": 2.0}]
        >>> scores = cachelayer.Storage(folder).cache(rows, "scores@v1").read([0, 1, 2])["score"]
        >>> scores.to_list(), scores.values.tolist(), scores.valid.tolist()
        ([0.5, None, 2.0], [0.5, 0.0, 2.0], [True, False, True])
        >>> scores[1] is None, scores[::2].to_list()
        (True, [0.5, 2.0])
    """

    values: Any
    """The rows, with a filler in place of None: zeros, or an empty string or array. A dict if rows are dicts."""
    valid: NDArray[np.bool_]
    """False for None: bool of shape ``[rows]``, or of the shape of ``values`` if single values of an array are None."""

    _ADVICE = "use filled(value), or values with a filler in each row that is null, and valid, which is False there"

    @property
    def mask(self) -> NDArray[np.bool_]:
        """True where a row is None, as in masked arrays of numpy, pandas and pyarrow: the opposite of ``valid``.

        Examples:
            >>> import numpy as np
            >>> cachelayer.Nullable(np.array([7, 0]), np.array([True, False])).mask.tolist()
            [False, True]
        """
        return ~self.valid

    def __getitem__(self, rows: Any) -> Any:
        """Return a row, which may be None; several rows, by a slice or an array; or a field of dicts, by its name.

        Examples:
            >>> import numpy as np
            >>> people = cachelayer.Nullable({"age": np.array([30, 0])}, np.array([True, False]))
            >>> people[0], people[1], people["age"].to_list()
            ({'age': np.int64(30)}, None, [30, None])
        """
        if isinstance(rows, str):
            field = self.values[rows]
            if isinstance(field, Nullable) and field.valid.ndim == 1:
                return Nullable(field.values, field.valid & self.valid)
            return Nullable(field, self.valid)
        valid = self.valid[rows]
        if valid.ndim:
            return replace(self, values=_rows_of(self.values, rows, len(self)), valid=valid)
        return _rows_of(self.values, rows, len(self)) if valid else None

    def __iter__(self) -> Iterator[Any]:
        return (self[row] for row in range(len(self)))

    def to_list(self) -> list[Any]:
        """Return the rows as a list, nested as they are, with None for a row or value that is null.

        Examples:
            >>> import numpy as np
            >>> cachelayer.Nullable(np.array([[1, 2], [3, 0]]), np.array([[True, True], [True, False]])).to_list()
            [[1, 2], [3, None]]
        """
        return [_listed(row) for row in self]

    @explains_options
    def filled(self, value: Any) -> Any:
        """Return the rows as an array, with a value in place of None; as a tensor, or a list, if they are one.

        Args:
            value: a value of one row, such as 0 or NaN.

        Examples:
            >>> import numpy as np
            >>> cachelayer.Nullable(np.array([0.5, 0.0]), np.array([True, False])).filled(np.nan).tolist()
            [0.5, nan]

        Raises:
            InvalidTypeError: if the rows are no array, or their dtype cannot hold the value.
        """
        rows = self.values
        if isinstance(rows, list):
            return [row if is_valid else value for row, is_valid in zip(rows, self.valid, strict=True)]
        # A tensor of PyTorch, which has no copy().
        copy = getattr(rows, "clone", rows.copy if isinstance(rows, np.ndarray) else None)
        if copy is None:
            raise InvalidTypeError(
                f"filled(): rows of a {type(rows).__name__} are no array: take values, which has a filler in each row "
                "that is null, or the fields of a dict by their names, and valid, which is False there"
            )
        filler = np.asarray(value)
        is_whole = filler.dtype.kind != "f" or bool(np.all(np.isfinite(filler) & (np.trunc(filler) == filler)))
        if not is_whole and any(name in str(rows.dtype) for name in ("int", "bool")):
            raise InvalidTypeError(f"filled({value!r}): {rows.dtype} cannot hold it")
        array = copy()
        try:
            array[~self.valid] = value
        except (TypeError, ValueError, OverflowError, RuntimeError) as error:
            raise InvalidTypeError(f"filled({value!r}): {array.dtype} cannot hold it: {error}") from error
        return array

    def __len__(self) -> int:
        return len(self.valid)

    def __repr__(self) -> str:
        values = self.values
        shown = f"{values.dtype}{list(values.shape)}" if isinstance(values, np.ndarray) else repr(values)
        return f"Nullable(rows={len(self)}, null={int(np.count_nonzero(~self.valid))}, values={shown})"


def _rows_of(values: Any, rows: Any, count: int, *, is_within: bool = False) -> Any:
    """Return a row or some of the ``count`` rows of a batch, or of a part within dicts, tuples and lists of one."""
    if isinstance(values, dict):
        return {name: _rows_of(child, rows, count, is_within=True) for name, child in values.items()}
    if isinstance(values, tuple) or (isinstance(values, list) and is_within and _is_structure(values, count)):
        parts = [_rows_of(child, rows, count, is_within=True) for child in values]
        return type(values)(*parts) if hasattr(values, "_fields") else type(values)(parts)
    if isinstance(values, Ragged) and isinstance(rows, slice):
        return values.rows(*rows.indices(len(values))[:2])
    if isinstance(values, list) and getattr(rows, "ndim", 0) > 0:
        return [values[row] for row in np.arange(len(values))[rows]]
    return values[rows]


def _is_structure(values: list[Any], count: int) -> bool:
    """Return whether the parts of a list have rows; else its items are rows: texts, JSON, tensors of any lengths."""
    parts = [item for item in values if hasattr(item, "__len__") and not isinstance(item, (str, bytes, list, dict))]
    return bool(parts) and (isinstance(parts[0], (np.ndarray, NoArray)) or len(values) != count)


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _listed(child) for name, child in value.items()}
    if isinstance(value, (Nullable, Ragged)):
        return value.to_list()
    if isinstance(value, (list, tuple)):
        parts = list(map(_listed, value))
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    # Of numpy or PyTorch.
    return value.tolist() if hasattr(value, "tolist") else value


class BadValue:
    """Stands for a value that a source cannot read, and why, so that the build refuses its record alone."""

    def __init__(self, reason: str) -> None:
        self._reason = reason

    def __repr__(self) -> str:
        return self._reason


def wrong_row(ragged: Ragged) -> int | None:
    """Return the first row that reaches outside of the values, or ends before it begins; None if no row does."""
    splits = ragged.row_splits
    if splits.ndim != 1 or len(splits) == 0 or splits.dtype.kind not in "iu":
        return 0
    splits = splits.astype(np.int64)
    begins = splits[:-1]
    ends = splits[1:]
    wrong = np.flatnonzero((begins < 0) | (ends < begins) | (ends > len(ragged.values)))
    if len(wrong):
        return int(wrong[0])
    if not len(begins) or not isinstance(ragged.values, Ragged):
        return None
    first = int(splits[0])
    end = int(splits[-1])
    inner = wrong_row(ragged.values.rows(first, end))
    return None if inner is None else int(splits.searchsorted(first + inner, side="right")) - 1


class PictureFile(bytes):
    """The bytes of an image file, which a source made of a decoded picture."""

    mode: str
    """Pillow's mode of the picture, which its spec has too."""
    is_transparent: bool
    """Whether some of its colours are transparent."""

    @classmethod
    def of(cls, data: bytes, mode: str, *, is_transparent: bool = False) -> PictureFile:
        file = cls(data)
        file.mode = mode
        file.is_transparent = is_transparent
        return file

    def fits(self, mode: str) -> bool:
        """Return whether pixels of this mode hold the pixels of the picture without loss."""
        colours = ("RGBA",) if self.is_transparent else ("RGB", "RGBA")
        holders = {
            "1": ("L", *colours),
            "L": ("P", "LA", "I;16", "I", "F", *colours),
            "P": colours,
            "LA": ("RGBA",),
            "RGB": ("RGBA",),
            "I;16": ("I", "F"),
        }
        return mode in (self.mode, *holders.get(self.mode, ()))


def with_flat_values(ragged: Ragged, flat_values: NDArray[Any] | Nullable) -> Ragged:
    """Return rows of the same lengths, with other innermost values."""
    values = with_flat_values(ragged.values, flat_values) if isinstance(ragged.values, Ragged) else flat_values
    return Ragged(values, ragged.row_splits, ragged.row_shapes)
