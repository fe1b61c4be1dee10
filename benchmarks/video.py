"""What a clip of a long video costs: bytes and seconds from a bucket, and frames a second beside plain PyAV.

A video of a minute (h264, 640 x 480, 30 frames a second) lies in a bucket of moto on this machine; its replies are
counted. A clip has 16 frames, every fourth.

Run: ``python benchmarks/video.py [--rounds N]``, after ``pip install -e '.[s3,video]' moto``.
"""

from __future__ import annotations

import argparse
import io
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import av
import numpy as np
from faults import FaultProxy, fault_proxy
from harness import machine, table
from servers import new_bucket, s3_server

import cachelayer

SECONDS, RATE, HEIGHT, WIDTH = 60, 30, 480, 640
FRAMES, STRIDE = 16, 4


def film(keyframe_every: int) -> bytes:
    """Return the file of a scene that moves, with grain."""
    rng = np.random.default_rng(0)
    scene = rng.integers(0, 256, (HEIGHT // 16, WIDTH // 4, 3), dtype=np.uint8).repeat(16, 0).repeat(16, 1)
    out = io.BytesIO()
    with av.open(out, "w", format="mp4") as file:
        stream = file.add_stream("libx264", rate=RATE, options={"preset": "veryfast"})
        stream.width, stream.height, stream.pix_fmt, stream.gop_size = WIDTH, HEIGHT, "yuv420p", keyframe_every
        for number in range(SECONDS * RATE):
            picture = scene[:, number : number + WIDTH] // 2 + rng.integers(0, 24, (HEIGHT, WIDTH, 1), dtype=np.uint8)
            file.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        file.mux(stream.encode())
    return out.getvalue()


def plain(file: bytes, frames: range) -> np.ndarray[Any, Any]:
    """Return frames as PyAV decodes them: from the keyframe before, or all from the first."""
    with av.open(io.BytesIO(file)) as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        container.seek(int(frames[0] / RATE / stream.time_base), stream=stream)
        found = []
        for frame in container.decode(stream):
            number = round(float(frame.pts * stream.time_base) * RATE)
            if number in frames:
                found.append(frame.to_ndarray(format="rgb24"))
            if number >= frames[-1]:
                break
        return np.stack(found)


def median(rounds: int, work: Callable[[int], Any]) -> float:
    """Return the median seconds of some rounds."""
    times = []
    for number in range(rounds):
        begin = time.perf_counter()
        work(number)
        times.append(time.perf_counter() - begin)
    return statistics.median(times)


def received(proxy: FaultProxy) -> int:
    """Return the bytes of the ranges that were asked for."""
    ranges = [each.range.removeprefix("bytes=").split("-") for each in proxy.exchanges() if each.range]
    return sum(int(last) - int(first) + 1 for first, last in ranges)


def rows_of(keyframe_every: int, rounds: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the rows of both tables for a video with so many frames between keyframes."""
    file = film(keyframe_every)
    starts = np.random.default_rng(1).integers(0, SECONDS * RATE - FRAMES * STRIDE, rounds).tolist()
    spec = {"video": cachelayer.VideoSpec()}
    with s3_server() as server, fault_proxy(server.endpoint) as proxy:
        storage = cachelayer.Storage(server.url(new_bucket(server)), storage_options=server.storage_options())
        reference = storage.submit([{"video": file}] * 2, "films@v1", element_spec=spec).reference
        options = server.storage_options(proxy.endpoint)
        ref = cachelayer.open(reference, storage_options=options, local_cache_bytes=0)
        ref[0]["video"][0]
        proxy.forget()
        clips = median(rounds, lambda n: ref[1]["video"][starts[n] : starts[n] + FRAMES * STRIDE : STRIDE])
        nbytes = received(proxy) // rounds
        whole = median(
            rounds, lambda n: plain(ref.raw()[1]["video"], range(starts[n], starts[n] + FRAMES * STRIDE, STRIDE))
        )
    local = cachelayer.Storage(tempfile.mkdtemp()).submit([{"video": file}], "films@v1", element_spec=spec)
    every = range(SECONDS * RATE)
    speeds = [
        len(every) / median(2, lambda _: [0 for _ in local[0]["video"]]),
        len(every) / median(2, lambda _: plain(file, every)),
        1 / median(rounds, lambda n: local[0]["video"][starts[n] : starts[n] + FRAMES * STRIDE : STRIDE]),
        1 / median(rounds, lambda n: plain(file, range(starts[n], starts[n] + FRAMES * STRIDE, STRIDE))),
    ]
    fetched = (str(keyframe_every), f"{len(file) / 1e6:.1f} MB", f"{nbytes / 1e6:.2f} MB", f"{len(file) / nbytes:.0f}")
    return (
        (*fetched, f"{clips * 1e3:.0f} ms", f"{whole * 1e3:.0f} ms"),
        (str(keyframe_every), *(f"{speed:,.0f}" for speed in speeds[:2]), *(f"{speed:.1f}" for speed in speeds[2:])),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    rows = [rows_of(keyframe_every, rounds) for keyframe_every in (250, 30)]
    head = ("frames between keyframes", "file", "fetched of a clip", "times less", "a clip", "PyAV on the whole file")
    print(table(f"A clip from a bucket ({machine('av')})", head, [bucket for bucket, _ in rows]), "\n")
    head = ("frames between keyframes", "frames/s, all", "PyAV", "clips/s", "PyAV, with a seek")
    print(table("From a local disk, one thread", head, [local for _, local in rows]))


if __name__ == "__main__":
    main()
