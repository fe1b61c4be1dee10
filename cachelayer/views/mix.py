"""Several datasets as one: :func:`concat` puts them one after another, :func:`mix` lets them take turns."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Generic, Unpack, overload

from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.errors import InvalidArgumentError, InvalidTypeError, UnknownOptionError
from cachelayer.protocols import Digests, T, identity_of_records
from cachelayer.specs.tree import Tree
from cachelayer.streams.order.blocks import BlockOrder, Blocks, block_order
from cachelayer.streams.order.mixture import ENDLESS, MixedOrder, Stop, Turns, seed_of_part
from cachelayer.streams.order.orders import MOST_POSITIONS, ExactOrder, Order
from cachelayer.streams.reading.step_reader import StepReader
from cachelayer.streams.schedule import Remainder
from cachelayer.streams.stream import BatchStream, Stream, stream_of
from cachelayer.streams.stream_options import (
    STEPS,
    MixtureArguments,
    blocks_of,
    make_options,
    takes_stream_options,
    warn_of_few_lanes,
)
from cachelayer.support.arguments import explains_options, integer
from cachelayer.views.joined import join
from cachelayer.views.mixture_weights import (
    Weights,
    checked_weight,
    in_positions,
    is_integer,
    position_of,
    scheduled,
    stages_of,
    weight_literal,
    weight_of_literal,
)
from cachelayer.views.sampling import Sampled
from cachelayer.views.view import View

_NO_BUCKETS = (
    "a mixture has no epochs in which each bucket would end: mix packed() or windows() of the datasets, or stream each "
    "dataset with buckets of its own"
)


@explains_options
def concat(refs: Iterable[View[T]]) -> View[T]:
    """Put datasets one after another: first all records of the first dataset, then of the second. This copies nothing.

    Args:
        refs: DataRefs, views of them, or results of ``concat``. Their element specs may differ only in which leaves may
            be None. Windows, packs and padded records can be among them: then all element specs must be equal.

    Raises:
        InvalidArgumentError: if there are no datasets, or their specs differ; the message names the leaf.
        InvalidTypeError: for other objects.

    Examples:
        >>> storage = cachelayer.Storage(folder)
        >>> old = storage.submit([{"text": "one"}, {"text": None}], "old@v1")
        >>> new = storage.submit([{"text": "three"}], "new@v1")
        >>> both = cachelayer.concat([old, new, old[:1]])
        >>> [element["text"] for element in both], both.sources(2)[0].dataset == new.reference
        (['one', None, 'three', 'one'], True)
        >>> cachelayer.concat([cachelayer.concat([old, new]), old[:1]]).digest == both.digest
        True
    """
    if isinstance(refs, (View, Stream)) or not isinstance(refs, Iterable):
        raise InvalidTypeError(f"concat takes a list of DataRefs, not a {type(refs).__name__}: pass concat([a, b])")
    members = []
    for ref in refs:
        if not isinstance(ref, View) or ref._current.info.reading_cost == "foreign":
            raise InvalidTypeError(
                f"a {type(ref).__name__} has no stored records to join: cache it, or a stream of it that ends, first, "
                "with storage.cache()"
            )
        members.append(ref._current)
    if not members:
        raise InvalidArgumentError("nothing to join: pass one DataRef or more")
    return View(DatasetView.all(join(members)))


class EndingArguments(MixtureArguments, total=False):
    """The keyword arguments of a stream of a mixture. Only a mixture with ``stop`` takes ``remainder``."""

    remainder: Remainder | None


class Mixture(Generic[T]):
    """Streams of several datasets in given proportions. :func:`cachelayer.mix` returns it.

    Args:
        parts: the datasets and their weights, as the user passed them.
        turns: which dataset each position belongs to.
        length: the number of positions of an epoch, which a mixture without ``stop`` never reaches.
        options: the other arguments of :func:`cachelayer.mix` that are not the defaults, as literals.
        is_in_steps: whether the starts of ``turns`` are numbers of steps.

    Examples:
        >>> letters = cachelayer.wrap("abcd", identity="letters")
        >>> digits = cachelayer.wrap("12", identity="digits")
        >>> mixture = cachelayer.mix([(letters, 2), (digits, 1)], stop="all")
        >>> [batch.tolist() for batch in mixture.stream(3)]
        [['a', '1', 'b'], ['c', '2', 'd']]
    """

    def __init__(
        self,
        parts: Sequence[tuple[View[T], Any]],
        turns: Turns,
        length: int,
        options: Mapping[str, Any],
        *,
        is_in_steps: bool = False,
    ) -> None:
        self._parts = tuple(parts)
        self._options = options
        self._is_in_steps = is_in_steps
        self._turns = turns
        self._length = length
        members = tuple(ref._current for ref, _ in parts)
        joined = join(list(map(_declared, members)))
        self._records = replace(DatasetView.all(joined), mixed=members)

    def __identity__(self) -> Any:
        unit = ("steps",) if self._is_in_steps else ()
        return identity_of_records(self._records), self.digest, self._turns.past(MOST_POSITIONS), self._length, *unit

    @property
    def digest(self) -> str:
        """SHA-256 over ``mixture`` and the digests (32 bytes each) of the datasets, in hexadecimal.

        States of the mixture hold it, and the weights up to their position beside it: later weights may change.

        Examples:
            >>> letters = cachelayer.wrap("abcd", identity="letters")
            >>> digits = cachelayer.wrap("12", identity="digits")
            >>> mixtures = [cachelayer.mix([(letters, weight), (digits, 1)]) for weight in (1, 2)]
            >>> mixtures[0].digest == mixtures[1].digest, mixtures[0].digest == cachelayer.mix([(letters, 1)]).digest
            (True, False)
        """
        return Digests.joined(b"mixture", [ref._records.origins.digests for ref, _ in self._parts]).elements

    @property
    def reference(self) -> str:
        """A text with which :func:`cachelayer.open` opens this mixture again, or raises; see :attr:`View.reference`.

        It has the references of all datasets, and so their digests, and the arguments of :func:`cachelayer.mix`.

        Raises:
            InvalidArgumentError: if a dataset has no reference.

        Examples:
            >>> ref = cachelayer.Storage(folder).submit([1, 2, 3], "numbers@v1")
            >>> mixture = cachelayer.mix([(ref[:2], 2), (ref[2:], 1)], stop="first")
            >>> [batch.tolist() for batch in cachelayer.open(mixture.reference).stream(3)]
            [[1, 3]]
        """
        parts = [(ref.reference, weight_literal(checked_weight(weight))) for ref, weight in self._parts]
        options = [f"{name}={value!r}" for name, value in self._options.items()]
        return f"mix({', '.join([repr(parts), *options])})"

    @property
    def _digest_text(self) -> str:
        """The digest for people; while a part is being built, a text that says so, because nobody waits for a text."""
        are_published = all(ref._current.published(wait=False) is not None for ref, _ in self._parts)
        return f"sha256:{self.digest}" if are_published else "being built"

    @property
    def element_spec(self) -> Tree:
        """The structure of an element; its leaves are :class:`cachelayer.ArraySpec` or another leaf spec."""
        return self._records.element_spec

    @property
    def _ends(self) -> bool:
        return self._length < ENDLESS

    @overload
    def stream(self, global_batch_size: None = ..., **options: Unpack[EndingArguments]) -> Stream[T]: ...
    @overload
    def stream(self, global_batch_size: int, **options: Unpack[EndingArguments]) -> BatchStream[T, Any]: ...
    @overload
    def stream(self, global_batch_size: int | None, **options: Unpack[EndingArguments]) -> Stream[Any]: ...
    @takes_stream_options(
        num_epochs="a mixture has no end: pass stop='first' or stop='all' to mix()",
        buckets=_NO_BUCKETS,
    )
    def stream(self, global_batch_size: int | None = None, **options: Any) -> Stream[Any]:
        """Return all datasets as a sequence: the same for any number of shards, resumable at any position.

        Each dataset goes through its own epochs, so a small dataset with a large weight repeats more often. The
        arguments mean what they do in :meth:`cachelayer.View.stream`. ``stream.record_numbers(t)`` numbers the
        records of all datasets, one dataset after another.

        Without ``stop`` the stream is endless. With ``stop`` it ends with an epoch of the mixture, and ``remainder``
        decides about a shorter last step. Further epochs, which ``stream.epochs()`` gives, are as long. Each dataset
        goes on with its own epochs in them.

        Raises:
            InvalidArgumentError: if an argument is invalid; the message names it and the fix.
            InvalidTypeError: if an argument is of the wrong type.

        Examples:
            >>> letters = cachelayer.wrap("abcd", identity="letters")
            >>> digits = cachelayer.wrap("12", identity="digits")
            >>> stream = cachelayer.mix([(letters, 2), (digits, 1)]).stream(6)
            >>> iterator = iter(stream)
            >>> [next(iterator).tolist() for _ in range(2)]
            [['a', '1', 'b', 'c', '2', 'd'], ['a', '1', 'b', 'c', '2', 'd']]
            >>> stream.record_numbers(0).tolist()  # digits are numbered after letters
            [0, 4, 1, 2, 5, 3]
        """
        start = options.get("start", 0)
        if not self._ends:
            if "remainder" in options:
                raise UnknownOptionError("there is no option 'remainder' here: without stop= a mixture never ends")
            options |= {"num_epochs": None, "remainder": "drop"}
        elif is_integer(start) and start > self._length:
            raise InvalidArgumentError(
                f"start {start} is past the end, {self._length}: a mixture with stop= has one epoch, and further ones "
                "come from stream.epochs()"
            )
        shuffle = options.get("shuffle", False)
        blocks = blocks_of(shuffle)
        options["shuffle"] = blocks is not None or shuffle
        if isinstance(start, str):
            batch = 1 if global_batch_size is None else integer("global_batch_size", global_batch_size, 1)
            members = [ref._current for ref, _ in self._parts]
            options["start"] = position_of(start, self._turns_of(batch), members, batch)
        checked = make_options(self._length, global_batch_size, **options)
        order = self._order(checked.order, blocks, checked.global_batch)
        warn_of_few_lanes(checked.shard_count, order.orders)
        return stream_of(StepReader.of(self._records, replace(checked, order=order)))

    def _turns_of(self, global_batch: int) -> Turns:
        """Return which dataset each position belongs to, if a step has so many records."""
        if not self._is_in_steps:
            return self._turns
        return Turns(tuple(start * global_batch for start in self._turns.starts), self._turns.rounds)

    def __mixture__(self, order: MixedOrder, global_batch: int) -> tuple[DatasetView, MixedOrder]:
        """Return the records, and their order, shuffled as that of another mixture, whose stream goes on over it."""
        first = order.orders[0]
        blocks = first.sizes_of_user if isinstance(first, BlockOrder) else None
        return self._records, self._order(order, blocks, global_batch)

    def _order(self, checked: Order, blocks: Blocks | None, global_batch: int) -> MixedOrder:
        orders: list[Any] = []
        for part, (ref, _) in enumerate(self._parts):
            seed = seed_of_part(checked.seed or 0, part)
            if blocks is None:
                orders.append(ExactOrder(len(ref), checked.shuffle, seed, checked.reshuffle))
            else:
                info = ref._records.info
                order = block_order(
                    blocks, len(ref), info.record_nbytes, info.together, seed=seed, reshuffle=checked.reshuffle
                )
                orders.append(order)
        return MixedOrder(self._turns_of(global_batch), tuple(orders), checked.seed, self._length)

    def _repr_html_(self) -> str:
        """Return a table with the datasets, their weights and the element spec, which notebooks show."""
        from cachelayer.drawing.ref_html import ref_html

        facts = [(repr(ref).partition(", digest=")[0] + ")", str(weight)) for ref, weight in self._parts]
        return ref_html("Mixture", [*facts, ("digest", self._digest_text)], self.element_spec)

    def __repr__(self) -> str:
        parts = ", ".join(f"({ref!r}, {weight!r})" for ref, weight in self._parts)
        stages = f", stages={len(self._turns.starts)}" if len(self._turns.starts) > 1 else ""
        return f"Mixture([{parts}]{stages}, digest={self._digest_text!r})"


@explains_options
def mix(
    parts: Iterable[tuple[View[T], Any]],
    *,
    schedule: Mapping[int, Sequence[Any]] | Mapping[str, Sequence[Any]] | None = None,
    stop: Stop | None = None,
    by: str = "records",
) -> Mixture[T]:
    """Mix datasets into one stream, in proportions that may change at given positions.

    Each dataset goes through its own epochs. Which dataset a position belongs to follows from the weights alone: after
    any number of records of a stage, a dataset has had its share of them within 1.7 records, and within 0.5 records if
    there are two datasets. The datasets take turns in a round of at most 65,536 records. Shares are exact if the
    weights fit such a round, else rounded to 1/65,536.

    Args:
        parts: pairs of a dataset (a DataRef, a view, or a result of :func:`cachelayer.concat` or
            :func:`cachelayer.wrap`) and its weight, a number; one of weight 0 comes later, by the schedule or by
            ``iterator.advance_to(a newer mixture)``. Integers that sum to W, at most 65,536, are exact: of any W
            consecutive records of a stage, a dataset has as many as its weight. Decimals are exact too: 0.7 and 0.3
            are 7 and 3 of 10.
        schedule: the weights of all datasets, by the position from which they count, such as
            ``{0: (0.7, 0.3), 100_000: (0.5, 0.5)}``. It begins at 0, with the weights of the pairs, unless all of
            these are 1. A weight may be 0 in some stages. Places are counts of records, or texts such as
            ``"2_000 steps"`` of the stream's batches, or ``"1e9 tokens"``, by the mean of each dataset.
        stop: None mixes for ever. ``"first"`` ends as soon as one dataset has been read once, ``"all"`` when every
            dataset has been.
        by: what weights are shares of: ``"records"``; the length of a field such as ``"tokens"``, in which padding does
            not count; or a field that is one number, such as a count. The mean over all records of a dataset converts
            them to shares of records.

    Raises:
        InvalidArgumentError: if there are no datasets, one is empty, a weight or a position is invalid, element specs
            differ, lengths are not known, or the end that ``stop`` asks for never comes.
        InvalidTypeError: for other objects.

    Examples:
        >>> letters = cachelayer.wrap("abcdef", identity="letters")
        >>> digits = cachelayer.wrap("12", identity="digits")
        >>> "".join(cachelayer.mix([(letters, 2), (digits, 1)], stop="first").stream())
        'a1bc2'
        >>> "".join(cachelayer.mix([(letters, 2), (digits, 1)], stop="all").stream())
        'a1bc2de1f'
        >>> stages = {0: (1, 1), 4: (1, 0)}
        >>> iterator = iter(cachelayer.mix([(letters, 1), (digits, 1)], schedule=stages).stream())
        >>> "".join(next(iterator) for _ in range(8))
        'a1b2cdef'
    """
    pairs = _pairs(parts)
    if stop is not None and not (isinstance(stop, str) and stop in ("first", "all")):
        raise InvalidArgumentError(f"stop {stop!r}: pass 'first', 'all' or None")
    refs = [ref for ref, _ in pairs]
    members = [ref._current for ref in refs]
    stages, unit = _stages([weight for _, weight in pairs], schedule)
    turns = scheduled(stages, members, by)
    is_in_steps = unit in STEPS and len(stages) > 1
    if is_in_steps and stop is not None:
        raise InvalidArgumentError("a schedule in steps, with stop=: pass its positions, which count records")
    if unit != "records" and unit not in STEPS:
        turns = in_positions(turns, members, unit)
    options: dict[str, Any] = {}
    if schedule is not None:
        starts = [f"{start} {unit}" for start in stages] if is_in_steps else turns.starts
        weights = [tuple(map(weight_literal, of_stage)) for of_stage in stages.values()]
        options["schedule"] = dict(zip(starts, weights, strict=True))
    options |= {name: value for name, value in {"stop": stop, "by": by}.items() if value not in (None, "records")}
    return Mixture(pairs, turns, ENDLESS if stop is None else _end(turns, refs, stop), options, is_in_steps=is_in_steps)


def open_mixture(reference: str, open_part: Callable[[str], View[Any]]) -> Mixture[Any]:
    """Return the mixture that a reference names, with a function that opens each dataset."""
    try:
        node = ast.parse(reference, mode="eval").body
        if not isinstance(node, ast.Call):
            raise TypeError(node)
        pairs = [(str(part), weight) for part, weight in ast.literal_eval(*node.args)]
        options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
        stages = options.get("schedule", {}).items()
        if stages:
            options["schedule"] = {start: tuple(map(weight_of_literal, weights)) for start, weights in stages}
        weights = [weight_of_literal(weight) for _, weight in pairs]
    except (SyntaxError, ValueError, TypeError, AttributeError, RecursionError, MemoryError) as error:
        raise InvalidArgumentError(f"{reference[:200]!r} is no reference of a mixture: {error}") from error
    return mix([(open_part(part), weight) for (part, _), weight in zip(pairs, weights, strict=True)], **options)


def _declared(member: DatasetView) -> DatasetView:
    """Return a part of which all elements are known to have the element spec."""
    from cachelayer.views.wrap import WrappedItems

    base = member.base
    return member.with_base(base.with_declared_spec()) if isinstance(base, WrappedItems) else member


def _pairs(parts: Any) -> list[tuple[View[Any], Any]]:
    """Return the datasets and their weights, which are not checked yet."""
    if not isinstance(parts, Iterable):
        raise InvalidTypeError(f"mix takes a list of pairs of a DataRef and its weight, not a {type(parts).__name__}")
    pairs = []
    for part in parts:
        if isinstance(part, (tuple, list)) and part and isinstance(part[0], Sampled):
            raise InvalidTypeError(
                f"cannot mix {part[0]!r}: parts go through epochs, and a weighted sample has none. Mix the "
                "records themselves, or sample from concat() of all with weights that make up the shares"
            )
        if isinstance(part, (tuple, list)) and part and isinstance(part[0], Mixture):
            raise InvalidTypeError(
                "cannot mix a mixture, which has epochs of its datasets: name these, each with the product of its "
                "weight and that of the mixture; or mix concat() of them, as one dataset"
            )
        if not isinstance(part, (tuple, list)) or len(part) != 2 or not isinstance(part[0], View):
            raise InvalidTypeError(f"cannot mix {part!r}: pass pairs of a DataRef and its weight")
        if len(part[0]) == 0:
            raise InvalidArgumentError(f"{part[0]!r} has no records to mix")
        pairs.append((part[0], part[1]))
    if not pairs:
        raise InvalidArgumentError("nothing to mix: pass one DataRef or more, each with its weight")
    return pairs


def _stages(weights: Sequence[Any], schedule: Any) -> tuple[Mapping[int, Weights], str]:
    """Return the weights of all datasets, by where they begin to count, and the unit of that.

    A schedule must begin with the weights of the pairs, unless these are all 1.
    """
    weights_of_pairs = tuple(map(checked_weight, weights))
    if schedule is None:
        return {0: weights_of_pairs}, "records"
    stages, unit = stages_of(schedule, len(weights))
    first = stages[0]
    total = sum(first)
    total_of_pairs = sum(weights_of_pairs)
    # Shares agree, whatever the weights are multiplied with.
    tolerance = total * total_of_pairs / 2**32
    pairs = zip(weights_of_pairs, first, strict=True)
    agree = all(abs(weight * total - staged * total_of_pairs) <= tolerance for weight, staged in pairs)
    if not agree and any(weight != 1 for weight in weights_of_pairs):
        raise InvalidArgumentError(
            f"the weights of the datasets are {tuple(weights)}, and the schedule begins with others: pass the same, or "
            "1 with each dataset"
        )
    return stages, unit


def _end(turns: Turns, refs: Sequence[View[Any]], stop: Stop) -> int:
    """Return the position at which the first dataset, or the last, has been read once."""
    ends = [turns.end_of(part, len(ref)) for part, ref in enumerate(refs)]
    reached = [end for end in ends if end is not None]
    if not reached or (stop == "all" and len(reached) < len(ends)):
        raise InvalidArgumentError(
            f"stop={stop!r}: {refs[ends.index(None)]!r} is never read to its end: it has weight 0 in the last stage"
        )
    return min(reached) if stop == "first" else max(reached)
