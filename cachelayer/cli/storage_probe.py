"""Probe a storage: create an object, try to overwrite it, read it and delete it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from cachelayer.errors import CacheLayerError
from cachelayer.objects.store import ObjectStore


@dataclass(frozen=True)
class Check:
    """The result of one thing that a storage must be able to do.

    Args:
        check: what it must do.
        ok: whether it did so.
        detail: how long it took, or why it failed.
    """

    check: str
    ok: bool
    detail: str


def probe(store: ObjectStore) -> list[Check]:
    """Check what a storage can do, up to the first failure. Nothing is left in it."""
    name = f"_probe-{uuid.uuid4().hex}"
    first, second = (uuid.uuid4().hex.encode() for _ in range(2))
    wanted: list[tuple[str, Callable[[], bool]]] = [
        ("puts an object where there is none", lambda: store.put_if_absent(name, first)),
        ("refuses to put another over it", lambda: not store.put_if_absent(name, second)),
        ("reads what was put first", lambda: store.read(name) == first),
        ("deletes it", lambda: _deleted(store, name)),
        ("lists what there is", lambda: name not in store.names("")),
    ]
    found: list[Check] = []
    try:
        for check, does in wanted:
            found.append(_checked(check, does))
            if not found[-1].ok:
                break
    finally:
        if not found or not found[-1].ok:
            with suppress(CacheLayerError):
                store.delete(name)
    return found


def _checked(check: str, does: Callable[[], bool]) -> Check:
    begin = time.perf_counter()
    try:
        ok = does()
    except CacheLayerError as error:
        return Check(check, ok=False, detail=str(error))
    return Check(check, ok, f"{1000 * (time.perf_counter() - begin):.0f} ms" if ok else "it does not")


def _deleted(store: ObjectStore, name: str) -> bool:
    store.delete(name)
    return not store.exists(name)
