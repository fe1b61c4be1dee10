"""Small videos of every kind, and what PyAV decodes of whole files."""

import io
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

HEIGHT, WIDTH = 48, 64
# The codec, the container, and options of the encoder or of `video_file`.
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "h264 mp4": ("libx264", "mp4", {}),
    "h264 without B-frames": ("libx264", "mp4", {"options": {"bf": "0"}}),
    "h264 open groups": ("libx264", "mp4", {"options": {"x264-params": "open-gop=1:bframes=3:b-pyramid=normal"}}),
    "h264 fragments": ("libx264", "mp4", {"container_options": {"movflags": "frag_keyframe+empty_moov"}}),
    "h264 with sound": ("libx264", "mp4", {"sound": True}),
    "h264 of varying rate": ("libx264", "mp4", {"times": [0, 10, 50, 60, 200, 201, 300, 333, *range(400, 2400, 37)]}),
    "h264 4:4:4": ("libx264", "mp4", {"pix_fmt": "yuv444p"}),
    "h264 mkv": ("libx264", "matroska", {}),
    "h264 flv": ("libx264", "flv", {}),
    "hevc mp4": ("libx265", "mp4", {"options": {"x265-params": "log-level=none"}}),
    "av1 mp4": ("libsvtav1", "mp4", {"options": {"svtav1-params": "lp=1"}}),
    "vp9 webm": ("libvpx-vp9", "webm", {}),
    "mpeg4 mp4": ("mpeg4", "mp4", {"options": {"bf": "2"}}),
    "mpeg4 avi": ("mpeg4", "avi", {}),
    "mpeg2 mp4": ("mpeg2video", "mp4", {"options": {"bf": "2"}}),
    "mjpeg avi": ("mjpeg", "avi", {"pix_fmt": "yuvj420p"}),
    "ffv1 mkv": ("ffv1", "matroska", {}),
    "prores mov": ("prores_ks", "mov", {"pix_fmt": "yuv422p10le"}),
    "gif": ("gif", "gif", {"pix_fmt": "rgb8"}),
}


def kind(name: str, **options: Any) -> bytes:
    codec, container, own = KINDS[name]
    return video_file(codec=codec, container=container, **{**own, **options})


def video_file(
    frames: int = 60,
    *,
    size: tuple[int, int] = (HEIGHT, WIDTH),
    codec: str = "libx264",
    container: str = "mp4",
    keyframe_every: int = 12,
    times: list[int] | None = None,
    pix_fmt: str = "yuv420p",
    sound: bool = False,
    video: bool = True,
    seed: int = 0,
    rotation: int = 0,
    options: dict[str, str] | None = None,
    container_options: dict[str, str] | None = None,
    path: Path | None = None,
) -> bytes:
    """Return a file of a picture that moves; times are in milliseconds. Some options need a path to write to."""
    import av

    av.logging.set_level(av.logging.PANIC)
    out = io.BytesIO()
    height, width = size
    pixels = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    pixels = pixels.repeat(8, axis=0).repeat(8, axis=1)
    with av.open(out if path is None else str(path), "w", format=container, options=container_options or {}) as file:
        if video:
            stream: Any = file.add_stream(codec, rate=30, options=options or {})
            stream.width, stream.height, stream.pix_fmt, stream.gop_size = width, height, pix_fmt, keyframe_every
            stream.thread_count = 1
            if times is not None:
                stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
            if rotation:
                stream.set_display_rotation(rotation)
        audio: Any = file.add_stream("aac", rate=16000) if sound else None
        for number in range(frames if video else 0):
            frame = av.VideoFrame.from_ndarray(np.roll(pixels, number, axis=1), format="rgb24")
            frame.pts = number if times is None else times[number]
            frame.time_base = Fraction(1, 30 if times is None else 1000)
            file.mux(stream.encode(frame))
        if video:
            file.mux(stream.encode())
        if sound:
            samples = av.AudioFrame.from_ndarray(np.zeros((1, 32000), np.float32), format="fltp", layout="mono")
            samples.rate, samples.pts = 16000, 0
            file.mux(audio.encode(samples))
            file.mux(audio.encode())
    return out.getvalue() if path is None else path.read_bytes()


def decoded(file: bytes) -> Any:
    """Return all frames of a file, as plain PyAV decodes them: uint8 ``[frames, height, width, 3]``."""
    import av

    with av.open(io.BytesIO(file)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
