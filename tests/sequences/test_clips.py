"""Clips of videos and sounds: the frames that slicing the decoded whole gives, wherever the view came from."""

import io
import pickle
import re
import uuid
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from faults import fault_proxy
from servers import Server, new_bucket
from videos import decoded, video_file

import cachelayer
from cachelayer import ArraySpec, AudioSpec, ElementError, InvalidArgumentError, Storage, VideoSpec

pytest.importorskip("av")
LENGTHS = [60, 13, 0, 31, 61]
FILES = [video_file(length, seed=seed) if length else None for seed, length in enumerate(LENGTHS)]
FRAMES = [np.empty((0, 48, 64, 3)) if file is None else decoded(file) for file in FILES]
SPEC = {
    "video": VideoSpec(nullable=True),
    "label": ArraySpec("int64"),
    "text": ArraySpec(str),
    "state": ArraySpec("float32", (None, 2)),
    "score": ArraySpec("float32", nullable=True),
}
ROWS = [
    {
        "video": file,
        "label": number,
        "text": "x" * number,
        "state": np.arange(2 * length, dtype=np.float32).reshape(length, 2) + number,
        "score": None if number == 3 else np.float32(number),
    }
    for number, (file, length) in enumerate(zip(FILES, LENGTHS, strict=True))
]


@pytest.fixture(scope="module")
def ref(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return Storage(tmp_path_factory.mktemp("clips")).submit(ROWS, "d@v1", element_spec=SPEC, shard_bytes=40_000)


def expected(records: list[int], frames: int, stride: int, every: int) -> list[tuple[int, list[int]]]:
    """The record and the frames of each clip."""
    found = []
    for record in records:
        start = 0
        while start + (frames - 1) * stride < LENGTHS[record]:
            found.append((record, list(range(start, start + frames * stride, stride))[:frames]))
            start += every
    return found


@pytest.mark.parametrize(
    ("frames", "stride", "every"), [(16, 4, 32), (1, 1, 1), (13, 1, 5), (5, 3, None), (60, 1, 60), (99, 1, 1)]
)
@pytest.mark.parametrize("order", [[0, 1, 2, 3, 4], [4, 1, 1, 0]])
def test_clips_are_the_frames_of_the_decoded_video(ref: Any, frames: int, stride: int, every: Any, order: Any) -> None:
    view = ref.select(order) if order != [0, 1, 2, 3, 4] else ref
    clips = view.clips("video", frames, stride=stride, every=every, beside=("label", "text", "state", "score"))
    wanted = expected(order, frames, stride, every or frames * stride)
    assert len(clips) == len(wanted)
    for number in {0, 1, len(wanted) // 2, len(wanted) - 1} & set(range(len(wanted))):
        record, places = wanted[number]
        clip = clips[number]
        np.testing.assert_array_equal(clip["video"], FRAMES[record][places])
        np.testing.assert_array_equal(clip["state"], ROWS[record]["state"][places])
        assert [clip[key] for key in ("label", "text", "score")] == [
            ROWS[record][k] for k in ("label", "text", "score")
        ]
        [span] = clips.sources(number)
        assert (span.record, span.begin, span.end) == (record, places[0], places[-1] + 1)


def test_streams_of_clips_stack_shuffle_and_resume(ref: Any) -> None:
    clips = ref.clips("video", 8, stride=2, every=4, beside=("label", "state", "score"))
    spec = clips.element_spec
    assert spec["video"] == ArraySpec("uint8", (8, 48, 64, 3))
    assert spec["state"] == ArraySpec("float32", (8, 2))
    for shuffle in (True, "blocks"):
        stream = clips.stream(4, shuffle=shuffle, seed=3, num_epochs=2)
        batches = list(stream)
        assert batches[0]["video"].shape == (4, 8, 48, 64, 3)
        assert batches[0]["state"].shape == (4, 8, 2)
        seen = [
            (*state[0], label) for batch in batches for state, label in zip(batch["state"], batch["label"], strict=True)
        ]
        assert sorted(seen) == sorted(2 * [(*clip["state"][0], clip["label"]) for clip in clips])
        iterator = iter(stream)
        for _ in range(3):
            next(iterator)
        resumed = iter(clips.stream(4, shuffle=shuffle, seed=3, num_epochs=2))
        resumed.set_state(iterator.get_state())
        np.testing.assert_array_equal(next(resumed)["video"], batches[3]["video"])
    mapped = clips.stream(2).map(lambda clip: {"mean": clip["video"].mean(axis=(1, 2)), "label": clip["label"]})[1]
    np.testing.assert_allclose(mapped["mean"][0], clips[2]["video"].mean(axis=(1, 2)))


def test_clips_are_views_of_views_and_have_a_reference(ref: Any) -> None:
    clips = ref[3:].clips("video", 8, every=8)
    assert [clip["video"].shape for clip in clips[1:3]] == [(8, 48, 64, 3)] * 2
    opened = cachelayer.open(clips.reference)
    assert opened.digest == clips.digest
    np.testing.assert_array_equal(opened[1]["video"], clips[1]["video"])
    with pytest.raises(cachelayer.InvalidTypeError, match="split the records first"):
        clips.split({"a": 0.5, "b": 0.5}, seed=0)
    parts = ref.split({"a": 0.5, "b": 0.5}, seed=0)
    assert sum(len(part.clips("video", 8, every=8)) for part in parts.values()) == len(ref.clips("video", 8, every=8))
    assert len(ref.where("label == 4").clips("video", 8, every=8)) == 7
    both = cachelayer.concat([ref[:1], ref[3:4]]).clips("video", 31)
    np.testing.assert_array_equal(both[1]["video"], FRAMES[3])
    np.testing.assert_array_equal(ref.raw().clips("video", 31)[1]["video"], FRAMES[3])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(clips))[0]["video"], clips[0]["video"])
    assert (
        len({view.digest for view in (clips, ref[3:].clips("video", 8, every=9), ref.clips("video", 8, every=8))}) == 3
    )
    assert len(ref[2:3].clips("video", 1)) == 0
    assert list(ref[2:3].clips("video", 1).stream(2)) == []


def test_clips_of_records_that_are_appended_come_after_the_others(storage: Storage) -> None:
    first = storage.submit(ROWS[:2], "d@v1", element_spec=SPEC)
    before = first.clips("video", 4, every=4)
    iterator = iter(before.stream(3))
    next(iterator)
    after = storage.append("d@v1", "v2", ROWS[3:]).clips("video", 4, every=4)
    np.testing.assert_array_equal(after[len(before)]["video"], FRAMES[3][:4])
    iterator.advance_to(after)
    np.testing.assert_array_equal(next(iterator)["video"][0], before[3]["video"])


def test_videos_of_several_sizes_are_refused_in_one_batch_with_the_cure(storage: Storage) -> None:
    rows = [{"video": video_file(6)}, {"video": video_file(6, size=(32, 48))}]
    ref = storage.submit(rows, "d@v1", element_spec={"video": VideoSpec()})
    clips = ref.clips("video", 3)
    assert [clip["video"].shape for clip in clips] == [(3, 48, 64, 3)] * 2 + [(3, 32, 48, 3)] * 2
    with pytest.raises(ElementError, match=r"decoded\(size="):
        clips.read([0, 3])
    more = storage.submit(rows, "more@v1", element_spec={"video": VideoSpec()}).clips("video", 3, every=4)
    joined = cachelayer.concat([clips, more])
    assert [clip["video"].shape[1] for clip in joined] == [48, 48, 32, 32, 48, 32]
    assert joined.read([0, 1, 4])["video"].shape == (3, 3, 48, 64, 3)
    for refused in (lambda: joined.read([2, 4]), lambda: list(cachelayer.mix([(more, 1), (clips[2:], 1)]).stream(4))):
        with pytest.raises(ElementError, match=r"decoded\(size="):
            refused()
    assert len(list(joined.stream())) == len([*joined.stream(1)]) == 6
    sized = ref.decoded(size=(24, 24)).clips("video", 3)
    assert sized.read([0, 3])["video"].shape == (2, 3, 24, 24, 3)
    assert sized.element_spec == {"video": ArraySpec("uint8", (3, 24, 24, 3))}
    cropped = ref.decoded("video", size=(24, 24), crop=True)[0]["video"]
    assert cropped.shape == (6, 24, 24, 3)
    assert not np.array_equal(cropped[0], sized[0]["video"][0])
    assert storage.cache(sized, "clips@v1").read([0, 3])["video"].shape == (2, 3, 24, 24, 3)


def test_what_clips_are_not_cut_of_is_refused(ref: Any, storage: Storage) -> None:
    for options in ({"leaves": "label"}, {"leaves": "video", "frames": 0}, {"leaves": "video", "stride": 0}):
        with pytest.raises(InvalidArgumentError):
            ref.clips(**{"frames": 2, **options})
    with pytest.raises(InvalidArgumentError, match="'video'"):
        ref.clips("video", 2, beside="video")
    rows = [{"a": video_file(6), "b": video_file(7), "c": np.arange(5)}]
    other = storage.submit(
        rows, "d@v1", element_spec={"a": VideoSpec(), "b": VideoSpec(), "c": ArraySpec("int64", (None,))}
    )
    with pytest.raises(InvalidArgumentError, match="record 0 has 6 frames in 'a' and 7 in 'b'"):
        len(other.clips(("a", "b"), 2))
    with pytest.raises(InvalidArgumentError, match="5 values in 'c' for 6 frames"):
        other.clips("a", 2, beside="c")[0]


def test_several_videos_are_cut_together(storage: Storage) -> None:
    files = [video_file(9), video_file(9, seed=5, size=(32, 48))]
    rows = [{"camera": {"left": files[0], "right": files[1]}, "action": np.arange(9)}]
    spec = {"camera": {"left": VideoSpec(), "right": VideoSpec()}, "action": ArraySpec("int64", (None,))}
    ref = storage.submit(rows, "d@v1", element_spec=spec)
    batch = ref.clips(("camera/left", "camera/right"), 4, every=2, beside="action").read([1, 2])
    np.testing.assert_array_equal(batch["left"], [decoded(files[0])[2:6], decoded(files[0])[4:8]])
    np.testing.assert_array_equal(batch["right"], [decoded(files[1])[2:6], decoded(files[1])[4:8]])
    assert batch["action"].tolist() == [[2, 3, 4, 5], [4, 5, 6, 7]]


@pytest.mark.parametrize(
    "spec", [AudioSpec(), AudioSpec(channels=1), AudioSpec(16000, 2), AudioSpec(8000, 1)], ids=repr
)
@pytest.mark.parametrize("container", ["WAV", "FLAC", "OGG", "MP3"])
def test_clips_of_sounds_are_slices_of_their_samples(storage: Storage, spec: AudioSpec, container: str) -> None:
    rng = np.random.default_rng(0)
    rows = []
    for number, length in enumerate([1000, 40, 1600]):
        out = io.BytesIO()
        soundfile.write(out, rng.uniform(-1, 1, (length, 2)).astype(np.float32), 16000, format=container)
        rows.append({"audio": out.getvalue(), "label": number})
    ref = storage.submit(rows, "d@v1", element_spec={"audio": spec, "label": ArraySpec("int64")})
    whole = [element["audio"] for element in ref]
    assert len(ref.raw().clips("audio", 100)) == sum(len(samples) // 100 for samples in whole)
    clips = ref.clips("audio", frames=100, stride=2, every=150, beside="label")
    wanted = [
        (number, samples[start : start + 200 : 2])
        for number, samples in enumerate(whole)
        for start in range(0, max(0, len(samples) - 198), 150)
    ]
    assert len(clips) == len(wanted)
    batch = clips.read(range(len(clips)))
    np.testing.assert_array_equal(batch["audio"], [samples for _, samples in wanted])
    assert batch["label"].tolist() == [number for number, _ in wanted]
    assert len(cachelayer.open(clips.reference)) == len(clips)
    np.testing.assert_array_equal(ref.raw().clips("audio", frames=100, stride=2, every=150)[1]["audio"], wanted[1][1])


def test_of_clips_in_a_bucket_only_their_bytes_are_fetched(gcs: Server, tmp_path: Path) -> None:
    file = video_file(600, size=(240, 320), keyframe_every=30, options={"crf": "10"})
    storage = Storage(gcs.url(new_bucket(gcs)), storage_options=gcs.storage_options())
    spec = {"video": VideoSpec(), "label": ArraySpec("int64")}
    made = storage.submit([{"video": file, "label": 1}, {"video": file, "label": 2}], "d@v1", element_spec=spec)
    with fault_proxy(gcs.endpoint) as proxy:
        options = gcs.storage_options(proxy.endpoint)
        clips = cachelayer.open(made.reference, storage_options=options, local_cache_bytes=0).clips("video", 8)
        assert len(clips) == 150
        assert clips.element_spec["video"].shape == (8, 240, 320, 3)
        proxy.forget()
        frames = decoded(file)
        batch = clips.read([10, 100])["video"]
        np.testing.assert_array_equal(batch, [frames[80:88], frames[200:208]])
        ranges = [re.fullmatch(r"bytes=(\d+)-(\d+)", each.range) for each in proxy.exchanges()]
        nbytes = sum(int(found[2]) - int(found[1]) + 1 for found in ranges if found)
        assert 0 < nbytes < len(file) // 3
        for shuffle in (True, "blocks"):
            stream = clips[::20].stream(4, shuffle=shuffle, seed=0)
            assert sum(len(batch["video"]) for batch in stream) == 8


@pytest.mark.needs("jax", "keras", "tensorflow")
def test_frameworks_get_arrays_of_clips_and_refuse_readers(ref: Any) -> None:
    from cachelayer.adapters.keras import to_keras
    from cachelayer.adapters.tensorflow import to_tf

    clips = ref.clips("video", 3)
    assert next(iter(to_tf(clips.stream(2))))["video"].shape == (2, 3, 48, 64, 3)
    for sink in (to_tf, to_keras):
        with pytest.raises(cachelayer.InvalidTypeError, match="clips"):
            sink(ref.fields("video").stream(2))


def test_who_changes_a_clip_changes_no_other(storage: Storage) -> None:
    rows = [{"video": video_file(6), "box": np.arange(2), "state": np.arange(6)}]
    spec = {"video": VideoSpec(), "box": ArraySpec("int64", (2,)), "state": ArraySpec("int64", (None,))}
    clips = storage.submit(rows, "d@v1", element_spec=spec).clips("video", 4, every=1, beside=("box", "state"))
    first, *others = clips.head(3)
    for value in first.values():
        value[:] = 7
    assert [clip["box"].tolist() for clip in others] == [[0, 1]] * 2
    assert [clip["state"].tolist() for clip in others] == [[1, 2, 3, 4], [2, 3, 4, 5]]


def test_clips_are_read_of_buckets_copies_and_disks_at_once(storage: Storage, tmp_path: Path) -> None:
    file = video_file(24, size=(240, 320), options={"crf": "5"})
    spec = {"video": VideoSpec()}
    bucket = Storage(f"memory://{uuid.uuid4().hex}", local_cache_bytes=0)
    copied = Storage(f"memory://{uuid.uuid4().hex}", local_cache=tmp_path / "copies")
    refs = [each.submit([{"video": file}] * 2, "d@v1", element_spec=spec) for each in (bucket, copied, storage)]
    refs[1].mirror()
    packed = bucket.rewrite("d@v1", "v2", compression="zstd")
    clips = cachelayer.concat([*refs, packed]).clips("video", 8)
    numbers = list(range(23, -1, -5))
    frames = decoded(file).reshape(3, 8, 240, 320, 3)
    np.testing.assert_array_equal(clips.read(numbers)["video"], [frames[number % 3] for number in numbers])
