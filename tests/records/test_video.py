"""Videos: the bytes of their files in the cache, frames for readers, and only the bytes of these from a bucket."""

import json
import pickle
import re
import uuid
from dataclasses import replace
from pathlib import Path
from typing import Any

import google_crc32c
import numpy as np
import pytest
from faults import fault_proxy
from hypothesis import given, settings
from hypothesis import strategies as st
from samples import examples
from servers import Server, new_bucket
from stored import shard_files
from videos import HEIGHT, KINDS, WIDTH, decoded, kind, video_file

import cachelayer
from cachelayer import (
    ArraySpec,
    CacheLayerWarning,
    CorruptionError,
    ElementError,
    FormatError,
    InvalidArgumentError,
    RecordIndexError,
    Storage,
    Video,
    VideoSpec,
)
from cachelayer.arrayrecord.records_without_files import joined_checksums
from cachelayer.drawing.drawn_records import DrawOptions, drawn_leaf
from cachelayer.records.video_index import VideoIndex
from cachelayer.specs.spec import ImageSize

pytest.importorskip("av")
SPEC = {"video": VideoSpec(), "label": ArraySpec("int64")}


@pytest.fixture(scope="module")
def files() -> dict[str, tuple[bytes, Any]]:
    """A file of each kind, and all of its frames."""
    made = {name: kind(name) for name in KINDS}
    return {name: (file, decoded(file)) for name, file in made.items()}


@pytest.mark.parametrize("name", KINDS)
def test_frames_are_those_that_pyav_decodes_of_the_whole_file(
    storage: Storage, files: dict[str, tuple[bytes, Any]], name: str
) -> None:
    file, frames = files[name]
    ref = storage.submit([{"video": file, "label": 1}], "d@v1", element_spec=SPEC)
    video = ref[0]["video"]
    assert isinstance(video, Video)
    assert video.shape == frames.shape
    assert len(video) == len(frames)
    np.testing.assert_array_equal(video[:], frames)
    np.testing.assert_array_equal(list(video), frames)
    for some in (slice(5, 9), slice(-3, None), slice(None, None, -7), slice(50, 10, -9), slice(4, 4)):
        np.testing.assert_array_equal(video[some], frames[some])
    for number in (0, 11, 12, 13, -1):
        np.testing.assert_array_equal(video[number], frames[number])
    assert video.file == ref.raw()[0]["video"] == file


@settings(max_examples=examples(100))
@given(name=st.sampled_from(sorted(KINDS)), numbers=st.lists(st.integers(-58, 57), max_size=6))
def test_any_frames_come_in_the_order_that_is_asked_for(
    files: dict[str, tuple[bytes, Any]], name: str, numbers: list[int]
) -> None:
    file, frames = files[name]
    np.testing.assert_array_equal(Video.of_file(file).at(numbers), frames[np.array(numbers, np.int64)])


def test_times_are_those_of_the_frames(files: dict[str, tuple[bytes, Any]]) -> None:
    file, frames = files["h264 of varying rate"]
    video = Video.of_file(file)
    assert video.seconds[:8].tolist() == [0, 0.01, 0.05, 0.06, 0.2, 0.201, 0.3, 0.333]
    asked = np.array([0.049, 0.05, 0.2005, 99, -1, 0.06 - 5e-5], np.float32)
    np.testing.assert_array_equal(video.played_at(asked), frames[[1, 2, 4, len(frames) - 1, 0, 3]])
    assert Video.of_file(files["h264 mp4"][0]).fps == 30
    np.testing.assert_array_equal(video.played_at([np.inf, -np.inf]), frames[[len(frames) - 1, 0]])
    for unknown in ([0, np.nan], [None]):
        with pytest.raises(InvalidArgumentError, match="NaN"):
            video.played_at(unknown)  # type: ignore[arg-type]


@pytest.mark.needs("av>=17.1")
def test_a_video_that_was_filmed_upright_is_upright() -> None:
    file = video_file(4, rotation=90)
    video = Video.of_file(file)
    assert video.shape == (4, WIDTH, HEIGHT, 3)
    np.testing.assert_array_equal(video[:], np.rot90(decoded(file), 1, axes=(1, 2)))


def test_views_streams_batches_and_pickles_hold_readers(storage: Storage, files: dict[str, tuple[bytes, Any]]) -> None:
    names = ["h264 mp4", "av1 mp4", "ffv1 mkv"]
    rows = [{"video": files[name][0], "label": number} for number, name in enumerate(names)]
    ref = storage.submit(rows, "d@v1", element_spec=SPEC)
    for batch in ref.stream(3, shuffle=True, seed=0):
        for video, label in zip(batch["video"], batch["label"], strict=True):
            np.testing.assert_array_equal(video[7:9], files[names[label]][1][7:9])
    both = cachelayer.concat([ref[1:], ref[:1]])
    np.testing.assert_array_equal(both[2]["video"][3], files[names[0]][1][3])
    copied = pickle.loads(pickle.dumps(ref[1]["video"]))
    np.testing.assert_array_equal(copied[30:33], files[names[1]][1][30:33])
    assert ref.lengths("video").tolist() == [len(files[name][1]) for name in names]
    first = ref.stream(2).map(lambda element: {**element, "first": element["video"][0]})[0]
    np.testing.assert_array_equal(first["first"][1], files[names[1]][1][0])
    assert [len(video) for video in first["video"]] == [60, 60]
    assert storage.cache(ref[1:], "d@v2").digest == storage.submit(rows[1:], "d@v3", element_spec=SPEC).digest


def test_a_video_may_be_none_and_several_may_be_in_one_element(storage: Storage) -> None:
    file, other = video_file(5), video_file(7, seed=1)
    rows = [{"a": file, "b": None, "c": 1}, {"a": other, "b": file, "c": 2}]
    spec = {"a": VideoSpec(), "b": VideoSpec(nullable=True), "c": ArraySpec("int64")}
    ref = storage.submit(rows, "d@v1", element_spec=spec)
    assert ref[0]["b"] is None
    assert [len(video) for video in ref.read([0, 1])["a"]] == [5, 7]
    assert ref.read([0, 1])["b"].valid.tolist() == [False, True]
    np.testing.assert_array_equal(ref[1]["b"][:], decoded(file))
    assert ref.fields("c").read([0, 1])["c"].tolist() == [1, 2]
    assert [row["b"] for row in ref.raw()] == [None, file]


BROKEN = {
    "no file at all": (b"x" * 1000, "InvalidDataError"),
    "nothing": (b"", "InvalidDataError"),
    "sound alone": (video_file(sound=True, video=False), "no video"),
    "no frame": (video_file(0, container="matroska"), "no frames|InvalidData|no video"),
    "frames within others": (video_file(container="mpegts"), "in one piece.*-c copy"),
    "frames without times": (video_file(container="avi"), "no times"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_is_no_video_is_refused_by_its_record_or_left_out(storage: Storage, what: str) -> None:
    file, message = BROKEN[what]
    rows = [{"video": video_file(3), "label": 0}, {"video": file, "label": 1}]
    with pytest.raises(ElementError, match=message) as error:
        storage.submit(rows, "d@v1", element_spec=SPEC)
    assert (error.value.record, error.value.path) == (1, "['video']")
    with pytest.warns(CacheLayerWarning, match="1 of 2 records were left out"):
        ref = storage.submit(rows, "d@v2", element_spec=SPEC, on_error="skip")
    assert ref.read([0])["label"].tolist() == [0]
    assert len(ref) == 1


@pytest.mark.parametrize("options", [{}, {"movflags": "faststart"}, {"movflags": "frag_keyframe+empty_moov"}])
def test_an_mp4_file_that_breaks_off_is_refused(storage: Storage, tmp_path: Path, options: dict[str, str]) -> None:
    file = video_file(path=tmp_path / "video.mp4", container_options=options)
    place = VideoIndex.of_file(file).packets[40].tolist()
    with pytest.raises(ElementError, match=r"it is cut|InvalidDataError"):
        storage.submit([{"video": file[: place[0] + place[1] // 2], "label": 0}], "d@v1", element_spec=SPEC)


def test_a_matroska_file_that_breaks_off_is_refused(storage: Storage) -> None:
    file = video_file(container="matroska")
    with pytest.raises(ElementError, match=f"it is cut: it states {len(file)} bytes, and has {len(file) // 2}"):
        storage.submit([{"video": file[: len(file) // 2], "label": 0}], "d@v1", element_spec=SPEC)


@pytest.mark.parametrize("name", ["h264 mkv", "vp9 webm", "ffv1 mkv", "mpeg4 avi", "mjpeg avi", "gif"])
def test_a_file_that_lacks_its_last_bytes_is_cut(files: dict[str, tuple[bytes, Any]], name: str) -> None:
    file = files[name][0]
    for nbytes in (len(file) - 1, int(len(file) * 0.9), len(file) // 2):
        with pytest.raises(ElementError, match=r"it is cut|InvalidDataError"):
            Video.of_file(file[:nbytes])


@pytest.mark.parametrize("times", [range(0, 800, 40), [0, 10, 50, 60, 200, 201, 300, 333]])
def test_an_avi_file_whose_frames_stay_for_many_ticks_is_whole(times: Any) -> None:
    file = video_file(len(times), codec="mjpeg", container="avi", pix_fmt="yuvj420p", times=list(times))
    video = Video.of_file(file)
    np.testing.assert_allclose(video.seconds, np.array(times) / 1000)
    np.testing.assert_array_equal(video[:], decoded(file))
    with pytest.raises(ElementError, match="it is cut"):
        Video.of_file(file[:-1])


def test_a_frame_that_does_not_decode_names_its_record(storage: Storage) -> None:
    file = bytearray(video_file(40, codec="ffv1", container="matroska"))
    place = VideoIndex.of_file(bytes(file)).packets[30]
    file[place[0] : place[0] + place[1]] = b"\xff" * int(place[1])
    ref = storage.submit([{"video": bytes(file), "label": 0}] * 2, "d@v1", element_spec=SPEC)
    with pytest.raises(ElementError, match="record 1, leaf") as error:
        ref[1]["video"][28:33]
    assert error.value.record == 1
    with pytest.raises(RecordIndexError, match=r"record 1, leaf.*40 frames"):
        ref[1]["video"][40]


@pytest.fixture(scope="module")
def long_video() -> tuple[bytes, Any]:
    file = video_file(600, size=(240, 320), keyframe_every=30, options={"crf": "10"})
    return file, decoded(file)


@pytest.mark.parametrize("server", ["gcs", "s3"], indirect=True)
def test_of_a_video_in_a_bucket_only_the_bytes_of_the_frames_are_fetched(
    server: Server, long_video: tuple[bytes, Any]
) -> None:
    file, frames = long_video
    url = server.url(new_bucket(server))
    rows = [{"video": file, "label": number, "text": "x" * number} for number in range(3)]
    spec = {**SPEC, "text": ArraySpec(str)}
    made = Storage(url, storage_options=server.storage_options()).submit(rows, "d@v1", element_spec=spec)
    with fault_proxy(server.endpoint) as proxy:
        options = server.storage_options(proxy.endpoint)
        ref = cachelayer.open(made.reference, storage_options=options, local_cache_bytes=0)
        assert ref.fields("label", "text")[2] == {"label": 2, "text": "xx"}
        assert fetched(proxy) < len(file) // 4
        video = ref[1]["video"]
        proxy.forget()
        np.testing.assert_array_equal(video[100:108], frames[100:108])
        assert 0 < fetched(proxy) < len(file) // 8
        assert ref.raw()[2]["video"] == file


def fetched(proxy: Any) -> int:
    ranges = [
        re.fullmatch(r"bytes=(\d+)-(\d+)", exchange.range)
        for exchange in proxy.exchanges()
        if "array_record" in exchange.path
    ]
    return sum(int(found[2]) - int(found[1]) + 1 for found in ranges if found)


def test_tables_hold_the_bytes_of_files_and_builds_take_readers(storage: Storage) -> None:
    file = video_file(5)
    ref = storage.submit([{"video": file, "label": 0}], "d@v1", element_spec=SPEC)
    assert ref.to_arrow()["video"].to_pylist() == [file]
    assert storage.submit([{"video": Video.of_file(file), "label": 0}], "d@v2").digest == ref.digest
    assert storage.submit(ref.stream(), "d@v3").digest == ref.digest
    assert storage.rewrite("d@v1", "v4", compression="zstd")[0]["video"][2:4].shape == (2, HEIGHT, WIDTH, 3)
    with pytest.raises(InvalidArgumentError, match="clips"):
        ref.rolling(2)
    with pytest.raises(InvalidArgumentError, match="clips"):
        ref.windows("video", 2)


def test_the_page_draws_the_first_frame() -> None:
    drawn = drawn_leaf(0, "['video']", VideoSpec(), video_file(5), DrawOptions(32, 1))
    assert (drawn.kind, "5 frames" in drawn.text) == ("picture", True)
    assert drawn_leaf(0, "['video']", VideoSpec(), b"x", DrawOptions(32, 1)).kind == "problem"


def sources(files: list[bytes], path: Path) -> dict[str, Any]:
    """Two videos from each kind of source: by their bytes, or by the names of their files."""
    import pandas as pd
    import polars as pl
    import pyarrow as pa
    import pyarrow.parquet as pq
    import tensorflow as tf
    from datasets import Dataset, Features, Value
    from datasets import Video as VideoFeature

    names = [str(path / f"{number}.mp4") for number in range(2)]
    for name, file in zip(names, files, strict=True):
        Path(name).write_bytes(file)
    table = pa.table({"video": files, "label": [0, 1]})
    pq.write_table(pa.table({"video": names, "label": [0, 1]}), path / "names.parquet")
    (path / "names.jsonl").write_text("".join(f'{{"video": "{name}", "label": {n}}}\n' for n, name in enumerate(names)))
    features = Features({"video": VideoFeature(), "label": Value("int64")})
    hub = [{"bytes": files[0], "path": None}, {"bytes": None, "path": names[1]}]
    columns = {"video": files, "label": np.arange(2)}
    return {
        "elements": [{"video": file, "label": number} for number, file in enumerate(files)],
        "paths": ({"video": Path(name), "label": number} for number, name in enumerate(names)),
        "arrays": {"video": np.array(files, object), "label": np.arange(2)},
        "arrow": table,
        "pandas": pd.DataFrame(columns),
        "polars": pl.DataFrame(columns),
        "parquet of names": path / "names.parquet",
        "lines of names": path / "names.jsonl",
        "datasets": Dataset.from_dict({"video": hub, "label": [0, 1]}, features=features),
        "tf.data": tf.data.Dataset.from_tensor_slices(columns),
        "wrapped": cachelayer.wrap([{"video": file, "label": n} for n, file in enumerate(files)], identity="videos"),
    }


@pytest.mark.needs("datasets", "pandas", "polars", "pyarrow", "tensorflow")
def test_every_source_gives_the_same_version(storage: Storage, tmp_path: Path) -> None:
    files = [video_file(5), video_file(7, seed=1)]
    digests = {
        name: storage.submit(source, f"d@v{number}", element_spec=SPEC).digest
        for number, (name, source) in enumerate(sources(files, tmp_path).items())
    }
    assert len({*digests.values()}) == 1, digests


def test_damaged_bytes_are_an_error_of_their_frames_alone(storage: Storage) -> None:
    file = video_file(60, size=(96, 96), keyframe_every=10)
    ref = storage.submit([{"video": file, "label": 0}], "d@v1", element_spec=SPEC)
    index = VideoIndex.of_file(file)
    begin = int(index.packets[index.packet_of[45], 0])
    [shard] = shard_files(ref)
    data = bytearray(shard.read_bytes())
    place = data.find(file[begin : begin + 16])
    data[place + 3] ^= 1
    shard.write_bytes(data)
    video = cachelayer.open(ref.reference, verify="never")[0]["video"]
    np.testing.assert_array_equal(video[:40], decoded(file)[:40])
    with pytest.raises(CorruptionError, match="record 0"):
        video[45]
    with pytest.raises(CorruptionError):
        cachelayer.open(ref.reference, verify="always")[0]


@settings(max_examples=examples(100))
@given(st.lists(st.tuples(st.binary(max_size=40), st.binary(max_size=300)), min_size=1, max_size=4))
def test_the_checksum_of_joined_bytes_follows_from_those_of_both(pairs: list[tuple[bytes, bytes]]) -> None:
    firsts, seconds = (np.array(list(map(google_crc32c.value, some))) for some in zip(*pairs, strict=True))
    nbytes = np.array([len(second) for _, second in pairs])
    wanted = [google_crc32c.value(first + second) for first, second in pairs]
    assert joined_checksums(firsts, seconds, nbytes).tolist() == wanted


def test_a_record_that_is_damaged_in_a_bucket_is_found_without_its_video() -> None:
    storage = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    file = video_file(60, size=(240, 320), options={"crf": "5"})
    assert len(file) > 100_000
    rows = [{"video": file, "label": number, "maybe": [1, None]} for number in range(2)]
    maybe = ArraySpec("int64", (None,), nullable_values=True)
    ref = storage.submit(rows, "d@v1", element_spec={**SPEC, "maybe": maybe})
    assert [value is None for value in ref[1]["maybe"].to_list()] == [False, True]
    store = ref._base.version.folder  # type: ignore[attr-defined]
    [shard] = ref._base.version.manifest.shards  # type: ignore[attr-defined]
    data = store.read(shard.name)
    facts = data.find(b'"codec"')
    store.put(shard.name, data[:facts] + b"X" + data[facts + 1 :])
    again = cachelayer.open(ref.reference, local_cache_bytes=0)
    with pytest.raises(CorruptionError, match="checksum"):
        again[0]
    np.testing.assert_array_equal(again[1]["video"][:3], decoded(file)[:3])


def facts(**changes: Any) -> Any:
    return lambda index: {"facts": json.dumps(index.format | changes).encode()}


def packets(column: int, value: int) -> Any:
    def changed(index: VideoIndex) -> dict[str, Any]:
        table = index.packets.copy()
        table[-1, column] = value
        return {"packets": table}

    return changed


def with_the_bytes_of_the_longest(index: VideoIndex) -> Any:
    table = index.packets.copy()
    table[:, :2] = table[index.packets[:, 1].argmax(), :2]
    return table


LIES = {
    "no frames": lambda index: {"times": index.times[:0]},
    "more frames than packets": lambda index: {"times": np.append(index.times, index.times)},
    "a packet past the end": packets(0, 2**31),
    "a packet longer than the file": packets(1, 2**32 - 1),
    "the bytes of a packet many times": lambda index: {"packets": with_the_bytes_of_the_longest(index)},
    "a frame twice": packets(3, 0),
    "a frame that is not there": packets(3, 2**31),
    "no keyframe": lambda index: {"keyframes": index.keyframes[:0]},
    "a keyframe that is no packet": lambda index: {"keyframes": np.array([2**31], np.uint32)},
    "no facts": lambda _: {"facts": b"{}"},
    "facts that are no JSON": lambda _: {"facts": b"[" * 100_000},
    "a fact too many": facts(options={"dump": "/etc/passwd"}),
    "another attribute of the decoder": facts(color={"options": 1, "color_trc": 1, "colorspace": 1, "color_range": 1}),
    "a size that is no number": facts(width="8"),
    "a size of the sky": facts(height=2**40),
    "a codec that is a path": facts(codec="../h264"),
    "a turn that is no number": facts(rotation=[90]),
}


@pytest.mark.parametrize("name", LIES)
def test_an_index_that_somebody_made_up_is_refused(files: dict[str, tuple[bytes, Any]], name: str) -> None:
    honest = Video.of_file(next(iter(files.values()))[0])._video
    index = replace(honest.index, **LIES[name](honest.index))
    video = Video(replace(honest, index=index, path="['video']", record=3))
    for use in (lambda: video.shape, lambda: video.fps, lambda: video[0], lambda: next(iter(video))):
        with pytest.raises((CorruptionError, FormatError), match=r"record 3, leaf \['video'\]: "):
            use()


def test_no_more_frames_are_decoded_at_once_than_a_leaf_has_bytes(files: dict[str, tuple[bytes, Any]]) -> None:
    honest = Video.of_file(next(iter(files.values()))[0])._video
    index = replace(honest.index, **facts(width=1 << 16, height=1 << 15)(honest.index))
    with pytest.raises(ElementError, match="read fewer at a time"):
        Video(replace(honest, index=index))[0]
    size = ImageSize(1 << 15, 1 << 15, crop=True)
    with pytest.raises(ElementError, match="read fewer at a time"):
        Video(replace(honest, size=size)).at([0, 1])
    with pytest.raises(ElementError, match="would be scaled to 32768 x"):
        Video(replace(honest, size=ImageSize(1 << 15, 1, crop=True)))[0]
