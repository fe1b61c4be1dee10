"""Storages, references, sizes and times as command-line arguments, and the options to reach storages."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from cachelayer.access.dataref import DataRef
from cachelayer.errors import InvalidArgumentError
from cachelayer.objects.local import LocalStore
from cachelayer.objects.open_store import without_credentials
from cachelayer.storage.storage import Storage
from cachelayer.versions.reference import Reference

StorageArgument = Annotated[str, typer.Argument(metavar="STORAGE", help="A path, or a URL such as gs://bucket/prefix.")]
ReferenceArgument = Annotated[
    str,
    typer.Argument(
        metavar="REFERENCE",
        help="STORAGE/ID@VERSION. The version is a name, a tag, latest (default) or sha256:PREFIX; \\[a:b] slices it.",
    ),
]
DatasetArgument = Annotated[str, typer.Argument(metavar="STORAGE/ID", help="A dataset in a storage.")]
Options = Annotated[
    list[str] | None,
    typer.Option(
        "--option", "-o", metavar="KEY=VALUE", help="An option of the storage's client, such as endpoint_url=..."
    ),
]
ToOptions = Annotated[
    list[str] | None, typer.Option("--to-option", metavar="KEY=VALUE", help="An option of the second storage's client.")
]
LocalCache = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="The folder for local copies of remote shards.", show_default=False),
]


@dataclass(frozen=True)
class Address:
    """A dataset or one of its versions, in a storage.

    Args:
        url: the URL of the storage.
        dataset_id: the id of the dataset.
        version: the text after the @; None if there is no @.
        rows: the slice at the end; None if there is none.
    """

    url: str
    dataset_id: str
    version: str | None = None
    rows: slice | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a text such as ``gs://bucket/caches/cifar10@v2[:100]``.

        Raises:
            InvalidArgumentError: if the text names no dataset.
        """
        reference = Reference.split(text.rstrip("/"))
        if not reference.url:
            raise InvalidArgumentError(
                f"{without_credentials(text)!r} names no dataset: write STORAGE/ID, or STORAGE/ID@VERSION"
            )
        return cls(reference.url, reference.dataset_id, reference.name, reference.rows)

    @classmethod
    def whole(cls, text: str) -> Self:
        """Parse the address of a whole version.

        Raises:
            InvalidArgumentError: if the text has a slice.
        """
        address = cls.parse(text)
        if address.rows is not None:
            raise InvalidArgumentError(
                f"{without_credentials(text)!r} is a part of a version: name the whole version, without [...]"
            )
        return address

    @property
    def name(self) -> str:
        """The dataset and its version, as :meth:`cachelayer.Storage.fetch` takes them."""
        return self.dataset_id if self.version is None else f"{self.dataset_id}@{self.version}"


def open_storage(url: str, options: Sequence[str] | None, local_cache: Path | None = None) -> Storage:
    """Open the storage that an argument names.

    Raises:
        InvalidArgumentError: if the argument names a version.
    """
    if "@" in url.rstrip("/").rpartition("/")[2]:
        raise InvalidArgumentError(
            f"{without_credentials(url)!r} names a version: here a storage is asked for, such as "
            f"{without_credentials(url.rstrip('/').rpartition('/')[0] or '.')!r}"
        )
    return Storage(url, local_cache=local_cache, storage_options=storage_options(options))


def existing_storage(url: str, options: Sequence[str] | None) -> Storage:
    """Open a storage that must exist.

    Raises:
        InvalidArgumentError: if it is a local path that is no folder.
    """
    storage = open_storage(url, options)
    if isinstance(storage._store, LocalStore) and not storage._store.root.is_dir():
        raise InvalidArgumentError(f"there is nothing at {url}: name the folder that builds publish to")
    return storage


def open_reference(text: str, options: Sequence[str] | None, local_cache: Path | None = None) -> DataRef[Any]:
    """Open the version, or the slice of one, that an argument names."""
    address = Address.parse(text)
    ref = open_storage(address.url, options, local_cache).fetch(address.name)
    return ref if address.rows is None else ref[address.rows]


def storage_options(options: Sequence[str] | None) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` options. Values are JSON if possible, otherwise text.

    Raises:
        InvalidArgumentError: if an option is not written as ``KEY=VALUE``.
    """
    return dict(_named("--option", option) for option in options or ())


def _named(option: str, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        # The text may be a secret: do not repeat it.
        raise InvalidArgumentError(f"{option} is written as KEY=VALUE")
    return name, json_or_text(value)


def json_or_text(text: str) -> Any:
    """Decode a text as JSON if possible, otherwise return it."""
    try:
        return json.loads(text)
    except ValueError:
        return text


_NUMBER = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", re.ASCII)
_BYTES = {
    "": 1,
    "b": 1,
    **{f"{prefix}{unit}": 1000**power for power, prefix in enumerate("kmgt", 1) for unit in ("", "b")},
    **{f"{prefix}ib": 1024**power for power, prefix in enumerate("kmgt", 1)},
}
_SECONDS = {"": 1, "s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def nbytes(option: str, text: str) -> int:
    """Parse a size: ``256MB``, ``1.5GiB``, ``4096``.

    Raises:
        InvalidArgumentError: if the text is invalid; the error names the option.
    """
    return int(_scaled(option, text, _BYTES, "bytes such as 4096, 256MB or 1GiB"))


def seconds(option: str, text: str) -> float:
    """Parse a time: ``90``, ``30m``, ``24h``, ``7d``.

    Raises:
        InvalidArgumentError: if the text is invalid; the error names the option.
    """
    return _scaled(option, text, _SECONDS, "a time such as 90s, 30m, 24h or 7d")


def _scaled(option: str, text: str, units: Mapping[str, int], what: str) -> float:
    match = _NUMBER.fullmatch(text.strip())
    if match is None or match[2].lower() not in units:
        raise InvalidArgumentError(f"{option} {text!r}: pass {what}")
    return float(match[1]) * units[match[2].lower()]
