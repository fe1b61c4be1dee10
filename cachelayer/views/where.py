"""Conditions on records: a text such as ``"score > 0.5 and lang == 3"``, a function of columns, or of an element.

A text is parsed with :mod:`ast`. Only the nodes that are listed here are evaluated, and they give what Python gives for
a row. A comparison with a field that is None is neither true nor false, as in SQL: it chooses the record neither as it
stands nor with ``not``. The same holds for a quotient by zero. So each part of a condition has two masks::

    score             0.9     None    0.2
    score > 0.5       true    -       false        true: rows it holds for     false: rows it does not hold for
    not score > 0.5   false   -       true
"""

from __future__ import annotations

import ast
import keyword
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.field_values import FieldReader, refuse_made_of_records
from cachelayer.errors import InvalidArgumentError, InvalidTypeError
from cachelayer.specs import tree
from cachelayer.specs.leaf_names import names_of_leaves
from cachelayer.specs.values import Nullable
from cachelayer.support.arguments import refuse_other_index
from cachelayer.support.host import memory_nbytes
from cachelayer.support.memory import Ints
from cachelayer.support.progress import Progress, unless_short
from cachelayer.views import exact_values
from cachelayer.views.exact_values import NoValueError, Operand

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
_GRAMMAR = (
    "names of fields (in backquotes if Python takes them for something else), numbers, texts, comparisons, and, or, "
    "not, in, is None, + - * / // %, len(tokens), url.startswith('a'), 'a' in url"
)
_METHODS = ("startswith", "endswith")
_SIGNS = {
    r"&&": "and",
    r"\|\|": "or",
    r"<>": "!=",
    r"!(?!=)": "not",
    r"(?<![=!<>])=(?!=)": "== to compare",
}
"""Patterns of signs of other languages, and what to write here in place of each."""
_WORDS = {"AND": "and", "OR": "or", "NOT": "not", "IN": "in", "IS": "is", "NULL": "None", "LIKE": ".startswith('a')"}
_PYTHONS = {"and", "or", "not", "in", "is", "None", "True", "False"}
"""The keywords of Python that a condition may have."""
_DEEPEST = 100
"""How deep expressions may be nested: Python's own stack is the limit."""
_PART_OF_MEMORY = 4
"""A whole column takes at most a fourth of the memory, because a function makes more columns of it."""
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
    """A condition on records, checked and ready to be evaluated."""

    text: str
    """The condition as the user wrote it; of a function, its name."""
    names: tuple[str, ...] | None
    """The fields that the condition reads; None for a function, which asks for columns as it runs."""
    holds: Callable[[Mapping[str, Any], Mapping[str, Operand]], Any]
    """Returns for which rows the condition holds, given their columns and the lengths of fields, by name."""
    lengths: tuple[str, ...] = ()
    """The fields whose lengths the condition reads."""

    @classmethod
    def of(cls, condition: Any) -> Condition:
        """Return the condition that a user passed: a text, or a function of columns."""
        if isinstance(condition, str):
            return parse_condition(condition)
        if not callable(condition):
            raise InvalidTypeError(
                f"where() takes a text such as 'score > 0.5' or a function of columns, not {tree.describe(condition)}; "
                "select() takes a mask or record numbers"
            )
        return cls(_name_of(condition), None, lambda columns, _: condition(columns))


def _name_of(function: Any) -> str:
    return str(getattr(function, "__qualname__", type(function).__qualname__))


def parse_condition(text: str) -> Condition:
    """Return the condition that a text says."""
    source = _Source.of(text)
    try:
        node = ast.parse(source.code, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise InvalidArgumentError(
            f"the condition {text!r} does not parse: {source.hint or error}: it has {_GRAMMAR}"
        ) from error
    fields = dict.fromkeys(_fields(node, source))
    if not fields:
        raise InvalidArgumentError(f"the condition {text!r} names no field")
    names = tuple(name for name, is_length in fields if not is_length)
    lengths = tuple(name for name, is_length in fields if is_length)

    def holds(columns: Mapping[str, Operand], lengths_of: Mapping[str, Operand]) -> Any:
        true, _ = _Evaluation(source, columns, lengths_of).truth(node)
        return true

    return Condition(text, names, holds, lengths)


@dataclass(frozen=True)
class _Source:
    """The text of a condition, in which ``__0__`` stands for the first name, ``__1__`` for the second.

    Python's parser would change letters of names, such as µ, and takes no name like ``a-b``.
    """

    text: str
    """The condition as the user wrote it."""
    code: str
    """The same with stand-ins."""
    names: tuple[str, ...]
    """The names that the stand-ins are for, by their numbers."""

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
        """Return the name of the field that a node names, ``meta/lang`` for ``meta.lang``; None for other nodes."""
        if isinstance(node, ast.Name) and (match := _STAND_IN.fullmatch(node.id)) is not None:
            return self.names[int(match[1])]
        if isinstance(node, ast.Attribute) and (match := _STAND_IN.fullmatch(node.attr)) is not None:
            parent = self.field(node.value)
            return None if parent is None else f"{parent}/{self.names[int(match[1])]}"
        return None

    def call(self, node: ast.AST) -> tuple[str, ast.expr, list[ast.expr]] | None:
        """Return the function of a call, its first operand, and its other arguments; None for other nodes."""
        if not isinstance(node, ast.Call) or node.keywords:
            return None
        function = node.func
        if isinstance(function, ast.Name) and self.field(function) == "len" and len(node.args) == 1:
            return "len", node.args[0], []
        if isinstance(function, ast.Attribute) and (match := _STAND_IN.fullmatch(function.attr)) is not None:
            name = self.names[int(match[1])]
            return (name, function.value, node.args) if name in _METHODS and node.args else None
        return None

    @property
    def hint(self) -> str:
        """Advice for signs and words that no condition has; empty if the code has none."""
        code = _TOKENS.sub(lambda match: "''" if match["text"] else match[0], self.code)
        words = [word for word in re.findall(r"[^\W\d]\w*", code) if keyword.iskeyword(word) and word not in _PYTHONS]
        hints = [f"write {word}" for sign, word in _SIGNS.items() if re.search(sign, code)]
        hints += [f"write {_WORDS[name]} in place of {name}" for name in self.names if name in _WORDS]
        hints += [f"write `{word}` for a field of this name" for word in words]
        return ", ".join(hints)

    def refused(self, node: ast.AST, why: str = "") -> InvalidArgumentError:
        """Return the error that names a part of the condition and says why it is refused."""
        part = ast.unparse(node) if isinstance(node, ast.expr) else type(node).__name__
        part = _STAND_IN.sub(lambda match: self.names[int(match[1])], part)
        why = why or f"is no part of one: it has {_GRAMMAR}"
        return InvalidArgumentError(f"the condition {self.text!r}: {part!r} {why}")


def _fields(root: ast.expr, source: _Source) -> Iterator[tuple[str, bool]]:
    """Yield the names of fields, with True if only their length is read. Raise for a node that no condition has."""
    nodes: list[tuple[ast.AST, int]] = [(root, 0)]
    while nodes:
        node, depth = nodes.pop()
        if depth > _DEEPEST:
            raise InvalidArgumentError(
                f"the condition {source.text[:60]!r}... is nested more than {_DEEPEST} deep: add a column with "
                "storage.add_columns(), or pass a function of columns"
            )
        name = source.field(node)
        if name is not None:
            yield name, False
            continue
        call = source.call(node)
        if call is not None:
            function, operand, arguments = call
            name = source.field(operand)
            if name is None:
                raise source.refused(node, f"has {function}() of what is no field: write it of a field")
            yield name, function == "len"
            nodes += [(argument, depth + 1) for argument in arguments]
            continue
        if isinstance(node, ast.BinOp) and isinstance(node.op, (ast.BitAnd, ast.BitOr)):
            raise source.refused(node, "has &: write and" if isinstance(node.op, ast.BitAnd) else "has |: write or")
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Invert):
            raise source.refused(node, "has ~: write not")
        if not (isinstance(node, _NODES) or type(node) in _COMPUTE):
            raise source.refused(node)
        nodes += [(child, depth + 1) for child in reversed(list(ast.iter_child_nodes(node)))]


class _Evaluation:
    """Evaluates the nodes of a condition over some rows."""

    def __init__(self, source: _Source, columns: Mapping[str, Operand], lengths: Mapping[str, Operand]) -> None:
        self._source = source
        self._columns = columns
        self._lengths = lengths

    def truth(self, node: ast.expr) -> tuple[Any, Any]:
        """Return two masks: for which rows a condition is true, and for which it is false."""
        if isinstance(node, ast.BoolOp):
            true, false = self.truth(node.values[0])
            for part in node.values[1:]:
                part_true, part_false = self.truth(part)
                if isinstance(node.op, ast.And):
                    true = true & part_true
                    false = false | part_false
                else:
                    true = true | part_true
                    false = false & part_false
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
            # a < b < c holds if both comparisons hold.
            true = holds & valid if true is None else true & holds & valid
            false = ~holds & valid if false is None else false | (~holds & valid)
        return true, false

    def _compare(self, left: ast.expr, how: ast.cmpop, right: ast.expr) -> tuple[Any, Any]:
        """Return two masks: for which rows a comparison holds, and for which it can be made."""
        operand = self.value(left)
        if isinstance(how, (ast.Is, ast.IsNot)):
            if not (isinstance(right, ast.Constant) and right.value is None):
                raise self._source.refused(right, "follows 'is': only None may")
            is_none = np.broadcast_to(~np.asarray(operand.valid), np.shape(operand.values))
            return (is_none if isinstance(how, ast.Is) else ~is_none), np.True_
        if isinstance(how, (ast.In, ast.NotIn)) and self._source.field(right) is not None:
            matches = self._matched(left, "in", self.value(right), operand)
            return (matches.values if isinstance(how, ast.In) else ~matches.values), matches.valid
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

    def _matched(self, node: ast.expr, how: str, operand: Operand, part: Operand) -> Operand:
        if not part.is_literal or part.kind not in ("text", "bytes"):
            raise self._source.refused(node, "stands before 'in' and a field: write a text, or a list after 'in'")
        try:
            return exact_values.matches(how, operand, [part.values])
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
            call = self._source.call(node)
            if call is not None:
                return self._called(*call)
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

    def _called(self, function: str, operand: ast.expr, arguments: Sequence[ast.expr]) -> Operand:
        name = str(self._source.field(operand))
        if function == "len":
            return self._lengths[name]
        if len(arguments) > 1:
            raise self._source.refused(arguments[1], f"is too much: {function}() takes a text, or a tuple of texts")
        parts = arguments[0].elts if isinstance(arguments[0], ast.Tuple) else arguments
        values = [self._constant(part).values for part in parts]
        for value, part in zip(values, parts, strict=True):
            if not isinstance(value, (str, bytes)):
                raise self._source.refused(part, "is no text")
        return exact_values.matches(function, self._columns[name], values)


def mask_of(view: DatasetView, condition: Condition) -> Mask:
    """Return for each record of a view whether a condition holds; False for erased records.

    A text is evaluated for some records at a time. A function is called once, with whole columns.
    """
    refuse_made_of_records(view, "where()")
    reader = FieldReader(view, "where()")
    mask = np.zeros(len(view), np.bool_)
    if condition.names is None:
        try:
            with np.errstate(invalid="ignore"):
                holds = condition.holds(_WholeColumns(reader), {})
        except Exception as error:
            error.add_note("raised by the function passed to where(), of whole columns; each() passes one element")
            raise
        mask[reader.rows] = _checked(holds, len(reader.rows), condition)
        return mask
    _check_quotes(condition, names_of_leaves(reader.spec))
    dicts = list(filter(reader.is_dict, condition.names))
    fields = [name for name in condition.names if name not in dicts]
    leaves = {name: reader.leaf(name) for name in fields}
    names = [*fields, *filter(reader.has_characters, condition.lengths)]
    pieces = list(reader.pieces(names))
    with Progress(f"where {condition.text[:40]!r}", len(view), unless_short(None, len(pieces))) as progress:
        for numbers in pieces:
            lengths = {}
            for name in condition.lengths:
                values, valid = reader.lengths(numbers, name)
                lengths[name] = Operand("int", values, valid)
            columns = {}
            for name in dicts:
                columns[name] = Operand("dict", np.zeros(len(numbers), np.bool_), reader.has_dict(numbers, name))
            for name, column in reader.read(numbers, fields).items():
                leaf = leaves[name]
                valid = np.True_
                if isinstance(column, Nullable):
                    column, valid = column.values, column.valid
                columns[name] = exact_values.column(leaf.dtype, column, valid, leaf.timezone)
            mask[numbers] = condition.holds(columns, lengths)
            progress.update(len(numbers), 0)
    return mask


def _check_quotes(condition: Condition, fields: Sequence[str]) -> None:
    """Raise if a name such as ``a-b``, which Python takes for a difference, was written without backquotes."""
    names = {*(condition.names or ()), *condition.lengths}
    for name in fields:
        if name not in names and not name.isidentifier() and not names <= {*fields} and name in condition.text:
            raise InvalidArgumentError(f"the condition {condition.text!r}: write `{name}` for the field of this name")


def _checked(holds: Any, rows: int, condition: Condition) -> Mask:
    """Return what a function of columns returned, if it is a mask of the rows. None in it counts as False."""
    if isinstance(holds, Nullable):
        holds = holds.values & holds.valid
    refuse_other_index(f"where({condition.text})", holds)
    mask = np.asarray(holds)
    if mask.dtype != np.bool_ or mask.shape != (rows,):
        raise InvalidTypeError(
            f"where({condition.text}) gave {mask.dtype} {list(mask.shape)} for {rows} records: return one bool for "
            "each, or call ref.select(ref.each(function)) with a function of one element"
        )
    return mask


def mask_of_elements(
    elements: Iterable[Any], numbers: Ints, records: int, function: Callable[[Any], Any], progress: bool | None
) -> Mask:
    """Return for each record whether a function of its element holds; False for records without an element here."""
    mask = np.zeros(records, np.bool_)
    with Progress(f"each {_name_of(function)}", len(numbers), progress) as display:
        for number, element in zip(numbers.tolist(), elements, strict=True):
            try:
                holds = function(element)
            except Exception as error:
                error.add_note(f"raised by the function passed to each(), of record {number}")
                raise
            if not isinstance(holds, (bool, np.bool_)):
                raise InvalidTypeError(
                    f"each({_name_of(function)}) gave {tree.describe(holds)} for record {number}: return a bool"
                )
            mask[number] = holds
            display.update(1, 0)
    return mask


class _WholeColumns(dict[str, Any]):
    """The columns of all records by name. A column is read when it is first asked for."""

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
                "which is read in pieces; or pass a function of one element: ref.select(ref.each(function))"
            )
        self[name] = self._reader.column(name)
        return self[name]
