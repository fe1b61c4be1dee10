"""The command ``doctor``: check this machine, and check that a storage can be published to."""

from __future__ import annotations

import configparser
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import RenderableType

from cachelayer.cli.addresses import LocalCache, Options, storage_options
from cachelayer.cli.command import command
from cachelayer.cli.output import FINDING, WELL, Answer, count, facts, table
from cachelayer.cli.storage_probe import Check, probe
from cachelayer.drawing.quantities import size
from cachelayer.objects.local import LocalStore
from cachelayer.objects.local_cache import CacheFolder, folder_of
from cachelayer.objects.open_store import open_store

_NEEDED = ("cachelayer", "array-record", "numpy", "ml-dtypes", "fsspec", "google-crc32c", "zstandard")
_NOT_FOR_USERS = ("all", "demo", "dev", "docs", "test", "test-core")
"""The extras that ``doctor`` does not suggest: they install what others install, or what developers need."""
_VARIABLES = {
    "gs": ("GOOGLE_APPLICATION_CREDENTIALS", "STORAGE_EMULATOR_HOST", "FSSPEC_GCS", "FSSPEC_GS"),
    "s3": (
        "AWS_ACCESS_KEY_ID",
        "AWS_PROFILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
        "AWS_CONTAINER_CREDENTIALS_FULL_URI",
        "AWS_ENDPOINT_URL",
        "AWS_ENDPOINT_URL_S3",
        "FSSPEC_S3",
    ),
}


@dataclass(frozen=True)
class CredentialPlace:
    """A place where a client finds credentials. Never holds their value.

    Args:
        scheme: ``gs`` or ``s3``.
        where: the environment variable or the file.
        kind: what was found there.
    """

    scheme: str
    where: str
    kind: str


@command(
    "cachelayer doctor",
    "cachelayer doctor gs://bucket/caches",
)
def doctor(
    storage: Annotated[str | None, typer.Argument(metavar="[STORAGE]", help="A storage to probe.")] = None,
    option: Options = None,
    local_cache: LocalCache = None,
) -> Answer:
    """Show versions, credentials found and local copies; probe a storage. Exit code 1 if it cannot be used."""
    extras = _extras()
    libraries = {"python": platform.python_version(), **{name: _version(name) for name in (*_NEEDED, *extras)}}
    found = [*_variables(), *_files()]
    copies = _copies(folder_of(local_cache))
    document: dict[str, Any] = {
        "versions": libraries,
        "credentials": [asdict(one) for one in found],
        "local_cache": copies,
    }
    shown: list[RenderableType] = [
        facts((name, known or _advice(extras.get(name))) for name, known in libraries.items()),
        "",
        _credentials(found),
        "",
        facts(_described(copies)),
    ]
    if storage is None:
        return Answer(document, shown)
    url, checks = _probed(storage, option)
    document["storage"] = {"url": url, "checks": [asdict(check) for check in checks]}
    return Answer(document, [*shown, "", _checks(url, checks)], WELL if all(one.ok for one in checks) else FINDING)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _extras() -> dict[str, str]:
    """Return the optional libraries, each with the smallest extra that installs it, from the installed metadata."""
    libraries: dict[str, set[str]] = {}
    requirements: list[str] = []
    with suppress(PackageNotFoundError):
        requirements = requires("cachelayer") or []
    for requirement in requirements:
        name, extra = re.match(r"[\w.-]+", requirement), re.search(r"extra == ['\"]([\w-]+)", requirement)
        if name and extra and extra[1] not in _NOT_FOR_USERS:
            libraries.setdefault(extra[1], set()).add(name[0])
    smallest: dict[str, str] = {}
    for extra_name in sorted(libraries, key=lambda each: (len(libraries[each]), each)):
        for library in sorted(libraries[extra_name] - {"cachelayer"}):
            smallest.setdefault(library, extra_name)
    return dict(sorted(smallest.items(), key=lambda pair: pair[::-1]))


def _advice(extra: str | None) -> str:
    package = "cachelayer" if extra is None else f"'cachelayer[{extra}]'"
    return f"not installed: pip install {package}"


def _variables() -> Iterator[CredentialPlace]:
    for scheme, names in _VARIABLES.items():
        for name in os.environ:
            if name in names or any(name.startswith(f"{one}_") for one in names if one.startswith("FSSPEC")):
                yield CredentialPlace(scheme, f"${name}", "environment variable")


def _files() -> Iterator[CredentialPlace]:
    home = Path("~").expanduser()
    gcloud = Path(os.environ.get("CLOUDSDK_CONFIG") or home / ".config" / "gcloud")
    own = os.environ.get("GOOGLE_APPLICATION_CREDENTIALS")
    for path in (*([Path(own)] if own else []), gcloud / "application_default_credentials.json"):
        if own or path.is_file():
            yield CredentialPlace("gs", str(path), _google_kind(path))
    for variable, name in (("AWS_SHARED_CREDENTIALS_FILE", "credentials"), ("AWS_CONFIG_FILE", "config")):
        path = Path(os.environ.get(variable) or home / ".aws" / name)
        if path.is_file():
            yield CredentialPlace("s3", str(path), _aws_kind(path))


def _google_kind(path: Path) -> str:
    try:
        kind = json.loads(path.read_text()).get("type", "without a type")
    except OSError:
        return "a file that cannot be read"
    except (ValueError, AttributeError):
        return "a file that is not JSON"
    return str(kind)


def _aws_kind(path: Path) -> str:
    profiles = configparser.RawConfigParser()
    with suppress(OSError, configparser.Error):
        profiles.read(path)
    names = [name.removeprefix("profile ") for name in profiles.sections()]
    return f"profiles {', '.join(names)}" if names else "a file without profiles"


def _credentials(found: list[CredentialPlace]) -> RenderableType:
    if not found:
        return "no credentials in the environment or in files; gs:// also asks the metadata server of a Google machine"
    shown = table("credentials", "where", "kind")
    for one in found:
        shown.add_row(f"{one.scheme}://", one.where, one.kind)
    return shown


def _copies(path: Path) -> dict[str, Any]:
    groups = CacheFolder(path).sizes() if path.is_dir() else {}
    used = sum(sum(sizes.values()) for sizes in groups.values())
    disk = next(folder for folder in (path, *path.parents) if folder.exists())
    free = shutil.disk_usage(disk).free
    return {
        "folder": str(path),
        "exists": path.is_dir(),
        "groups": len(groups),
        "nbytes": used,
        "free": free,
        "limit": CacheFolder(path).allowed(used, free),
    }


def _described(copies: dict[str, Any]) -> list[tuple[str, str]]:
    there = f"{size(copies['nbytes'])} of {count(copies['groups'], 'build')}"
    return [
        ("local copies", copies["folder"]),
        ("there are", there if copies["exists"] else "none: the folder is made when it is needed"),
        ("may take", f"{size(copies['limit'])}; {size(copies['free'])} are free"),
    ]


def _probed(storage: str, option: Options) -> tuple[str, list[Check]]:
    store = open_store(storage, storage_options(option))
    if isinstance(store, LocalStore) and not store.root.is_dir():
        return store.url, [Check("exists", ok=False, detail="the folder does not exist: the first build makes it")]
    return store.url, probe(store)


def _checks(url: str, checks: list[Check]) -> RenderableType:
    shown = table("storage", url, "")
    for one in checks:
        shown.add_row("ok" if one.ok else "FAILED", one.check, one.detail)
    return shown
