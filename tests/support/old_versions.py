"""Versions as releases wrote them that stored no lengths."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path


def forget_lengths(root: Path, dataset_id: str, version: str) -> None:
    """Make a version in a local storage one without lengths; it must be the only one that names its shards."""
    entries = sorted((root / dataset_id / "_log").glob("*.json"))
    for entry in entries:
        document = json.loads(entry.read_bytes())
        for info in document["versions"]:
            if info["version"] == version:
                path = root / dataset_id / info["manifest"]
                path.write_bytes(_without_lengths(path.read_bytes()))
                info["manifest_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
                for lengths in path.parent.glob("*.lengths"):
                    lengths.unlink()
        entry.write_text(json.dumps(document))


def _without_lengths(raw: bytes) -> bytes:
    document = json.loads(raw)
    for name in ("lengths_crc32c", "length_totals"):
        document["data"]["shards"].pop(name, None)
    return json.dumps({**document, "format": 1}).encode()
