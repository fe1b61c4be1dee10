"""The files of a version on disk."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import cachelayer
from cachelayer.versions.snapshot import info_of_row, row_of


def shard_files(ref: cachelayer.DataRef[Any], suffix: str = "array_record") -> list[Path]:
    """Return the files of the shards of a version, or those beside them, in the order of their records."""
    version = ref._base.version
    shards = [version.folder.local_path(shard.name) for shard in version.manifest.shards]
    return [shard.with_suffix(f".{suffix}") for shard in shards]


def set_facts(entry: dict[str, Any], version: str, **facts: Any) -> None:
    """Change facts of a version in the document of an entry of the log that lists it."""
    rows = entry["versions"]
    [place] = [place for place, row in enumerate(rows) if row[0] == version]
    rows[place] = row_of(replace(info_of_row("version", rows[place]), **facts))
