"""What the first release stored opens, verifies, resumes and grows in this one."""

from __future__ import annotations

import json
import tarfile
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import frozen_format
import pytest
from document_views import plain
from frozen_format import CHANGES, ERASED, MORE, ORDERS, RECORDS, TIMES, element, numbers_of
from repository import ROOT

import cachelayer
from cachelayer import ErasedRecordError, Storage

FILE = ROOT / "tests" / "data" / "format-1.tar.gz"
pytestmark = pytest.mark.needs("PIL", "av", "soundfile")


class Frozen(NamedTuple):
    storage: Storage
    digests: dict[str, str]
    states: dict[str, Any]
    noted: list[str]
    """The shards of the interrupted build."""


@pytest.fixture
def frozen(tmp_path: Path) -> Frozen:
    """A copy of the storage, which the test may change."""
    with tarfile.open(FILE) as file:
        file.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())
    noted = [path.name for path in (tmp_path / "storage" / "interrupted" / "shards").glob("*.array_record")]
    return Frozen(Storage(tmp_path / "storage"), expected["digests"], expected["states"], noted)


def test_every_version_has_its_digest_and_is_whole(frozen: Frozen) -> None:
    assert list(frozen.storage.versions("kinds")) == list(CHANGES)
    for name in CHANGES:
        ref = frozen.storage.fetch(f"kinds@{name}")
        assert ref.digest == frozen.digests[name]
        assert frozen.storage.verify(f"kinds@{name}").ok
    assert frozen.storage.tags("kinds") == {"checked": "compressed"}
    assert [event.kind for event in frozen.storage.history("kinds")][-4:] == ["delete", "tag", "erase", "collect"]


def test_records_are_stored_as_this_release_stores_them(frozen: Frozen, tmp_path: Path) -> None:
    new = Storage(tmp_path / "new")
    for name, change in CHANGES.items():
        change(new)
        ref, again = frozen.storage.fetch(f"kinds@{name}"), new.fetch(f"kinds@{name}")
        kept = [number for number in range(len(ref)) if number not in ref.erased]
        assert plain(ref.raw().read(kept)) == plain(again.raw().read(kept))
    assert new.fetch("kinds@compressed").digest == frozen.digests["compressed"]
    with pytest.raises(ErasedRecordError):
        frozen.storage.fetch("kinds@built")[ERASED[0]]


@pytest.mark.parametrize("name", ORDERS)
def test_a_state_goes_on_where_it_was_saved(frozen: Frozen, name: str) -> None:
    iterator = iter(ORDERS[name](frozen.storage))
    iterator.set_state(frozen.states[name]["state"])
    following = [numbers_of(batch) for batch in islice(iterator, len(frozen.states[name]["next"]))]
    assert following == frozen.states[name]["next"]


def test_every_order_has_a_state(frozen: Frozen) -> None:
    assert frozen.states.keys() == ORDERS.keys()


def test_versions_grow(frozen: Frozen) -> None:
    rows = [element(RECORDS + n) for n in range(MORE)]
    longer = frozen.storage.append("kinds@compressed", new="more", source=rows)
    assert len(longer) == RECORDS + MORE
    assert plain(longer.raw().read([RECORDS])) == plain(frozen.storage.fetch("kinds@longer").raw().read([RECORDS]))
    assert frozen.storage.verify("kinds@more").ok
    frozen.storage.gc(grace=0)
    assert frozen.storage.verify("kinds@longer").ok


def test_an_interrupted_build_goes_on(frozen: Frozen, tmp_path: Path) -> None:
    done = frozen_format.interrupted(frozen.storage)
    assert len(done) == RECORDS * TIMES
    source = cachelayer.concat([frozen_format.built(frozen.storage)] * TIMES)
    again = Storage(tmp_path / "new").submit(source, "d", "v1", shard_bytes=5 * frozen_format.SHARD_BYTES)
    assert done.digest == again.digest
    names = [path.name for path in (tmp_path / "storage" / "interrupted" / "shards").glob("*.array_record")]
    assert set(frozen.noted) <= set(names)
