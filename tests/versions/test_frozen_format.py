"""What the first release stored opens, verifies, resumes and grows in this one."""

import json
import tarfile
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import frozen_format
import ml_dtypes
import pytest
from document_views import plain
from frozen_format import CHANGES, ERASED, MORE, NEW_ML_DTYPES, ORDERS, RECORDS, TIMES, element, numbers_of
from repository import ROOT

import cachelayer
from cachelayer import CacheLayerWarning, ErasedRecordError, Storage
from cachelayer.arrayrecord.index import COMPRESSIONS
from cachelayer.builds import build_plan
from cachelayer.specs import dtypes, spec_json
from cachelayer.streams.order.orders import VERSIONS

FILE = ROOT / "tests" / "data" / "format-1.tar.gz"
pytestmark = pytest.mark.needs("PIL", "av", "soundfile")


# The versions whose dtypes this ml_dtypes has.
READABLE = [name for name in CHANGES if name != "new-dtypes" or hasattr(ml_dtypes, NEW_ML_DTYPES[-1])]


class Frozen(NamedTuple):
    root: Path
    storage: Storage
    digests: dict[str, str]
    states: dict[str, Any]
    loops: dict[str, Any]
    noted: list[str]
    """The shards of the interrupted builds."""


@pytest.fixture
def frozen(tmp_path: Path) -> Frozen:
    """A copy of the storage, which the test may change."""
    with tarfile.open(FILE) as file:
        file.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())
    noted = [path.name for path in (tmp_path / "storage" / "interrupted" / "shards").glob("*.array_record")]
    return Frozen(
        tmp_path / "storage",
        Storage(tmp_path / "storage"),
        expected["digests"],
        expected["states"],
        expected["loops"],
        noted,
    )


def test_every_version_has_its_digest_and_is_whole(frozen: Frozen) -> None:
    assert list(frozen.storage.versions("kinds")) == list(CHANGES)
    for name in READABLE:
        ref = frozen.storage.fetch(f"kinds@{name}")
        assert ref.digest == frozen.digests[name]
        assert frozen.storage.verify(f"kinds@{name}").ok
    assert frozen.storage.tags("kinds") == {"checked": "compressed"}
    assert [event.kind for event in frozen.storage.history("kinds")][-4:] == ["delete", "tag", "erase", "collect"]


def test_every_kind_of_leaf_dtype_and_order_is_stored(frozen: Frozen) -> None:
    """Whoever adds one adds a storage that has it; CONTRIBUTING says how."""
    manifests = "".join(path.read_text() for path in (frozen.root / "kinds" / "manifests").glob("*.json"))
    assert {kind for kind in spec_json._KINDS if f'"kind":"{kind}"' not in manifests} == set()
    assert {name for name in dtypes._ML_DTYPES if f'"dtype":"{name}"' not in manifests} == set()
    assert {name for name in COMPRESSIONS if f'"{name}"' not in manifests} == set()
    assert {state["state"]["order"]["kind"] for state in frozen.states.values()} == set(VERSIONS)


def test_records_are_stored_as_this_release_stores_them(frozen: Frozen, tmp_path: Path) -> None:
    new = Storage(tmp_path / "new")
    for name in READABLE:
        CHANGES[name](new)
        ref, again = frozen.storage.fetch(f"kinds@{name}"), new.fetch(f"kinds@{name}")
        kept = [number for number in range(len(ref)) if number not in ref.erased]
        assert plain(ref.raw().read(kept)) == plain(again.raw().read(kept))
    assert new.fetch("kinds@compressed").digest == frozen.digests["compressed"]
    with pytest.raises(ErasedRecordError):
        frozen.storage.fetch("kinds@built")[ERASED[0]]


@pytest.mark.filterwarnings("ignore:the state was saved over digest")
@pytest.mark.parametrize("name", [*ORDERS, "advanced"])
def test_a_state_goes_on_where_it_was_saved(frozen: Frozen, name: str) -> None:
    iterator = iter(ORDERS.get(name, frozen_format.grown)(frozen.storage))
    iterator.set_state(frozen.states[name]["state"])
    following = [numbers_of(batch) for batch in islice(iterator, len(frozen.states[name]["next"]))]
    assert following == frozen.states[name]["next"]


def test_a_state_of_loops_goes_on_where_it_was_saved(frozen: Frozen) -> None:
    epochs = frozen_format.loops(frozen.storage)
    epochs.set_state(frozen.loops["state"])
    batches = chain.from_iterable(epochs)
    following = [numbers_of(batch) for batch in islice(batches, len(frozen.loops["next"]))]
    assert following == frozen.loops["next"]


def test_versions_grow(frozen: Frozen) -> None:
    rows = [element(RECORDS + n) for n in range(MORE)]
    longer = frozen.storage.append("kinds@compressed", new="more", source=rows)
    assert len(longer) == RECORDS + MORE
    assert plain(longer.raw().read([RECORDS])) == plain(frozen.storage.fetch("kinds@longer").raw().read([RECORDS]))
    assert frozen.storage.verify("kinds@more").ok
    frozen.storage.gc(grace=0)
    assert frozen.storage.verify("kinds@longer").ok


@pytest.mark.parametrize("options", [{}, {"workers": 2}, {"hosts": (1, 2)}], ids=str)
def test_an_interrupted_build_goes_on(
    frozen: Frozen, tmp_path: Path, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The host that was killed, which has another name here, is waited for.
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "1")
    done = frozen_format.interrupted(frozen.storage, **options)
    assert len(done) == RECORDS * TIMES
    source = cachelayer.concat([frozen_format.built(frozen.storage)] * TIMES)
    again = Storage(tmp_path / "new").submit(source, "d@v1", shard_bytes=5 * frozen_format.SHARD_BYTES)
    assert done.digest == again.digest
    names = [path.name for path in (tmp_path / "storage" / "interrupted" / "shards").glob("*.array_record")]
    assert set(frozen.noted) <= set(names)


def test_an_interrupted_build_whose_notes_have_another_format_begins_anew(
    frozen: Frozen, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(build_plan, "FORMAT", 2)
    monkeypatch.setenv("CACHELAYER_LEASE_SECONDS", "1")
    with pytest.warns(CacheLayerWarning, match="format was 1 and is 2"):
        assert len(frozen_format.interrupted(frozen.storage)) == RECORDS * TIMES
