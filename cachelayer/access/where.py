"""Conditions on fields: a text such as ``"score > 0.5 and lang == 3"``, or a function of columns.

A text is parsed with :mod:`ast`, and nothing but the nodes that are listed here is evaluated, as Python does for a row.
A comparison with a field that is None is neither true nor false, as in SQL: such a record is not chosen by it, nor by
its opposite. The same holds for a quotient by zero.
"""

from __future__ import annotations

import ast
import keyword
import operator
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.access import exact_values
from cachelayer.access.dataset import DatasetView
from cachelayer.access.exact_values import NoValueError, Operand
from cachelayer.access.field_values import FieldReader
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.host_memory import memory_nbytes
from cachelayer.progress import Progress
from cachelayer.records import tree
from cachelayer.records.values import Nullable

Mask = NDArray[np.bool_]
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
_NODES = (
    *(ast.BoolOp, ast.UnaryOp, ast.BinOp, ast.Compare, ast.Constant, ast.List, ast.Tuple, ast.Set),
    *(ast.boolop, ast.unaryop, ast.cmpop, ast.expr_context),
)
_GRAMMAR = "names of fields, numbers, texts, comparisons, and, or, not, in, is None, + - * / // %"
_DEEPEST = 100
"""How deep expressions may be nested: Python's own stack is the limit."""
_PART_OF_MEMORY = 4
"""A whole column takes at most this part of the memory, since the function that gets it makes others of it."""
_TOKENS = re.compile(
    r"""(?P<text>[rRbBuU]{0,2}(?:'(?:\\.|[^'\\\n])*'|"(?:\\.|[^"\\\n])*"))
    |(?P<number>(?:\d|\.\d)[\w.]*(?:(?<=[eE])[+-]\d+)?)
    |(?P<name>[^\W\d](?:\w|[\u0300-\u036f])*)
    |`(?P<quoted>[^`\n]+)`""",
    re.VERBOSE,
)
_STAND_IN = re.compile(r"__(\d+)__")


@dataclass(frozen=True)
class Condition:
    """A condition on records.

    Args:
        text: how the user wrote it; of a function, its name.
        names: the fields that it reads; None if only running it tells.
        chosen: given the columns, returns which rows it holds for.
    """

    text: str
    names: tuple[str, ...] | None
    chosen: Callable[[Mapping[str, Any]], Any]

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
    source = _Source.of(text)
    try:
        node = ast.parse(source.code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        hint = "; write == to compare" if re.search(r"(?<![=!<>])=(?!=)", source.code) else ""
        raise InvalidArgumentError(
            f"the condition {text!r} does not parse: {error}: it has {_GRAMMAR}{hint}"
        ) from error
    names = tuple(dict.fromkeys(_fields(node, source)))
    if not names:
        raise InvalidArgumentError(f"the condition {text!r} names no field")
    return Condition(text, names, lambda columns: _Evaluation(source, columns).truth(node)[0])


@dataclass(frozen=True)
class _Source:
    """A condition with a stand-in for each name, since Python changes letters of identifiers, such as µ.

    Args:
        text: the condition.
        code: the same with stand-ins.
        names: the name that each stands for.
    """

    text: str
    code: str
    names: tuple[str, ...]

    @classmethod
    def of(cls, text: str) -> _Source:
        names: list[str] = []

        def stand_in(match: re.Match[str]) -> str:
            name = match["name"] or match["quoted"]
            if name is None or (match["name"] and keyword.iskeyword(name)):
                return match[0]
            names.append(name)
            return f"__{len(names) - 1}__"

        code = _TOKENS.sub(stand_in, text.strip())
        return cls(text, code, tuple(names))

    def field(self, node: ast.AST) -> str | None:
        """Return the name of the field that a node is, ``meta/lang`` for ``meta.lang``; None for other nodes."""
        if isinstance(node, ast.Name) and (match := _STAND_IN.fullmatch(node.id)) is not None:
            return self.names[int(match[1])]
        if isinstance(node, ast.Attribute) and (match := _STAND_IN.fullmatch(node.attr)) is not None:
            parent = self.field(node.value)
            return None if parent is None else f"{parent}/{self.names[int(match[1])]}"
        return None

    def refused(self, node: ast.AST, why: str = "") -> InvalidArgumentError:
        """Return the error for a part of the condition."""
        part = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
        part = _STAND_IN.sub(lambda match: self.names[int(match[1])], part)
        why = why or f"is no part of one: it has {_GRAMMAR}"
        return InvalidArgumentError(f"the condition {self.text!r}: {part!r} {why}")


def _fields(root: ast.expr, source: _Source) -> Iterator[str]:
    """Yield the names of fields, and refuse what is no part of a condition."""
    left: list[tuple[ast.AST, int]] = [(root, 0)]
    while left:
        node, depth = left.pop()
        if depth > _DEEPEST:
            raise InvalidArgumentError(
                f"the condition {source.text[:60]!r}... is nested more than {_DEEPEST} deep: add a column with "
                "storage.add_columns(), or pass a function of columns"
            )
        name = source.field(node)
        if name is not None:
            yield name
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            sign, word = ("&", "and") if isinstance(node.op, ast.BitAnd) else ("|", "or")
            raise source.refused(node, f"has {sign}: write {word}")
        if not (isinstance(node, _NODES) or type(node) in _COMPUTE) or isinstance(node, ast.Invert):
            raise source.refused(node)
        left += [(child, depth + 1) for child in reversed(list(ast.iter_child_nodes(node)))]


class _Evaluation:
    """Evaluates a condition over some rows.

    Args:
        source: the condition.
        columns: the fields of the rows.
    """

    def __init__(self, source: _Source, columns: Mapping[str, Operand]) -> None:
        self._source = source
        self._columns = columns

    def truth(self, node: ast.expr) -> tuple[Any, Any]:
        """Return for which rows a condition is true, and for which false; it is neither where there is no value."""
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
        operand = self.value(node)
        if operand.kind != "bool" or operand.is_literal:
            raise self._source.refused(node, "is no condition: compare it with something")
        return operand.values & operand.valid, ~operand.values & operand.valid

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
        operand = self.value(left)
        if isinstance(how, (ast.Is, ast.IsNot)):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._source.refused(right, "follows 'is': only None may")
            is_none = np.broadcast_to(~np.asarray(operand.valid), np.shape(operand.values))
            return (is_none if isinstance(how, ast.Is) else ~is_none), np.True_
        if isinstance(how, (ast.In, ast.NotIn)):
            holds = np.zeros(np.shape(operand.values), np.bool_)
            for option in self._constants(right):
                holds |= self._compared_values(left, operator.eq, operand, option)[0]
            return (holds if isinstance(how, ast.In) else ~holds), operand.valid
        return self._compared_values(left, _COMPARE[type(how)], operand, self.value(right))

    def _compared_values(
        self, node: ast.expr, how: Callable[[Any, Any], Any], left: Operand, right: Operand
    ) -> tuple[Any, Any]:
        try:
            return exact_values.compare(how, left, right)
        except NoValueError as error:
            raise self._source.refused(node, str(error)) from error

    def _constants(self, node: ast.expr) -> list[Operand]:
        if isinstance(node, (ast.List, ast.Tuple, ast.Set)) and node.elts:
            return [self._constant(item) for item in node.elts]
        raise self._source.refused(node, "follows 'in': a list of numbers or texts must")

    def _constant(self, node: ast.expr) -> Operand:
        try:
            value = ast.literal_eval(node)
        except ValueError as error:
            raise self._source.refused(node, "is no number or text") from error
        if value is None:
            raise self._source.refused(node, "is compared with 'is None' and 'is not None'")
        if not isinstance(value, (bool, int, float, str, bytes)):
            raise self._source.refused(node, "is no number or text")
        return exact_values.literal(value)

    def value(self, node: ast.expr) -> Operand:
        """Return the values of an expression."""
        name = self._source.field(node)
        if name is not None:
            return self._columns[name]
        if isinstance(node, ast.Constant):
            return self._constant(node)
        try:
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
                return exact_values.negative(self.value(node.operand))
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.UAdd):
                return exact_values.compute(operator.add, exact_values.literal(0), self.value(node.operand))
            if isinstance(node, ast.BinOp):
                left = self.value(node.left)
                right = self.value(node.right)
                return exact_values.compute(_COMPUTE[type(node.op)], left, right)
        except NoValueError as error:
            raise self._source.refused(node, str(error)) from error
        raise self._source.refused(node, "has no value")


def mask_of(view: DatasetView, condition: Condition) -> Mask:
    """Return which records of a view a condition holds for; of erased ones it does not.

    A text is evaluated for some records at a time; a function is called once, with whole columns.

    Raises:
        InvalidArgumentError: if a field does not exist, has more than one value a record, or a column is too large.
    """
    view.stored_leaves("where()")
    reader = FieldReader(view, "where()")
    mask = np.zeros(len(view), np.bool_)
    if condition.names is None:
        with np.errstate(invalid="ignore"):
            chosen = condition.chosen(_WholeColumns(reader))
        mask[reader.rows] = _checked(chosen, len(reader.rows), condition)
        return mask
    dtypes = {name: reader.leaf(name).dtype for name in condition.names}
    with Progress(f"where {condition.text[:40]!r}", len(view), None) as progress:
        for numbers in reader.pieces(condition.names):
            columns = {}
            for name, values in reader.read(numbers, condition.names).items():
                array, valid = (values.values, values.valid) if isinstance(values, Nullable) else (values, np.True_)
                columns[name] = exact_values.column(dtypes[name], array, valid)
            mask[numbers] = condition.chosen(columns)
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


class _WholeColumns(dict[str, Any]):
    """The columns of all records, each read when it is asked for."""

    def __init__(self, reader: FieldReader) -> None:
        super().__init__()
        self._reader = reader

    def __missing__(self, name: str) -> Any:
        nbytes = self._reader.column_nbytes(name)
        most = memory_nbytes()
        if nbytes > most // _PART_OF_MEMORY:
            raise InvalidArgumentError(
                f"where(): the column {name!r} of {len(self._reader.rows):,} records takes about {nbytes / 1e9:.3g} GB "
                f"of {most / 1e9:.3g} GB of memory, and a function gets it whole: write a text such as '{name} > 0.5', "
                "which is read in pieces; or make a mask from pieces that read() gives, and pass it to select()"
            )
        self[name] = self._reader.column(name)
        return self[name]
