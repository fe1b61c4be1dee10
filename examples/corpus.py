"""Cache what the other programs train on: rows of numbers, pictures, and documents of tokens."""

import numpy as np

import cachelayer
from cachelayer import ArraySpec

storage = cachelayer.Storage("cache")  # or "gs://bucket/caches", "s3://bucket/caches"


def points():
    x = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    return {"x": x, "y": x.sum(axis=1), "record": np.arange(400)}


def stories():
    rng = np.random.default_rng(0)
    for number in range(400):
        yield {"tokens": rng.integers(1, 100, rng.integers(5, 60)).astype(np.int32), "record": number}


def photos():
    rng = np.random.default_rng(0)
    images = rng.integers(0, 255, (400, 40, 40, 3), np.uint8)
    return {"image": images, "label": np.arange(400) % 4, "record": np.arange(400)}


rows = storage.cache(points, "rows@v1")
pictures = storage.cache(photos, "pictures@v1")
spec = {"tokens": ArraySpec("int32", (None,)), "record": ArraySpec("int64")}
documents = storage.cache(stories, "documents@v1", element_spec=spec)
