"""The files of a version on disk."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cachelayer


def shard_files(ref: cachelayer.DataRef[Any], suffix: str = "array_record") -> list[Path]:
    """Return the files of the shards of a version, or those beside them, in the order of their records."""
    version = ref._base.version
    shards = [version.folder.local_path(shard.name) for shard in version.manifest.shards]
    return [shard.with_suffix(f".{suffix}") for shard in shards]
