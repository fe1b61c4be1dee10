"""Arguments that say where: storages, references, and the options to reach them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Self

import typer

from cachelayer.access.dataref import DataRef
from cachelayer.errors import InvalidArgumentError
from cachelayer.objects.local import LocalStore
from cachelayer.objects.open_store import refuse_query, without_credentials
from cachelayer.storage.storage import Storage
from cachelayer.versions.reference import split_slice

StorageArgument = Annotated[str, typer.Argument(metavar="STORAGE", help="A path, or a URL: gs://bucket/prefix.")]
ReferenceArgument = Annotated[
    str,
    typer.Argument(
        metavar="REFERENCE",
        help="STORAGE/ID@VERSION; the version a name, a tag, latest (the default) or sha256:PREFIX; \\[a:b] behind it.",
    ),
]
DatasetArgument = Annotated[str, typer.Argument(metavar="STORAGE/ID", help="A dataset in a storage.")]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the storage's client: endpoint_url=..."),
]
ToOptions = Annotated[
    list[str] | None, typer.Option("--to-option", metavar="KEY=VALUE", help="The same for the second storage.")
]
LocalCache = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Where local copies of remote shards are kept.", show_default=False),
]


@dataclass(frozen=True)
class Address:
    """A dataset, or a version of it, in a storage.

    Args:
        url: the storage.
        dataset_id: the dataset.
        version: what stands behind the @; None where nothing does.
        rows: the slice at the end.
    """

    url: str
    dataset_id: str
    version: str | None = None
    rows: slice | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """The address that a text such as ``gs://bucket/caches/cifar10@v2[:100]`` is.

        Raises:
            InvalidArgumentError: where it names no storage.
        """
        refuse_query(text)
        whole, rows = split_slice(text)
        head, slash, name = whole.rstrip("/").rpartition("/")
        dataset_id, at, version = name.partition("@")
        if not slash or not dataset_id or head.endswith(":/"):
            raise InvalidArgumentError(
                f"{without_credentials(text)!r} names no dataset: write STORAGE/ID, or STORAGE/ID@VERSION"
            )
        return cls(head or "/", dataset_id, version if at else None, rows)

    @classmethod
    def whole(cls, text: str) -> Self:
        """The address of a whole version.

        Raises:
            InvalidArgumentError: where it is that of a part.
        """
        address = cls.parse(text)
        if address.rows is not None:
            raise InvalidArgumentError(
                f"{without_credentials(text)!r} is a part of a version: name the whole, without [...]"
            )
        return address

    @property
    def name(self) -> str:
        """The dataset and its version, as :meth:`cachelayer.Storage.fetch` takes them."""
        return self.dataset_id if self.version is None else f"{self.dataset_id}@{self.version}"


def open_storage(url: str, options: Sequence[str] | None, local_cache: Path | None = None) -> Storage:
    """The storage of an argument."""
    return Storage(url, local_cache=local_cache, storage_options=storage_options(options))


def existing_storage(url: str, options: Sequence[str] | None) -> Storage:
    """Return the storage of an argument that is not about to be made.

    Raises:
        InvalidArgumentError: if there is no such folder.
    """
    storage = open_storage(url, options)
    store = storage._store
    if not isinstance(store, LocalStore) or os.path.isdir(store.root):  # noqa: PTH112 - Path raises for long names
        return storage
    if os.path.isfile(store.root):  # noqa: PTH113 - the same
        raise InvalidArgumentError(f"{url} is a file, not a storage: name the folder that builds publish to")
    raise InvalidArgumentError(f"there is nothing at {url}{_datasets_beside(store.root)}")


def _datasets_beside(path: Path) -> str:
    """Say which datasets there are, if the path may have been meant for one of them."""
    known = Storage(path.parent).datasets() if os.path.isdir(path.parent) else []  # noqa: PTH112 - the same
    near = get_close_matches(path.name, known, n=3)
    return f"; did you mean {' or '.join(str(path.parent / name) for name in near)}?" if near else ""


def open_reference(text: str, options: Sequence[str] | None, local_cache: Path | None = None) -> DataRef[Any]:
    """The version, or the part of one, of an argument."""
    address = Address.parse(text)
    ref = open_storage(address.url, options, local_cache).fetch(address.name)
    return ref if address.rows is None else ref[address.rows]


def storage_options(options: Sequence[str] | None) -> dict[str, Any]:
    """The options by name; values are JSON where they are any, else text.

    Raises:
        InvalidArgumentError: where one has no name.
    """
    return dict(_named("--option", option) for option in options or ())


def _named(option: str, text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        # What was typed may be a secret.
        raise InvalidArgumentError(f"{option} is written as KEY=VALUE")
    return name, json_or_text(value)


def json_or_text(text: str) -> Any:
    """What a text is as JSON, else the text."""
    try:
        return json.loads(text)
    except ValueError:
        return text
