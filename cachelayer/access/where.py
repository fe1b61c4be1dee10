"""Conditions on fields: a text such as ``"score > 0.5 and lang == 3"``, or a function of columns.

A text is parsed with :mod:`ast`, and nothing but the nodes that are listed here is evaluated. A comparison with a field
that is None is neither true nor false, as in SQL: such a record is not chosen by it, nor by its opposite.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access.dataset import Selected
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.progress import Progress
from cachelayer.records import tree
from cachelayer.records.leaf_names import leaf_number, leaf_numbers
from cachelayer.records.spec import ArraySpec
from cachelayer.records.values import Nullable
from cachelayer.user_warnings import warn

Mask = NDArray[np.bool_]
Columns = Mapping[str, Any]
_AT_ONCE_NBYTES, _MOST_AT_ONCE = 1 << 26, 1 << 20
_WARNED_NBYTES = 1 << 30
"""From so many bytes on that columns would save, a warning says so."""
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
}
_COMPUTE: dict[type[ast.operator], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_GRAMMAR = "names of fields, numbers, texts, comparisons, and, or, not, in, is None, + - * / // %"


@dataclass(frozen=True)
class Condition:
    """A condition on records.

    Args:
        text: how the user wrote it; of a function, its name.
        names: the fields that it reads; None if only running it tells.
        chosen: given columns, returns which rows it holds for.
    """

    text: str
    names: tuple[str, ...] | None
    chosen: Callable[[Columns], Any]

    @classmethod
    def of(cls, condition: Any) -> Condition:
        """Return what a user passed as a condition."""
        if isinstance(condition, str):
            return parsed(condition)
        if not callable(condition):
            raise InvalidTypeError(
                f"where() takes a text such as 'score > 0.5' or a function of columns, not {tree.describe(condition)}; "
                "select() takes a mask or record numbers"
            )
        return cls(getattr(condition, "__qualname__", type(condition).__qualname__), None, condition)


def parsed(text: str) -> Condition:
    """Return a condition in a text.

    Raises:
        InvalidArgumentError: if it is none; the message names the part.
    """
    try:
        node = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidArgumentError(f"the condition {text!r} does not parse: {error}: it has {_GRAMMAR}") from error
    names: dict[str, None] = {}
    _Names(text, names).visit(node)
    if not names:
        raise InvalidArgumentError(f"the condition {text!r} names no field")
    return Condition(text, tuple(names), lambda columns: _Evaluation(text, columns).truth(node)[0])


class _Names(ast.NodeVisitor):
    """Collects the names of fields, and refuses what is no part of a condition."""

    def __init__(self, text: str, names: dict[str, None]) -> None:
        self._text = text
        self._names = names

    def generic_visit(self, node: ast.AST) -> None:
        name = _field_of(node)
        if name is not None:
            self._names[name] = None
            return
        known = (ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Constant, ast.List, ast.Tuple, ast.Set)
        beside = (ast.boolop, ast.unaryop, ast.cmpop, ast.expr_context)
        is_known = isinstance(node, (*known, *beside)) or type(node) in _COMPUTE
        if not is_known or isinstance(node, ast.Invert):
            raise _refused(self._text, node)
        super().generic_visit(node)


def _field_of(node: ast.AST) -> str | None:
    """Return the name of the field that a node is, ``meta/lang`` for ``meta.lang``; None for other nodes."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        parent = _field_of(node.value)
        return None if parent is None else f"{parent}/{node.attr}"
    return None


def _refused(text: str, node: ast.AST, why: str = "") -> InvalidArgumentError:
    part = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
    return InvalidArgumentError(f"the condition {text!r}: {part!r} {why or f'is no part of one: it has {_GRAMMAR}'}")


class _Evaluation:
    """Evaluates a condition over some rows.

    Args:
        text: the condition, for errors.
        columns: the fields of the rows.
    """

    def __init__(self, text: str, columns: Columns) -> None:
        self._text = text
        self._columns = columns

    def truth(self, node: ast.expr) -> tuple[Any, Any]:
        """Return for which rows a condition is true, and for which false; it is neither where a field is None."""
        if isinstance(node, ast.BoolOp):
            parts = [self.truth(value) for value in node.values]
            every, some = (
                (operator.and_, operator.or_) if isinstance(node.op, ast.And) else (operator.or_, operator.and_)
            )
            true, false = parts[0]
            for more_true, more_false in parts[1:]:
                true, false = every(true, more_true), some(false, more_false)
            return true, false
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            true, false = self.truth(node.operand)
            return false, true
        if isinstance(node, ast.Compare):
            return self._compared(node)
        values, valid = self.value(node)
        if getattr(values, "dtype", None) != np.bool_:
            raise _refused(self._text, node, "is no condition: compare it with something")
        return values & valid, ~values & valid

    def _compared(self, node: ast.Compare) -> tuple[Any, Any]:
        true: Any = None
        false: Any = None
        operands = [node.left, *node.comparators]
        for left, how, right in zip(operands, node.ops, operands[1:], strict=False):
            holds, valid = self._compare(left, how, right)
            now_true, now_false = holds & valid, ~holds & valid
            true = now_true if true is None else true & now_true
            false = now_false if false is None else false | now_false
        return true, false

    def _compare(self, left: ast.expr, how: ast.cmpop, right: ast.expr) -> tuple[Any, Any]:
        """Return which rows a comparison holds for, and for which it can be made."""
        values, valid = self.value(left)
        if isinstance(how, (ast.Is, ast.IsNot)):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise _refused(self._text, right, "follows 'is': only None may")
            is_none = np.broadcast_to(~np.asarray(valid), np.shape(values))
            return (is_none if isinstance(how, ast.Is) else ~is_none), np.True_
        if isinstance(how, (ast.In, ast.NotIn)):
            options = self._constants(right)
            holds = np.zeros(np.shape(values), np.bool_)
            for option in options:
                holds |= self._equal(left, values, option)
            return (holds if isinstance(how, ast.In) else ~holds), valid
        others, others_valid = self.value(right)
        values, others = _alike(values, others)
        try:
            holds = np.asarray(_COMPARE[type(how)](values, others), np.bool_)
        except (TypeError, ValueError) as error:
            raise _refused(self._text, left, f"cannot be compared with {ast.unparse(right)!r}: {error}") from error
        if holds.shape != np.broadcast_shapes(np.shape(values), np.shape(others)):
            raise _refused(self._text, left, f"cannot be compared with {ast.unparse(right)!r}")
        return holds, valid & others_valid

    def _equal(self, node: ast.expr, values: Any, option: Any) -> Any:
        mine, other = _alike(values, option)
        holds = np.asarray(mine == other, np.bool_)
        if holds.shape != np.shape(values):
            raise _refused(self._text, node, f"cannot be compared with {option!r}")
        return holds

    def _constants(self, node: ast.expr) -> Sequence[Any]:
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)) and node.elts:
            return [self._constant(item) for item in node.elts]
        raise _refused(self._text, node, "follows 'in': a list of numbers or texts must")

    def _constant(self, node: ast.expr) -> Any:
        try:
            value = ast.literal_eval(node)
        except ValueError as error:
            raise _refused(self._text, node, "is no number or text") from error
        if not isinstance(value, (bool, int, float, str, bytes)):
            raise _refused(self._text, node, "is no number or text")
        return value

    def value(self, node: ast.expr) -> tuple[Any, Any]:
        """Return the values of an expression, and which of them are there."""
        name = _field_of(node)
        if name is not None:
            column = self._columns[name]
            return (column.values, column.valid) if isinstance(column, Nullable) else (column, np.True_)
        if isinstance(node, ast.Constant):
            return self._constant(node), np.True_
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.UAdd)):
            values, valid = self._number(node.operand)
            return (-values if isinstance(node.op, ast.USub) else values), valid
        if isinstance(node, ast.BinOp):
            (left, valid), (right, right_valid) = self._number(node.left), self._number(node.right)
            try:
                with np.errstate(divide="ignore", invalid="ignore"):
                    return _COMPUTE[type(node.op)](left, right), valid & right_valid
            except ArithmeticError as error:
                raise _refused(self._text, node, f"has no value: {error}") from error
        raise _refused(self._text, node, "has no value")

    def _number(self, node: ast.expr) -> tuple[Any, Any]:
        """Return numbers in 64 bits, so that no sum of small integers wraps around."""
        values, valid = self.value(node)
        dtype = np.asarray(values).dtype
        if dtype.kind not in "iuf":
            raise _refused(self._text, node, "is no number")
        if not isinstance(values, np.ndarray):
            return values, valid
        return values.astype(np.float64 if dtype.kind == "f" or dtype == np.uint64 else np.int64), valid


def _alike(left: Any, right: Any) -> tuple[Any, Any]:
    """Return values that numpy compares: a text beside times is a time, such as ``"2026-01-31"``."""
    for values, text in ((left, right), (right, left)):
        kind = getattr(getattr(values, "dtype", None), "kind", "")
        if kind == "M" and isinstance(text, str):
            try:
                time = np.datetime64(text)
            except ValueError as error:
                raise InvalidArgumentError(f"{text!r} is no time such as '2026-01-31': {error}") from error
            return (left, time) if values is left else (time, right)
        if kind and kind in "iufbM" and isinstance(text, (str, bytes)):
            raise InvalidArgumentError(f"a field of {values.dtype} cannot be compared with {text!r}")
    return left, right


def mask_of(view: Selected, condition: Condition) -> Mask:
    """Return which records of a view a condition holds for; of erased ones it does not.

    Raises:
        InvalidArgumentError: if a field does not exist, or has more than one value a record.
    """
    reader = _FieldReader(view)
    names = condition.names
    if names is not None:
        for name in names:
            reader.check(name)
    mask = np.zeros(len(view), np.bool_)
    with Progress(f"where {condition.text[:40]!r}", len(view), None) as progress:
        for numbers in reader.pieces(names):
            columns = _Columns(reader, numbers, names)
            with np.errstate(invalid="ignore"):
                chosen = condition.chosen(columns)
            mask[numbers] = _checked(chosen, len(numbers), condition)
            names = columns.names
            progress.update(len(numbers), 0)
    return mask


def _checked(chosen: Any, rows: int, condition: Condition) -> Mask:
    if isinstance(chosen, Nullable):
        chosen = chosen.values & chosen.valid
    mask = np.asarray(chosen)
    if mask.dtype != np.bool_ or mask.shape != (rows,):
        raise InvalidTypeError(
            f"where({condition.text}) gave {mask.dtype} {list(mask.shape)} for {rows} records: return one bool for each"
        )
    return mask


class _FieldReader:
    """Reads fields of a view, without erased records."""

    def __init__(self, view: Selected) -> None:
        self._view = view
        self._leaves = view.stored_leaves("where()")
        self._spec = self._leaves.codec.spec

    def check(self, name: str) -> None:
        leaf = tree.leaves(self._spec)[leaf_number(self._spec, name)][1]
        if not isinstance(leaf, ArraySpec) or leaf.shape != ():
            raise InvalidArgumentError(
                f"where(): {name!r} is {leaf.describe()}: conditions are on fields of one value a record"
            )

    def _narrow(self, names: Sequence[str]) -> Selected:
        return self._view.changed(self._leaves.with_fields(leaf_numbers(self._spec, names)))

    def pieces(self, names: Sequence[str] | None) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the records in pieces; if the fields are not known yet, the first is one record."""
        left = np.arange(len(self._view))
        if len(self._view.erased):
            left = np.delete(left, self._view.erased)
        if names is None and len(left):
            yield left[:1]
            left = left[1:]
        nbytes = max(1, (self._view if names is None else self._narrow(names)).facts.read_nbytes)
        if names is not None:
            self._warn_of_bytes(names, nbytes)
        size = max(1, min(_MOST_AT_ONCE, _AT_ONCE_NBYTES // nbytes))
        for start in range(0, len(left), size):
            yield left[start : start + size]

    def _warn_of_bytes(self, names: Sequence[str], nbytes: int) -> None:
        """Say what columns would save, if that is much."""
        leaves = [tree.leaves(self._spec)[leaf_number(self._spec, name)][1] for name in names]
        fixed = [np.dtype(leaf.dtype).itemsize for leaf in leaves if isinstance(leaf.dtype, np.dtype)]
        reads, needs = nbytes * len(self._view), sum(fixed) * len(self._view)
        if reads - needs >= _WARNED_NBYTES and len(fixed) == len(leaves):
            warn(
                f"where() reads {reads / 1e9:.3g} GB of records for {needs / 1e9:.3g} GB of {', '.join(names)}: "
                "storage.add_columns() keeps such fields in files of their own"
            )

    def read(self, numbers: NDArray[np.int64], names: Sequence[str]) -> dict[str, Any]:
        """Return these fields of some records, by name."""
        for name in names:
            self.check(name)
        narrow = self._narrow(names)
        values = tree.flatten_like(narrow.element_spec, narrow.batch(numbers))
        return {name: values[leaf_number(narrow.element_spec, name)] for name in names}


class _Columns(dict[str, Any]):
    """The columns of some rows: those that are known to be needed are read at once, others when they are asked for."""

    def __init__(self, reader: _FieldReader, numbers: NDArray[np.int64], names: Sequence[str] | None) -> None:
        super().__init__(reader.read(numbers, names) if names else {})
        self._reader = reader
        self._numbers = numbers

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self)

    def __missing__(self, name: str) -> Any:
        self[name] = self._reader.read(self._numbers, [name])[name]
        return self[name]
