"""References to versions: ``cifar10@v2``, ``cifar10@latest``, ``cifar10@sha256:<prefix>``, ``cifar10@v2[:45000]``."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

from cachelayer.errors import CorruptionError, InvalidArgumentError, InvalidNameError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.versions.snapshot import Snapshot, VersionInfo

_DIGEST = re.compile(r"sha256:([0-9a-f]{1,64})", re.ASCII)
_SLICE = re.compile(r"(?P<rest>.*)\[(?P<start>-?\d+)?:(?P<stop>-?\d+)?(?::(?P<step>-?\d+)?)?\]", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class Reference:
    """A reference to a version.

    Args:
        dataset_id: the dataset.
        name: a version, a tag, or ``latest``; None if the reference has only a digest.
        digest: a prefix of the digest, or None.
    """

    dataset_id: str
    name: str | None = paths.LATEST
    digest: str | None = None

    @classmethod
    def parse(cls, dataset_id: str, version: str | None = None) -> Reference:
        """Return the reference to a version of a dataset, or the one in a text such as ``cifar10@v2``.

        Args:
            dataset_id: the dataset; ``@`` and the version may follow it.
            version: a version, a tag, ``latest`` (the default), or a digest.

        Raises:
            InvalidNameError: if one of them is invalid.
            InvalidArgumentError: if both name a version.
        """
        dataset_id, found = _parted(dataset_id, version)
        wanted = paths.LATEST if found is None else found
        name, separator, digest = wanted.partition("@") if isinstance(wanted, str) else (wanted, "", "")
        if not separator and str(name).startswith("sha256"):
            return cls(dataset_id, None, _digest(name))
        if name != paths.LATEST:
            paths.check_name("version or tag", name)
        return cls(dataset_id, name, _digest(digest) if separator else None)

    def beside(self, text: str) -> Reference:
        """Return the reference in a text: a version of the dataset of this reference, or a whole reference.

        ``v2@sha256:<digest>`` is version v2 of this dataset, unless the dataset itself is called v2.
        """
        name, at, rest = text.partition("@") if isinstance(text, str) else (text, "", "")
        is_whole = bool(at) and (name == self.dataset_id or not rest.startswith("sha256"))
        return Reference.parse(text) if is_whole else Reference.parse(self.dataset_id, text)

    def resolve(self, snapshot: Snapshot) -> VersionInfo:
        """Return the version that the reference names.

        Raises:
            VersionNotFoundError: if there is no such version; the message names those that exist.
            InvalidArgumentError: if several digests begin with the prefix.
            CorruptionError: if the version has another digest.
        """
        versions = snapshot.versions
        if self.name is None:
            return self._by_digest(versions)
        name = snapshot.tags.get(self.name, self.name)
        if name == paths.LATEST and versions:
            name = next(reversed(list(versions)))
        if name not in versions:
            raise self._not_found(snapshot)
        info = versions[name]
        if self.digest is not None and not info.digest.startswith(self.digest):
            raise CorruptionError(
                f"{self.dataset_id}@{self.name} has digest sha256:{info.digest}, not the pinned sha256:{self.digest}"
            )
        return info

    def _by_digest(self, versions: Mapping[str, VersionInfo]) -> VersionInfo:
        found = [info for info in versions.values() if info.digest.startswith(self.digest or "")]
        if not found:
            raise VersionNotFoundError(
                f"{self.dataset_id}: no version has a digest that begins with sha256:{self.digest}"
            )
        if len({info.digest for info in found}) > 1:
            names = ", ".join(f"{info.version} (sha256:{info.digest[:12]})" for info in found)
            raise InvalidArgumentError(f"sha256:{self.digest} stands for several versions: {names}; give more digits")
        return found[-1]

    def _not_found(self, snapshot: Snapshot) -> VersionNotFoundError:
        if not snapshot.versions:
            return VersionNotFoundError(f"{self.dataset_id}: no version is published")
        known = [*snapshot.versions, *snapshot.tags]
        near = get_close_matches(str(self.name), known, 3)
        hint = f"did you mean {' or '.join(map(repr, near))}? " if near else ""
        shown = ", ".join(known[-10:])
        return VersionNotFoundError(f"{self.dataset_id}: no version or tag {self.name!r}: {hint}there are {shown}")


def dataset_and_version(dataset_id: str, version: Any, argument: str = "version") -> tuple[str, Any]:
    """Return the dataset and its version, which is not checked yet.

    Args:
        dataset_id: the dataset; ``@`` and the version may follow it.
        version: the version, if the caller passed it separately.
        argument: the name of that argument, for messages.

    Raises:
        InvalidNameError: if the id is invalid, or no version is named.
        InvalidArgumentError: if two versions are named.
    """
    name, found = _parted(dataset_id, version, argument)
    if found is None:
        raise InvalidNameError(f"{name!r} names no {argument}: write '{name}@<{argument}>', or pass {argument}=")
    return name, found


def dataset_and_plain_version(dataset_id: str, version: str | None, argument: str = "version") -> tuple[str, str]:
    """Return the dataset and the name of its version, for calls that take neither ``latest`` nor a digest.

    The arguments are those of :func:`dataset_and_version`.

    Raises:
        InvalidNameError: if the id or the name is invalid, or no version is named.
        InvalidArgumentError: if two versions are named.
    """
    dataset_id, name = dataset_and_version(dataset_id, version, argument)
    if isinstance(name, str) and "@" in name:
        raise InvalidNameError(f"{argument} {name!r}: pass the plain name of a {argument}, without @ and a digest")
    return dataset_id, paths.check_name(argument, name)


def _parted(text: str, version: Any, argument: str = "version") -> tuple[str, Any]:
    """Return the dataset, and the version that follows an ``@`` or was passed separately.

    Every call that takes a dataset and a version reads ``"id@version"`` with this function.
    """
    dataset_id, at, rest = text.partition("@") if isinstance(text, str) else (text, "", "")
    paths.check_name("dataset id", dataset_id)
    if at and version is not None:
        kind = argument.rpartition("_")[2]
        raise InvalidArgumentError(
            f"{text!r} names a {kind}, and so does {version!r}: pass one of them, and what follows by keyword"
        )
    return dataset_id, rest if at else version


def split_slice(text: str) -> tuple[str, slice | None]:
    """Return a reference without the slice at its end, and that slice; None if it has no slice."""
    match = _SLICE.fullmatch(text)
    if match is None:
        return text, None
    numbers = [int(match[name]) if match[name] else None for name in ("start", "stop", "step")]
    return match["rest"], slice(*numbers)


def split_url(text: str) -> tuple[str, str, str]:
    """Return the storage, the dataset and the version of a whole reference; what it lacks is empty.

    The version begins after the first ``@`` behind the last slash: the URL may contain another ``@``, and so may a
    version that has a digest.
    """
    slash = text.rfind("/") if "/" in text.partition("@")[0] else -1
    dataset_id, _, version = text[slash + 1 :].partition("@")
    return text[: max(slash, 0)], dataset_id, version


def _digest(text: str) -> str:
    match = _DIGEST.fullmatch(text)
    if match is None:
        raise InvalidNameError(f"{text!r} is not a digest: write sha256: and up to 64 hexadecimal digits")
    return match[1]
