"""Packages of extras: those that are installed must be in the bounds that the package's own metadata states.

``pip`` keeps the bounds of an extra only for those who install by the extra. Others may have an older version, which
would change values in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING

from cachelayer.errors import MissingDependencyError

if TYPE_CHECKING:
    from packaging.requirements import Requirement


@contextmanager
def packages_of(extra: str, need: str) -> Iterator[None]:
    """Import packages of an extra, in the body of the ``with`` statement.

    ``need`` says what needs which package, such as ``"videos need PyAV"``.
    """
    check_versions(extra)
    try:
        yield
    # A package whose shared library is missing raises an OSError.
    except (ImportError, OSError) as error:
        raise MissingDependencyError(f"{need}: pip install 'cachelayer[{extra}]'") from error


@cache
def check_versions(extra: str) -> None:
    """Raise a MissingDependencyError if a package is installed in a version that an extra does not allow."""
    # Imported here because most processes import no framework.
    from importlib.metadata import PackageNotFoundError, version

    from packaging.version import Version

    for requirement in _requirements():
        if requirement.marker is None or not requirement.marker.evaluate({"extra": extra}):
            continue
        if requirement.name == "cachelayer":
            for included in requirement.extras:
                check_versions(included)
            continue
        try:
            installed = version(requirement.name)
        except PackageNotFoundError:
            continue
        # A build such as 2.6.0a0+nv24 has what 2.6 has.
        if not requirement.specifier.contains(Version(installed).base_version):
            raise MissingDependencyError(
                f"{requirement.name} {installed} is installed, and cachelayer needs {requirement.name}"
                f"{requirement.specifier}: pip install 'cachelayer[{extra}]'"
            )


@cache
def _requirements() -> list[Requirement]:
    from importlib.metadata import PackageNotFoundError, requires

    from packaging.requirements import Requirement

    try:
        return [Requirement(text) for text in requires("cachelayer") or ()]
    except PackageNotFoundError:
        # A checkout that is not installed states no bounds.
        return []
