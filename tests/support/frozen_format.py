"""Write what a release stores, for the releases after it: `python tests/support/frozen_format.py FILE.tar.gz`.

The file holds a storage, `storage/`, with every kind of leaf, version, change and note, and `expected.json`: the digest
of each version, and for each order a state and the records of the steps that follow it. Elements are made by
arithmetic, so that any later release makes them again.
"""

import getpass
import io
import json
import os
import platform
import re
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import wave
from collections.abc import Callable
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from PIL import Image

import cachelayer
from cachelayer import (
    ArraySpec,
    AudioSpec,
    Blocks,
    ImageSpec,
    JsonSpec,
    RaggedSpec,
    SparseSpec,
    Storage,
    VideoSpec,
)

# The bytes of other files follow from the elements; those of a video depend on the library that encodes it.
VIDEO = Path(__file__).resolve().parents[1].joinpath("data", "video.mp4").read_bytes()
RECORDS, MORE = 24, 8
# How often the interrupted build takes the records: more than decide where its parts begin.
TIMES = 5
SHARD_BYTES = 6000
STEPS_AFTER = 3
ML_DTYPES = [
    *("bfloat16", "float8_e3m4", "float8_e4m3", "float8_e4m3b11fnuz", "float8_e4m3fn", "float8_e4m3fnuz"),
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu", "float6_e2m3fn", "float6_e3m2fn", "float4_e2m1fn"),
    *("int2", "int4", "uint2", "uint4"),
]
# Not in every ml_dtypes that this release takes.
NEW_ML_DTYPES = ["int1", "uint1", "complex32", "bcomplex32"]
DTYPES = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128", *ML_DTYPES),
]


NOTE = re.compile(r"/_builds/.*/(\d{5})\.json$")
# Temporary files, and 64 KiB of random bytes, which a log makes again.
LEFT_OUT = re.compile(r"_tmp/|/_log/reserve$")


class Point(NamedTuple):
    x: int
    y: float


SPEC: dict[str, Any] = {
    "n": ArraySpec("int64"),
    "group": ArraySpec(str),
    "numbers": {name: ArraySpec(name) for name in DTYPES},
    "times": (ArraySpec("datetime64[us]"), ArraySpec("timedelta64[s]")),
    "point": Point(ArraySpec("int32"), ArraySpec("float64")),
    "pair": [ArraySpec("int16"), ArraySpec("S3")],
    "nothing": None,
    "square": ArraySpec("uint8", (2, 3)),
    "rows": ArraySpec("float32", (None, 2)),
    "tokens": ArraySpec("int32", (None,)),
    "names": ArraySpec(str, (None,)),
    "blob": ArraySpec(bytes),
    "blobs": ArraySpec(bytes, (None,)),
    "fixed": ArraySpec("U4"),
    "maybe": ArraySpec("float32", (None,), nullable=True),
    "holes": ArraySpec("int16", (None,), nullable_values=True),
    "dict": cachelayer.NullableDict({"a": ArraySpec("int8"), "b": ArraySpec(str, nullable=True)}),
    "ragged": RaggedSpec("int64", (None, None)),
    "letters": RaggedSpec(str, (None, None, None), ragged_rank=2, nullable=True, splits_dtype="int32"),
    "gaps": RaggedSpec("int8", (None, None), nullable_values=True),
    "sparse": SparseSpec("float32", (10,)),
    "scattered": SparseSpec("int16", (None, 4), nullable=True),
    "json": JsonSpec(),
    "image": ImageSpec(),
    "grey": ImageSpec("L", nullable=True),
    "sound": AudioSpec(),
    "mono": AudioSpec(8000, 1, nullable=True),
    "video": VideoSpec(nullable=True),
}


def sound(number: int) -> bytes:
    """A WAV file of some frames."""
    file = io.BytesIO()
    with wave.open(file, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(8000)
        out.writeframes((np.arange(10 + number, dtype=np.int16) * 100).tobytes())
    return file.getvalue()


def picture(number: int) -> bytes:
    """A bitmap file: its bytes do not depend on a library of compression."""
    file = io.BytesIO()
    Image.fromarray(((np.arange(48).reshape(4, 4, 3) * 5 + number) % 256).astype(np.uint8)).save(file, "BMP")
    return file.getvalue()


def number(value: int, dtype: str) -> Any:
    return np.asarray(value).astype(np.dtype(getattr(ml_dtypes, dtype, dtype)))[()]


def element(n: int) -> dict[str, Any]:
    """An element with a value of every kind of leaf."""
    # float8_e8m0fnu has no 0.
    numbers = {name: number(1 if name == "float8_e8m0fnu" else n % 2, name) for name in DTYPES}
    return {
        "n": n,
        "group": f"g{n % 3}",
        "numbers": numbers,
        "times": (np.datetime64("2026-01-01T00:00:00.000000") + np.timedelta64(n, "s"), np.timedelta64(n, "s")),
        "point": Point(n, n / 2),
        "pair": [n, b"p%d" % n],
        "nothing": None,
        "square": np.full((2, 3), n, np.uint8),
        "rows": np.full((n % 3, 2), n, np.float32),
        "tokens": np.arange(n % 7, dtype=np.int32) + n,
        "names": [f"é{k}" for k in range(n % 3)],
        "blob": bytes(range(n % 5)),
        "blobs": [b"b" * k for k in range(n % 4)],
        "fixed": f"f{n}",
        "maybe": None if n % 4 == 0 else np.arange(n % 3, dtype=np.float32),
        "holes": [None if k % 2 else k for k in range(n % 4)],
        "dict": None if n % 5 == 0 else {"a": n, "b": None if n % 2 else "b"},
        "ragged": [list(range(k)) for k in range(n % 3)],
        "letters": None if n % 4 == 1 else [[["w" * k] for k in range(n % 3)], []],
        "gaps": [[None, n], [], [3]][: n % 4],
        "sparse": cachelayer.Sparse([[n % 10]], [np.float32(n)], [10]),
        "scattered": None if n % 3 else cachelayer.Sparse([[n, 2]], [np.int16(n)], [n + 1, 4]),
        "json": {"n": n, "list": [1, None, "x"], "deep": {"t": [n / 2]}},
        "image": picture(n),
        "grey": None if n % 2 else picture(n),
        "sound": sound(n),
        "mono": None if n % 2 else sound(n),
        "video": VIDEO if n % 6 == 0 else None,
    }


def score(row: dict[str, Any]) -> dict[str, Any]:
    """The columns that are added."""
    return {"score": np.float32(row["n"] / 4), "words": np.arange(row["n"] % 3, dtype=np.int16)}


def size(row: dict[str, Any]) -> dict[str, Any]:
    """Columns of fixed size: they are stored as an array."""
    return {"size": np.int32(len(row["tokens"])), "half": np.float16(row["n"] / 2)}


OPTIONS: dict[str, Any] = {"element_spec": SPEC, "shard_bytes": SHARD_BYTES, "progress": False}
# What makes each version of the dataset "kinds", in this order.
CHANGES: dict[str, Callable[[Storage], Any]] = {
    "built": lambda storage: storage.submit([element(n) for n in range(RECORDS)], "kinds@built", **OPTIONS),
    "longer": lambda storage: storage.append(
        "kinds@built", new="longer", source=[element(RECORDS + n) for n in range(MORE)], progress=False
    ),
    "scored": lambda storage: storage.add_columns("kinds@longer", new="scored", columns=score, progress=False),
    "compressed": lambda storage: storage.rewrite(
        "kinds@built", new="compressed", compression="zstd", shuffle_seed=3, progress=False
    ),
    "chosen": lambda storage: storage.derive("kinds@longer", new="chosen", keep="n % 2 == 0"),
    "picked": lambda storage: storage.derive("kinds@longer", new="picked", keep=[5, 1, 5, 30]),
    "measured": lambda storage: storage.add_columns("kinds@compressed", new="measured", columns=size, progress=False),
    "grown": lambda storage: storage.append(
        "kinds@compressed", new="grown", source=[element(RECORDS + n) for n in range(MORE)], progress=False
    ),
    "plain": lambda storage: storage.submit([b"", b"a", b"bc" * 300], "kinds@plain", progress=False),
    "new-dtypes": lambda storage: storage.submit(
        [{name: number(n, name) for name in NEW_ML_DTYPES} for n in range(2)], "kinds@new-dtypes", progress=False
    ),
    "empty": lambda storage: storage.submit(
        [], "kinds@empty", element_spec={"n": ArraySpec("int64")}, allow_empty=True, progress=False
    ),
}
ERASED = [3]
ORDERS: dict[str, Callable[[Storage], Any]] = {
    "sequential": lambda storage: built(storage).stream(4, num_epochs=2),
    "exact": lambda storage: built(storage).stream(4, shuffle=True, seed=1, num_epochs=3),
    "the same in every epoch": lambda storage: built(storage).stream(
        4, shuffle=True, seed=1, num_epochs=3, reshuffle=False, remainder="drop"
    ),
    "above a pad": lambda storage: built(storage)[:22].stream(4, shuffle=True, seed=1, num_epochs=3, remainder="wrap"),
    "blocks": lambda storage: built(storage).stream(
        4, shuffle=Blocks(records=3, window=2, lanes=2), seed=1, num_epochs=3
    ),
    "buckets": lambda storage: built(storage).stream(4, shuffle=True, seed=1, num_epochs=3, buckets=("tokens", [2, 7])),
    "weighted": lambda storage: built(storage).sample([float(n % 3) for n in range(RECORDS)], seed=2).stream(4),
    "mixture": lambda storage: cachelayer.mix(
        [(built(storage), 0.75), (storage.fetch("kinds@compressed"), 0.25)]
    ).stream(4, shuffle=True, seed=1),
    "windows": lambda storage: (
        built(storage).windows("tokens", 4, beside="n").stream(2, shuffle=True, seed=1, num_epochs=3)
    ),
    "packs": lambda storage: (
        built(storage).packed("tokens", 8, beside="n").stream(2, shuffle=True, seed=1, num_epochs=3)
    ),
    "padded": lambda storage: (
        built(storage).fields("n", "tokens").padded("tokens", 8).stream(4, shuffle=True, seed=1, num_epochs=3)
    ),
    "rolling": lambda storage: (
        built(storage)
        .fields("n", "group")
        .rolling(3, by="group", order="n")
        .stream(2, shuffle=True, seed=1, num_epochs=3)
    ),
    "split": lambda storage: (
        built(storage).split({"a": 0.75, "b": 0.25}, seed=5, by="n")["a"].stream(4, shuffle=True, seed=1, num_epochs=3)
    ),
    "concat": lambda storage: cachelayer.concat([built(storage), built(storage)[::2]]).stream(
        4, shuffle=True, seed=1, num_epochs=3
    ),
    "mixture in blocks": lambda storage: cachelayer.mix([(built(storage), 0.5), (built(storage)[::2], 0.5)]).stream(
        4, shuffle=Blocks(records=3, window=2, lanes=2), seed=1
    ),
    "windows of all leaves": lambda storage: (
        built(storage).windows(["tokens"], 4, remainder="pad", segments=True, beside="n").stream(2, num_epochs=3)
    ),
    "packs with a seed": lambda storage: (
        built(storage).packed("tokens", 8, seed=3, beside="n", long="truncate").stream(2, num_epochs=3)
    ),
    "clips": lambda storage: (
        built(storage).fields("n", "sound").clips("sound", 4, beside="n").stream(4, shuffle=True, seed=1, num_epochs=3)
    ),
    "strata": lambda storage: built(storage).folds(3, seed=5, stratify="group")[2][0].stream(4, num_epochs=3),
    "folds": lambda storage: built(storage).folds(3, seed=5)[1][0].stream(4, shuffle=True, seed=1, num_epochs=3),
    "kept records": lambda storage: storage.fetch("kinds@chosen").stream(3, shuffle=True, seed=1, num_epochs=3),
    "columns": lambda storage: storage.fetch("kinds@measured").stream(4, shuffle=True, seed=1, num_epochs=3),
    "left out": lambda storage: (
        built(storage).stream(4, shuffle=True, seed=1, num_epochs=3).without(steps=[3], records=[9])
    ),
    "erased since": lambda storage: storage.fetch("kinds@longer").stream(4, shuffle=True, seed=SEED, num_epochs=3),
}
# With it, the steps that follow the state do not have the record that is erased later.
SEED = 5


def built(storage: Storage) -> Any:
    """The records of the version "compressed": none of them is erased."""
    return storage.fetch("kinds@compressed")


def numbers_of(batch: Any) -> Any:
    """The record numbers of a batch, or those that its rows are made of."""
    return np.asarray(batch["n"]).tolist()


def grown(storage: Storage) -> Any:
    return storage.fetch("kinds@grown").stream(4, shuffle=True, seed=1, num_epochs=4)


def advanced(storage: Storage) -> Any:
    """An iterator that went on from a version to the version with more records."""
    iterator = iter(built(storage).stream(4, shuffle=True, seed=1, num_epochs=4))
    next(iterator)
    iterator.advance_to(storage.fetch("kinds@grown"))
    return iterator


def loops(storage: Storage) -> Any:
    """What frameworks loop over: an iterator over epochs, whose states have another form."""
    return built(storage).stream(4, shuffle=True, seed=1, num_epochs=3).epochs()


def states_of(storage: Storage) -> dict[str, Any]:
    """For each order: a state in the midst of an epoch, and the record numbers of the steps that follow."""
    iterators = {name: iter(make(storage)) for name, make in ORDERS.items()} | {"advanced": advanced(storage)}
    states = {}
    for name, iterator in iterators.items():
        for _ in range(2):
            next(iterator)
        state = iterator.get_state()
        states[name] = {"state": state, "next": [numbers_of(batch) for batch in islice(iterator, STEPS_AFTER)]}
    return states


def state_of_loops(storage: Storage) -> dict[str, Any]:
    epochs = loops(storage)
    batches = chain.from_iterable(epochs)
    for _ in range(2):
        next(batches)
    state = epochs.get_state()
    return {"state": state, "next": [numbers_of(batch) for batch in islice(batches, STEPS_AFTER)]}


def write(folder: Path) -> None:
    """Write the storage and what is expected of it."""
    storage = Storage(folder / "storage")
    for change in CHANGES.values():
        change(storage)
    storage.submit([{"x": 1}], "kinds@deleted", progress=False)
    storage.delete("kinds@deleted")
    storage.tag("kinds@compressed", tag="checked")
    states = states_of(storage)
    of_loops = state_of_loops(storage)
    storage.erase("kinds@built", records=ERASED, reason="asked for", grace=0)
    for hosts in (None, (0, 2)):
        code = (
            "import sys, frozen_format as f; f.hide_machine(); f.die_at_third_note(); "
            f"f.interrupted(f.Storage(sys.argv[1]), hosts={hosts})"
        )
        killed = subprocess.run([sys.executable, "-c", code, str(folder / "storage")], check=False)
        assert killed.returncode == -signal.SIGKILL
    digests = {name: storage.fetch(f"kinds@{name}").digest for name in CHANGES}
    document = {"release": cachelayer.__version__, "digests": digests, "states": states, "loops": of_loops}
    (folder / "expected.json").write_text(json.dumps(document, indent=1))


def interrupted(storage: Storage, **options: Any) -> Any:
    """Build, or go on with, the version whose first build is killed: by itself, or by hosts that share it."""
    source = cachelayer.concat([built(storage)] * TIMES)
    version = "shared" if options.get("hosts") else "v1"
    return storage.cache(source, f"interrupted@{version}", shard_bytes=5 * SHARD_BYTES, progress=False, **options)


def die_at_third_note() -> None:
    """Kill this process when it is about to put the third note of a build."""
    notes = set()

    def watch(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("os.link", "os.rename"):
            notes.update(NOTE.findall(str(arguments[1])))
            if len(notes) == 3:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(watch)


def hide_machine() -> None:
    """Record no names of this machine."""
    socket.gethostname = lambda: "host"
    platform.node = lambda: "host"
    getpass.getuser = lambda: "user"


if __name__ == "__main__":
    hide_machine()
    with tempfile.TemporaryDirectory() as folder:
        write(Path(folder))
        with tarfile.open(sys.argv[1], "w:gz") as file:
            file.add(folder, "", filter=lambda entry: None if LEFT_OUT.search(entry.name) else entry)
