"""The packages that tests can do without."""

from importlib.metadata import version
from importlib.util import find_spec

from packaging.requirements import Requirement

# What the extra `test` brings beyond `test-core`. Any other package that is missing fails the tests that import it.
OPTIONAL = {
    "PIL", "adlfs", "apache_beam", "cryptography", "datasets", "gcsfs", "grain", "jax", "jinja2", "keras", "moto",
    "mypy", "obstore", "optax", "orbax", "pandas", "polars", "playwright", "pyarrow", "ray", "s3fs", "sklearn",
    "soundfile", "soxr", "starlette", "tensorflow", "tensorflow_datasets", "torch", "torchdata", "torchtitan", "tyro",
    "uvicorn", "uvloop", "webdataset",
}  # fmt: skip


def is_installed(need: str) -> bool:
    """Return whether a package is installed, in a version that fits if ``need`` states some: ``pandas>=3``."""
    needed = Requirement(need)
    return find_spec(needed.name) is not None and (not needed.specifier or version(needed.name) in needed.specifier)


def lacking(error: BaseException | None) -> str:
    """Return the optional package for lack of which an error was raised; an empty text if that is not why."""
    while error is not None:
        package = str(getattr(error, "name", None)).partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and package in OPTIONAL:
            return package
        error = error.__cause__
    return ""
