"""Clips: some frames of the video, or samples of the sound, of each record; each lies in one record.

A clip of 4 frames with ``stride=2`` and ``every=3``, of a video of 11 frames::

    frame   0 1 2 3 4 5 6 7 8 9 10
    clip 0  x   x   x   x
    clip 1        x   x   x   x         clip 2 would reach past the end
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cachelayer.datasets.dataset import BaseDataset, check_one_size
from cachelayer.datasets.dataset_view import DatasetView
from cachelayer.datasets.origins import derived_digest, digests_of_rows, origins_of_rows
from cachelayer.errors import InvalidArgumentError
from cachelayer.protocols import Digests, Held, Info, Origins, Sources
from cachelayer.records.codec import Codec, codec_for
from cachelayer.records.decoding_threads import in_threads
from cachelayer.records.video import Video, clip_of, read_clips
from cachelayer.sequences.documents import checked_length
from cachelayer.sequences.token_fields import names_beside
from cachelayer.specs.leaf_names import (
    last_key,
    leaf_named,
    leaf_number,
    names_of_leaves,
    one_or_several,
)
from cachelayer.specs.schema import Schema
from cachelayer.specs.spec import (
    ArraySpec,
    AudioSpec,
    EncodedSpec,
    JsonSpec,
    LeafSpec,
    SizedVideoSpec,
    VideoSpec,
    decoded_leaf,
    describe_leaf,
)
from cachelayer.support.locks import cached_property
from cachelayer.support.memory import Ints, distinct, splits_of

_CLIPS_PER_READ = 8


@dataclass(frozen=True)
class Clipping:
    """A rule that cuts the frames of a record into clips: clip i begins at frame ``i * every``."""

    frames: int
    stride: int
    every: int

    @property
    def span(self) -> int:
        """The number of frames from the first to the last frame of a clip, both counted."""
        return (self.frames - 1) * self.stride + 1

    def counts(self, lengths: Ints) -> Ints:
        """Return how many clips there are of records of these lengths."""
        counts: Ints = np.maximum((lengths - self.span) // self.every + 1, 0)
        return counts


@dataclass(frozen=True, eq=False)
class ClipRows(BaseDataset):
    """The clips of the records of a view, one record after another: dicts."""

    records: DatasetView
    names: tuple[str, ...]
    """The videos and sounds that clips are cut of: of one length in each record."""
    clipping: Clipping
    beside: tuple[str, ...] = ()
    """The fields that clips have beside: those of the record, or of the frames if the first dimension varies."""

    def __post_init__(self) -> None:
        spec = self._stored_spec
        for name in self.names:
            leaf = _leaf(spec, name)
            if not isinstance(leaf, (VideoSpec, AudioSpec)):
                raise InvalidArgumentError(
                    f"{name!r} is {describe_leaf(leaf)}: clips are cut of fields that VideoSpec() or AudioSpec() "
                    f"declares; pass beside={name!r} for the value of its record beside each clip"
                )
        for name in self.beside:
            leaf = _leaf(spec, name)
            if isinstance(leaf, (EncodedSpec, JsonSpec)):
                raise InvalidArgumentError(f"beside: {name!r} is {describe_leaf(leaf)}: pass names of arrays and texts")
        keys = [last_key(name) for name in (*self.names, *self.beside)]
        if len({*keys}) < len(keys):
            raise InvalidArgumentError(f"a clip of {[*self.names, *self.beside]} would have one key twice: rename it")

    @property
    def _stored_spec(self) -> Any:
        """The spec of the stored leaves of the records."""
        return self.records.leaves_for("clips()").codec.spec

    # The clips of each record.

    @property
    def _leaves(self) -> list[int]:
        spec = self._stored_spec
        return [leaf_number(spec, name) for name in self.names]

    @cached_property
    def lengths(self) -> Ints:
        """The number of frames of each record."""
        first, *others = (self._lengths_of(name) for name in self.names)
        for name, lengths in zip(self.names[1:], others, strict=True):
            wrong = np.flatnonzero(first != lengths)
            if len(wrong):
                row = int(wrong[0])
                raise InvalidArgumentError(
                    f"record {row} has {first[row]} frames in {self.names[0]!r} and {lengths[row]} in {name!r}: videos "
                    "that are cut together have as many frames"
                )
        return first

    def _lengths_of(self, name: str) -> Ints:
        spec = _leaf(self._stored_spec, name)
        if isinstance(spec, VideoSpec):
            lengths: Ints = self.records.lengths(name).take(np.arange(len(self.records)))
            return lengths
        return self.records.sound_lengths(name)

    @cached_property
    def _splits(self) -> Ints:
        """The number of the first clip of each record, then the number of all clips."""
        return splits_of(self.clipping.counts(self.lengths))

    def __len__(self) -> int:
        return int(self._splits[-1])

    def _places(self, numbers: Ints) -> tuple[Ints, Ints]:
        """Return the record of each clip, and its first frame."""
        record_numbers = self._splits[1:].searchsorted(numbers, side="right")
        return record_numbers, (numbers - self._splits[record_numbers]) * self.clipping.every

    # The identity of the clips.

    @property
    def _parameters(self) -> dict[str, Any]:
        return {"leaves": list(self.names), **asdict(self.clipping)}

    @cached_property
    def _digests(self) -> Digests:
        elements = self.records.origins.digests.elements
        rows = self.records.origins_of_leaves(self._leaves).digests.rows
        return digests_of_rows(elements, rows, "clips", self._parameters, {"beside": list(self.beside)})

    @property
    def origins(self) -> Origins:
        of_records = self.records.origins
        ends = self._splits[np.cumsum([0, *of_records.segments])].tolist()
        return origins_of_rows(
            of_records,
            self.info.title,
            "clips",
            digests=self._digests,
            segments=tuple(after - before for before, after in pairwise(ends)),
            earlier=self._earlier_digest,
        )

    def _earlier_digest(self, segments: int) -> str | None:
        digest = self.records.origins_of_leaves(self._leaves).earlier_digest(segments)
        return None if digest is None else derived_digest(digest, "clips", self._parameters)

    def sources(self, numbers: Ints) -> Sources:
        record_numbers, starts = self._places(numbers)
        sources = self.records.sources(record_numbers)
        begin = starts[sources.element]
        return replace(sources, begin=begin, end=begin + self.clipping.span)

    # The elements.

    @cached_property
    def element_spec(self) -> dict[str, LeafSpec]:
        return {**self._clip_specs, **self._beside_codec.spec}

    @cached_property
    def _clip_specs(self) -> dict[str, LeafSpec]:
        specs = {last_key(name): _decoded_leaf(self.records.element_spec, name) for name in self.names}
        if None not in [dim for spec in specs.values() for dim in _frame_shape(spec)] or not len(self):
            shapes = {key: _frame_shape(spec) for key, spec in specs.items()}
        else:
            # Other records may have videos of another size, which clips then have too.
            first = self._clips_of(np.zeros(1, np.int64), None)
            shapes = {key: values[0].shape[1:] for key, values in first.items() if key in specs}
        dtypes = {key: np.float32 if isinstance(spec, ArraySpec) else np.uint8 for key, spec in specs.items()}
        return {key: ArraySpec(dtypes[key], (self.clipping.frames, *shape)) for key, shape in shapes.items()}

    @cached_property
    def _beside_codec(self) -> Codec:
        """The codec that stacks the fields beside clips."""
        specs: dict[str, LeafSpec] = {}
        for name in self.beside:
            spec = _leaf(self.records.element_spec, name)
            if spec.shape and spec.shape[0] is None:
                spec = replace(spec, shape=(self.clipping.frames, *spec.shape[1:]), nullable=False)
            specs[last_key(name)] = spec
        return codec_for(specs)

    @cached_property
    def info(self) -> Info:
        info = self.records.info
        clipping = self.clipping
        names = ", ".join(map(repr, self.names))
        options = f"frames={clipping.frames}, stride={clipping.stride}, every={clipping.every}"
        shapes = [
            (np.dtype(spec.dtype).itemsize, *(dim or 1 for dim in spec.shape)) for spec in self._clip_specs.values()
        ]
        count = max(1, len(self))
        specs = [_decoded_leaf(self.records.element_spec, name) for name in self.names]
        return replace(
            info,
            title=f"Clips({info.name!r}, {names}, {options})",
            record_nbytes=max(1, info.record_nbytes * len(self.records) // count),
            read_nbytes=sum(map(prod, shapes)),
            records_per_read=_CLIPS_PER_READ,
            reading_cost="decoded",
            is_declared=all(None not in _frame_shape(spec) for spec in specs),
            together=-(-count // max(1, len(self.records))),
        )

    @cached_property
    def _read_view(self) -> DatasetView:
        view = self.records.narrowed([*self.names, *self.beside])
        # A sound is decoded in part. With videos, which are no bytes here, it is decoded whole.
        stored = view.undecoded()
        return view if stored is None or self._has_videos else stored

    @property
    def _has_videos(self) -> bool:
        spec = self.records.element_spec
        return any(isinstance(_leaf(spec, name), VideoSpec) for name in self.names)

    def _clips_of(self, numbers: Ints, held: Held | None) -> dict[str, list[Any]]:
        """Return the values of some clips by key. Of each video only the bytes of the frames are read, all at once."""
        of_clip, starts = self._places(numbers)
        frames = starts[:, None] + np.arange(self.clipping.frames) * self.clipping.stride
        record_numbers = distinct(of_clip)
        view = self._read_view
        elements = list(map(Schema.of(view.element_spec).flatten, view.elements(record_numbers, held)))
        rows = record_numbers.searchsorted(of_clip).tolist()
        columns = {
            name: [elements[row][place] for row in rows]
            for place, name in enumerate(names_of_leaves(view.element_spec))
            if name in (*self.names, *self.beside)
        }
        videos = [name for name in self.names if isinstance(_leaf(self.records.element_spec, name), VideoSpec)]
        clips = _clips_of_videos([columns[name] for name in videos], frames)
        values = dict(zip(videos, clips, strict=True))
        for name in self.names:
            if name not in videos:
                values[name] = self._clips_of_sounds(name, columns[name], frames, of_clip.tolist())
        for name in self.beside:
            values[name] = self._beside_clips(name, columns[name], frames, of_clip.tolist())
        return {last_key(name): values[name] for name in (*self.names, *self.beside)}

    def _clips_of_sounds(
        self, name: str, sounds: Sequence[Any], frames: Ints, record_numbers: Sequence[int]
    ) -> list[Any]:
        if not isinstance(sounds[0], bytes):
            return [samples[of_clip] for samples, of_clip in zip(sounds, frames, strict=True)]
        files = self.records.sound_files(name)
        return in_threads(
            lambda clip: files.samples(sounds[clip], frames[clip], record_numbers[clip]), range(len(sounds))
        )

    def _beside_clips(self, name: str, values: Sequence[Any], frames: Ints, record_numbers: Sequence[int]) -> list[Any]:
        if _leaf(self.records.element_spec, name).shape[:1] == (None,):
            triples = zip(record_numbers, values, frames, strict=True)
            return [self._at_frames(name, record, value, numbers) for record, value, numbers in triples]
        # Clips of one record must not share memory: who gets one may change it.
        return [value.copy() if isinstance(value, np.ndarray) else value for value in values]

    def _at_frames(self, name: str, record: int, value: Any, frames: Ints) -> Any:
        """Return the values of a field that has one for each frame."""
        count = 0 if value is None else len(value)
        if count != self.lengths[record]:
            raise InvalidArgumentError(
                f"record {record} has {count} values in {name!r} for {self.lengths[record]} frames: a field beside "
                "clips whose first dimension varies has a value for each frame; pad another one first"
            )
        return value[frames]

    def elements(self, numbers: Ints, held: Held | None = None) -> list[Any]:
        if not len(numbers):
            return []
        values = self._clips_of(numbers, held)
        return [dict(zip(values, row, strict=True)) for row in zip(*values.values(), strict=True)]

    def batch(self, numbers: Ints, held: Held | None = None) -> dict[str, Any]:
        values = self._clips_of(numbers, held) if len(numbers) else {}
        clips = {key: self._stacked(key, spec, values.get(key, [])) for key, spec in self._clip_specs.items()}
        if not self.beside:
            return clips
        keys = [last_key(name) for name in self.beside]
        rows = [dict(zip(keys, row, strict=True)) for row in zip(*(values.get(key, []) for key in keys), strict=True)]
        return {**clips, **self._beside_codec.batch(self._beside_codec.columns(rows))}

    def _stacked(self, key: str, spec: LeafSpec, clips: Sequence[NDArray[Any]]) -> NDArray[Any]:
        if not clips:
            return np.empty((0, *(dim or 0 for dim in spec.shape)), spec.dtype)
        check_one_size(f"[{key!r}]", clips)
        return np.stack(clips)


def _clips_of_videos(videos: Sequence[Sequence[Any]], frames: Ints) -> list[list[NDArray[np.uint8]]]:
    """Return the frames of each clip, for each of several videos; all are read at once. Videos of raw() are bytes."""
    clips = [
        clip_of(Video.of_file(video) if isinstance(video, bytes) else video, numbers)
        for clips_of_one in videos
        for video, numbers in zip(clips_of_one, frames, strict=True)
    ]
    bodies = read_clips(clips)
    decoded = in_threads(lambda clip: clips[clip].decode(bodies[clip]), range(len(clips)))
    return [decoded[start : start + len(frames)] for start in range(0, len(decoded), len(frames))]


def _leaf(spec: Any, name: str) -> LeafSpec:
    return leaf_named(spec, name)


def _decoded_leaf(spec: Any, name: str) -> LeafSpec:
    return decoded_leaf(_leaf(spec, name))


def _frame_shape(spec: LeafSpec) -> tuple[int | None, ...]:
    """Return the shape of a frame; None for what is not known."""
    if isinstance(spec, SizedVideoSpec):
        return spec.size.height, spec.size.width, 3
    return (None, None, 3) if isinstance(spec, VideoSpec) else spec.shape[1:]


def clip_rows(records: DatasetView, leaves: Any, frames: Any, stride: Any, every: Any, beside: Any) -> ClipRows:
    """Return the clips of a view, with the arguments of :meth:`cachelayer.View.clips`."""
    count = checked_length("frames", frames)
    step = checked_length("stride", stride)
    distance = count * step if every is None else checked_length("every", every)
    names = one_or_several("leaves", leaves)
    return ClipRows(records, names, Clipping(count, step, distance), names_beside(beside))
