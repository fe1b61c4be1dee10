"""References: texts that name a version, or a view of it.

::

    gs://bucket/caches/cifar10@v2@sha256:3fcda2.where('label > 3')[:100]@sha256:9a01
    storage            dataset name digest     calls                     pin: the digest of the view

The text may leave out the storage, the name, the digest and the calls. Calls are read by
:mod:`cachelayer.versions.view_calls`. Every public call that takes a dataset and a version, as a pair or in one text,
reads them with :class:`Reference`, through :meth:`cachelayer.storage.catalog.Catalog.parse`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal, Self

from cachelayer.errors import CorruptionError, InvalidArgumentError, InvalidNameError, VersionNotFoundError
from cachelayer.objects import paths
from cachelayer.objects.open_store import refuse_credentials, refuse_query
from cachelayer.support.arguments import did_you_mean
from cachelayer.support.credentials_in_urls import without_credentials
from cachelayer.versions.snapshot import Snapshot, VersionInfo
from cachelayer.versions.view_calls import ViewCall, parse_calls

AUTO = "auto"
"""The version that stands, in :meth:`Storage.cacheable`, for a name made from the code and the arguments."""
Want = Literal["view", "version", "base", "name", "new", "template", "dataset", "any"]
_DIGEST = re.compile(r"sha256:([0-9a-f]{1,64})", re.ASCII)
_CALLED = re.compile(
    r"(?P<name>[^\[\]()/'\"]*?)(?P<calls>(?:\[|\.[a-z_]+\().*[\])])(?:@sha256:(?P<pin>[0-9a-f]{1,64}))?",
    re.ASCII | re.DOTALL,
)
"""What follows the storage: dataset and version, the calls that make a view, and the digest that pins the view."""


@dataclass(frozen=True)
class Reference:
    """A dataset and a version of it, as a user names them."""

    dataset_id: str
    name: Any = None
    """A version, a tag or ``latest``; None if none is named."""
    digest: str | None = None
    """A prefix of the digest of the version; None if none is named."""
    url: str = ""
    """The storage; empty if the text does not name it."""
    calls: tuple[ViewCall, ...] = ()
    """The calls that make a view of the version."""
    pin: str | None = None
    """A prefix of the digest of that view; None if none is named."""

    @classmethod
    def parse(cls, text: str, version: Any = None, want: Want = "view", argument: str = "version") -> Self:
        """Return the reference that a text of a user names.

        Args:
            text: the dataset; ``@`` and the version may follow it, and the storage and ``/`` may come before it.
            version: the version, if it is passed separately.
            want: what the text must name.
                ``"view"``: a version that exists, by its name, a tag, ``latest``, a digest, or a name and a digest; if
                the text names none, the newest. Calls may follow.
                ``"version"``: the same without calls. ``"base"``: the same, and the text must name a version.
                ``"name"``: a version or a tag by its name, perhaps with a digest.
                ``"new"``: the name of a new version. ``"template"``: a text that makes such a name.
                ``"dataset"``: a dataset alone. ``"any"``: whatever the text names.
            argument: the name of the argument for the version, for messages.

        Raises:
            InvalidNameError, InvalidArgumentError: if anything else is named.
        """
        url = ""
        rest = text
        calls: tuple[ViewCall, ...] = ()
        pin = None
        if isinstance(text, str):
            url, rest, calls, pin = _split_text(text)
            without_calls = rest if url in ("", "/") else f"{url}/{rest}"
            if ":" in without_calls:
                refuse_credentials(without_calls)
            if url:
                refuse_query(without_calls)
        dataset_id, at, named = rest.partition("@") if isinstance(rest, str) else (rest, "", None)
        if url.endswith(":/") or (url and not dataset_id):
            raise InvalidArgumentError(
                f"{without_credentials(text)!r} names no dataset: write <storage>/<dataset id>@<version>"
            )
        if at and version is not None:
            raise InvalidArgumentError(f"{text!r} names a {argument}, and so does {version!r}: pass one of them")
        paths.check_name("dataset id", dataset_id if version is None else text)
        name = named if at else version
        digest = None
        if calls and want not in ("view", "any"):
            raise InvalidArgumentError(
                f"'{dataset_id}@{name}' is followed by calls that make a view: name the whole version alone"
            )
        if name is not None and want == "dataset":
            raise InvalidArgumentError(f"{dataset_id}@{name} is a version: name only the dataset, {dataset_id!r}")
        if name is None and want in ("base", "name", "new", "template"):
            raise InvalidNameError(f"{dataset_id!r} names no {argument}: write '{dataset_id}@<{argument}>'")
        if want == "new":
            name = _new_name(argument, name)
        elif want not in ("any", "template") and name is not None:
            name, digest = _name_and_digest(name, want, argument)
        return cls(dataset_id, name, digest, url, calls, pin)

    def view_of(self, ref: Any) -> Any:
        """Return the view that the calls make of the version."""
        view = ref
        for call in self.calls:
            view = call.apply(view)
        if self.pin is not None and not view.digest.startswith(self.pin):
            name = f"{self.dataset_id}@{self.name}{''.join(map(str, self.calls))}"
            raise CorruptionError(
                f"{name} has digest sha256:{view.digest}, not the pinned sha256:{self.pin}: other records were meant"
            )
        return view

    def resolve(self, snapshot: Snapshot) -> VersionInfo:
        """Return the version that the reference names; the newest one if it names none."""
        versions = snapshot.versions
        if self.name is None and self.digest is not None:
            return self._by_digest(snapshot, self.digest)
        name = snapshot.tags.get(self.name, self.name)
        if name in (None, paths.LATEST) and versions:
            name = next(reversed(list(versions)))
        if name not in versions:
            raise self._not_found(snapshot)
        info = versions[name]
        if self.digest is not None and not info.digest.startswith(self.digest):
            self._refuse_superseded(snapshot, self.digest)
            raise CorruptionError(
                f"{self.dataset_id}@{self.name} has digest sha256:{info.digest}, not the pinned sha256:{self.digest}"
            )
        return info

    def resolve_name(self, snapshot: Snapshot) -> str:
        """Return the name of the version that the reference names; raise if it names it by a tag."""
        name = self.resolve(snapshot).version
        if name != self.name:
            raise VersionNotFoundError(f"{self.dataset_id}: {self.name!r} is a tag: name the version itself")
        return name

    def _by_digest(self, snapshot: Snapshot, digest: str) -> VersionInfo:
        same = [info for info in snapshot.versions.values() if info.digest.startswith(digest)]
        if not same:
            self._refuse_superseded(snapshot, digest)
            raise VersionNotFoundError(f"{self.dataset_id}: no version has a digest that begins with sha256:{digest}")
        if len({info.digest for info in same}) > 1:
            names = ", ".join(f"{info.version} (sha256:{info.digest[:12]})" for info in same)
            raise InvalidArgumentError(f"sha256:{self.digest} stands for several versions: {names}; give more digits")
        return same[-1]

    def _refuse_superseded(self, snapshot: Snapshot, digest: str) -> None:
        """Raise if a version had this digest until records were erased from it."""
        successor = snapshot.successor(digest)
        if successor is not None:
            raise VersionNotFoundError(
                f"{self.dataset_id}@sha256:{digest[:12]}: records were erased from it ({successor.reason}): "
                f"{self.dataset_id}@{successor.version}@sha256:{successor.digest} has all others, under the same "
                "numbers"
            )

    def _not_found(self, snapshot: Snapshot) -> VersionNotFoundError:
        if not snapshot.versions:
            return VersionNotFoundError(f"{self.dataset_id}: no version is published")
        known = [*snapshot.versions, *snapshot.tags]
        hint = did_you_mean(str(self.name), known)
        shown = ", ".join(known[-10:])
        return VersionNotFoundError(f"{self.dataset_id}: no version or tag {self.name!r}: {hint}there are {shown}")


def names_version(text: str) -> bool:
    """Return whether a text names a version rather than a storage: there is an ``@`` after its last slash."""
    # An Azure URL may have an ``@`` in its host.
    before, _, last = text.rstrip("/").rpartition("/")
    return "@" in last and not before.endswith(":/")


def _split_text(text: str) -> tuple[str, str, tuple[ViewCall, ...], str | None]:
    """Return the parts of a text: the storage, the dataset with its version, the calls, and the pin.

    Folders of the storage, and texts in calls, may hold slashes and brackets: the storage ends at the last slash after
    which the rest can be read.
    """
    end = len(text) if text.endswith((")", "]")) or "@sha256:" in text else 0
    while end > 0:
        end = text.rfind("/", 0, end)
        match = _CALLED.fullmatch(text, end + 1)
        calls = None if match is None else parse_calls(match["calls"])
        if match is not None and calls is not None:
            return text[: max(end, 0)] or text[: end + 1], match["name"], calls, match["pin"]
    folder, slash, rest = text.rpartition("/")
    return folder or slash, rest, (), None


def _name_and_digest(named: Any, want: Want, argument: str) -> tuple[str | None, str | None]:
    """Return the name and the digest of a version that a user names."""
    name, at, digest = named.partition("@") if isinstance(named, str) else (named, "", "")
    if is_digest := want != "name" and not at and str(name).startswith("sha256"):
        digest = name
    elif want == "name" or name != paths.LATEST:
        paths.check_name(argument, name)
    if not digest and not at:
        return name, None
    if (match := _DIGEST.fullmatch(digest)) is None:
        raise InvalidNameError(
            f"{argument} {named!r}: {digest!r} is not a digest: write sha256: and up to 64 hexadecimal digits"
        )
    return None if is_digest else name, match[1]


def _new_name(argument: str, name: object) -> str:
    """Return the name of a new version if it is valid."""
    if name == AUTO:
        raise InvalidNameError(
            f"{argument} {AUTO!r} stands for a name made from the code and the arguments of a function: decorate the "
            f'function that returns the source with storage.cacheable("<dataset id>@{AUTO}"), or choose another name'
        )
    return paths.check_name(argument, name)
