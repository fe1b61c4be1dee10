"""A model of how versions are stored: builders, an appender, an eraser and collectors over one store, step by step.

Each actor is a plain function that yields one operation of the store at a time; between two of them it may pause for
ever, which is what a crash is. A put may lose its reply, or arrive after its sender has given up waiting.
:func:`explore` runs all interleavings and calls a check on every state.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

LOST = "lost"
"""The reply to a put that may have arrived, may arrive later, or never."""


class Stem(NamedTuple):
    """The name of a file: the hash of its content, and the generation in which it was put."""

    content: str
    generation: int


@dataclass(frozen=True)
class Entry:
    """An entry of the log, as the snapshot that is read from it and earlier ones.

    Args:
        generation: how many entries up to this one have deleted files.
    """

    versions: frozenset[tuple[str, frozenset[Stem]]] = frozenset()
    generation: int = 0
    deleted: frozenset[Stem] = frozenset()
    token: str = ""

    @property
    def files(self) -> dict[str, frozenset[Stem]]:
        return dict(self.versions)

    def with_files(self, token: str, files: Mapping[str, frozenset[Stem]]) -> Entry:
        return Entry(frozenset({**self.files, **files}.items()), self.generation, frozenset(), token)

    def without(self, token: str, version: str) -> Entry:
        left = frozenset(pair for pair in self.versions if pair[0] != version)
        return Entry(left, self.generation, frozenset(), token)

    def deleting(self, token: str, stems: frozenset[Stem]) -> Entry:
        return Entry(self.versions, self.generation + 1, stems, token)


class Head(NamedTuple):
    """What an actor knows after it has read the log.

    Args:
        number: how many entries there are.
        deletions: the files that were deleted, with the generation that each deletion began.
    """

    number: int
    entry: Entry
    deletions: frozenset[tuple[int, Stem]]

    @property
    def files(self) -> dict[str, frozenset[Stem]]:
        return self.entry.files

    @property
    def named(self) -> frozenset[Stem]:
        """The files that a version has."""
        return frozenset(stem for stems in self.files.values() for stem in stems)

    def is_good(self, stem: Stem, since: int) -> bool:
        """Return whether no entry since a generation has deleted a file."""
        return not any(stem == deleted and generation > since for generation, deleted in self.deletions)


_EMPTY = Head(1, Entry(), frozenset())


@dataclass(frozen=True)
class Store:
    """The objects of one dataset.

    Args:
        head: what its log says.
        tokens: who wrote the entries.
        notes: the shard that each finished part has.
        late: puts that may still arrive.
    """

    head: Head = _EMPTY
    tokens: tuple[str, ...] = ("",)
    files: frozenset[Stem] = frozenset()
    notes: frozenset[tuple[str, Stem]] = frozenset()
    late: frozenset[Operation] = frozenset()


class Operation(NamedTuple):
    """One request to the store: what it does, and to what."""

    kind: str
    arguments: tuple[Any, ...] = ()

    def run(self, store: Store) -> tuple[Store, Any]:
        """Return the store after this request, and the reply."""
        return OPERATIONS[self.kind](store, *self.arguments)


def _put_entry(store: Store, number: int, entry: Entry) -> tuple[Store, bool]:
    head = store.head
    if head.number != number:
        return store, False
    deleted = {(entry.generation, stem) for stem in entry.deleted}
    after = Head(number + 1, replace(entry, deleted=frozenset(), token=""), head.deletions | deleted)
    return replace(store, head=after, tokens=(*store.tokens, entry.token)), True


def _put_note(store: Store, part: str, stem: Stem) -> tuple[Store, None]:
    return replace(store, notes=frozenset({**dict(store.notes), part: stem}.items())), None


OPERATIONS: dict[str, Callable[..., tuple[Store, Any]]] = {
    "read head": lambda store: (store, store.head),
    "read token": lambda store, number: (store, store.tokens[number] if number < len(store.tokens) else None),
    "put entry": _put_entry,
    "put file": lambda store, stem: (replace(store, files=store.files | {stem}), None),
    "delete file": lambda store, stem: (replace(store, files=store.files - {stem}), None),
    "list files": lambda store: (store, store.files),
    "look": lambda store, stem: (store, stem in store.files),
    "read note": lambda store, part: (store, dict(store.notes).get(part)),
    "put note": _put_note,
}

Actor = Generator[Operation, Any, str]


@dataclass(frozen=True)
class Rules:
    """The rules of the protocol, each of which can be taken out to see what is lost.

    Args:
        names_hold_generations: a file that is put again after it was deleted has another name.
        deletions_are_read: who publishes reads which files the log has deleted since they were put.
        deletions_are_committed: a collector writes what it deletes into the log, on the head that named none of it.
        entries_follow_their_head: an entry is put on the head that it was decided on.
        lost_replies_are_read_back: who loses the reply to an entry reads whose entry is there.
        bases_are_compared: who appends or rewrites commits only on a head that has the base as it was.
    """

    names_hold_generations: bool = True
    deletions_are_read: bool = True
    deletions_are_committed: bool = True
    entries_follow_their_head: bool = True
    lost_replies_are_read_back: bool = True
    bases_are_compared: bool = True


@dataclass(frozen=True)
class Protocol:
    """What each kind of actor does, under these rules.

    In the package, ``commit`` is ``Log.commit``, ``check_file`` is ``publish.lost_files``, ``put_file`` is
    ``ShardTarget.put``, ``resume`` is ``Notes.finished``, ``build`` is ``build_once``, ``publish`` is
    ``publish.publish``, ``append`` is ``derive.append`` with it, ``rewrite`` is ``copy_version`` and
    ``storage.rewrite`` with it, ``erase`` is ``Erasure.erase``, ``remove`` is ``Storage.delete``, and ``choose`` and
    ``collect`` are ``gc.garbage`` and ``gc.collect``.
    """

    rules: Rules = field(default_factory=Rules)

    def stored(self, stem: Stem) -> Stem:
        """Return the name of a file in the store."""
        return stem if self.rules.names_hold_generations else Stem(stem.content, 0)

    def check_file(self, stem: Stem, head: Head) -> Generator[Operation, Any, bool]:
        """Return whether a file that was put before can be published on a head."""
        if self.rules.deletions_are_read:
            return head.is_good(self.stored(stem), since=stem.generation)
        return (yield Operation("look", (self.stored(stem),)))

    def put(self, kind: str, *arguments: Any) -> Generator[Operation, Any, None]:
        """Put what may be there already, again if the reply was lost."""
        while (yield Operation(kind, arguments)) == LOST:
            pass

    def commit(self, number: int, entry: Entry) -> Generator[Operation, Any, bool]:
        """Put an entry on a head; return False if another entry came first."""
        while True:
            if not self.rules.entries_follow_their_head:
                number = (yield Operation("read head")).number
            reply = yield Operation("put entry", (number, entry))
            if reply != LOST:
                return bool(reply)
            if not self.rules.lost_replies_are_read_back:
                return True
            token = yield Operation("read token", (number,))
            if token is not None:
                return bool(token == entry.token)

    def put_file(self, content: str) -> Generator[Operation, Any, Stem]:
        """Put a file under the present generation, and return its name."""
        head = yield Operation("read head")
        stem = Stem(content, head.entry.generation)
        del head
        yield from self.put("put file", self.stored(stem))
        return stem

    def resume(self, shard: str) -> Generator[Operation, Any, Stem | None]:
        """Return the file in the note of a part, if it is good."""
        noted = yield Operation("read note", (shard,))
        if noted is None:
            return None
        head = yield Operation("read head")
        return noted if (yield from self.check_file(noted, head)) else None

    def build(self, token: str, version: str, shard: str) -> Actor:
        """Build a version of one shard, or resume it from the note of another, and publish it."""
        stem = yield from self.resume(shard)
        while True:
            if stem is None:
                stem = yield from self.put_file(shard)
                yield from self.put("put note", shard, stem)
            result = yield from self.publish(token, version, stem)
            if result is not None:
                return result
            stem = None

    def publish(
        self,
        token: str,
        version: str,
        stem: Stem,
        base: tuple[str, frozenset[Stem]] | None = None,
        shared: frozenset[Stem] = frozenset(),
    ) -> Generator[Operation, Any, str | None]:
        """Publish a version of a file, and of those that it shares; return None if the file was deleted meanwhile.

        Args:
            token, version: who publishes what.
            stem: the file.
            base: a version that was read, and the files that it had then.
            shared: files of the base.
        """
        while True:
            head = yield Operation("read head")
            if version in head.files:
                return "it is there"
            if base is not None and self.rules.bases_are_compared and head.files.get(base[0]) != base[1]:
                return "the base is gone"
            if not (yield from self.check_file(stem, head)):
                return None
            files = frozenset({self.stored(stem)}) | shared
            if (yield from self.commit(head.number, head.entry.with_files(token, {version: files}))):
                return f"published {version}"

    def append(self, token: str, base: str, version: str, shard: str) -> Actor:
        """Publish a version of the shards of another and one more."""
        head = yield Operation("read head")
        shards = head.files.get(base)
        del head
        if shards is None:
            return "no base"
        while True:
            stem = yield from self.put_file(shard)
            result = yield from self.publish(token, version, stem, (base, shards), shards)
            if result is not None:
                return result

    def rewrite(self, token: str, base: str, version: str) -> Actor:
        """Publish a version with the records of another in a shard of its own."""
        head = yield Operation("read head")
        shards = head.files.get(base)
        del head
        if shards is None:
            return "no base"
        while True:
            stem = yield from self.put_file(" and ".join(sorted(f"{shard.content} again" for shard in shards)))
            result = yield from self.publish(token, version, stem, (base, shards))
            if result is not None:
                return result

    def erase(self, token: str, version: str, shard: str, erased: str) -> Actor:
        """Put a shard without a record in the place of one that holds it, in every version of the dataset."""
        stem: Stem | None = None
        while True:
            head = yield Operation("read head")
            holding = frozenset(name for name, stems in head.files.items() if shard in {old.content for old in stems})
            if version not in holding:
                return "nothing to erase"
            if stem is None or not (yield from self.check_file(stem, head)):
                del head, holding
                stem = yield from self.put_file(erased)
                continue
            others = {name: {old for old in head.files[name] if old.content != shard} for name in holding}
            files = frozenset((name, frozenset({self.stored(stem), *left})) for name, left in others.items())
            del others
            if (yield from self.commit(head.number, head.entry.with_files(token, dict(files)))):
                return "erased"

    def remove(self, token: str, version: str) -> Actor:
        while True:
            head = yield Operation("read head")
            if version not in head.files:
                return "not there"
            if (yield from self.commit(head.number, head.entry.without(token, version))):
                return f"removed {version}"

    def choose(self, token: str) -> Generator[Operation, Any, frozenset[Stem]]:
        """Write into the log which files are deleted: those that no version has; return them."""
        listed = yield Operation("list files")
        while True:
            head = yield Operation("read head")
            victims = frozenset(listed - head.named)
            if not victims or not self.rules.deletions_are_committed:
                return victims
            if (yield from self.commit(head.number, head.entry.deleting(token, victims))):
                return victims

    def collect(self, token: str) -> Actor:
        """Delete the files that no version has."""
        victims = yield from self.choose(token)
        for stem in sorted(victims):
            yield Operation("delete file", (stem,))
        return "deleted"


class State(NamedTuple):
    """The store, what each actor has been answered, and how many replies may still be lost."""

    store: Store
    answers: tuple[tuple[Any, ...], ...]
    losses: int


class Stand(NamedTuple):
    """Where an actor stands."""

    asks: Operation | None
    result: str | None
    place: tuple[Any, ...]


def stand(actor: Callable[[], Actor], answers: Iterable[Any]) -> Stand:
    """Run an actor on these answers, and return where it stands: the lines and values of its functions."""
    running = actor()
    try:
        operation = next(running)
        for answer in answers:
            operation = running.send(answer)
    except StopIteration as stop:
        return Stand(None, stop.value, (stop.value,))
    place: list[Any] = []
    inner: Any = running
    while inner is not None:
        known = frozenset((name, value) for name, value in inner.gi_frame.f_locals.items() if name != "self")
        place.append((inner.gi_code.co_name, inner.gi_frame.f_lasti, known))
        inner = inner.gi_yieldfrom
    return Stand(operation, None, tuple(place))


def explore(
    actors: Mapping[str, Callable[[], Actor]],
    check: Callable[[Store, Store, Mapping[str, str | None]], str | None],
    *,
    losses: int = 0,
) -> tuple[int, str | None]:
    """Run all interleavings of some actors, each of which may stop anywhere.

    Args:
        check: called with the store before and after each operation, and with the result of each actor, None if it has
            none yet; returns what is wrong.
        losses: how many puts may lose their reply; each of these arrives at once, later, or never.

    Returns:
        The number of states, and what is wrong with the first bad one, if there is one.
    """
    names = list(actors)
    begin = State(Store(), ((),) * len(names), losses)
    stands: dict[tuple[int, tuple[Any, ...]], Stand] = {}

    def stand_of(number: int, answers: tuple[Any, ...]) -> Stand:
        key = (number, answers)
        if key not in stands:
            stands[key] = stand(actors[names[number]], answers)
        return stands[key]

    def followers(state: State) -> Iterator[State]:
        for number in range(len(names)):
            operation = stand_of(number, state.answers[number]).asks
            if operation is None:
                continue
            after, reply = operation.run(state.store)
            yield _answered(state, number, after, reply)
            # Only of a request that changes the store it matters whether the reply arrives.
            if operation.kind.startswith("put") and state.losses:
                fewer = state._replace(losses=state.losses - 1)
                yield _answered(fewer, number, after, LOST)
                yield _answered(fewer, number, replace(state.store, late=state.store.late | {operation}), LOST)
        for operation in state.store.late:
            arrived, _ = operation.run(state.store)
            yield state._replace(store=replace(arrived, late=arrived.late - {operation}))

    def key_of(state: State) -> tuple[Any, ...]:
        # Who wrote an entry matters only to those who lost a reply.
        store = state.store if losses else replace(state.store, tokens=())
        # Actors of one kind may change places.
        places = sorted(hash(stand_of(number, answers).place) for number, answers in enumerate(state.answers))
        return store, tuple(places), state.losses

    seen = {hash(key_of(begin))}
    pending = [begin]
    while pending:
        state = pending.pop()
        for follower in followers(state):
            results = {name: stand_of(number, follower.answers[number]).result for number, name in enumerate(names)}
            wrong = check(state.store, follower.store, results)
            if wrong is not None:
                return len(seen), wrong
            key = hash(key_of(follower))
            if key not in seen:
                seen.add(key)
                pending.append(follower)
    return len(seen), None


def _answered(state: State, number: int, store: Store, reply: Any) -> State:
    answers = (*state.answers[:number], (*state.answers[number], reply), *state.answers[number + 1 :])
    return State(store, answers, state.losses)
