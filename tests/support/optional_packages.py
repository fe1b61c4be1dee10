"""The packages that tests can do without."""

from __future__ import annotations

# What the extra `test` brings beyond `test-core`. Any other package that is missing fails the tests that import it.
OPTIONAL = {
    "PIL", "adlfs", "apache_beam", "cryptography", "datasets", "gcsfs", "grain", "jax", "jinja2", "keras", "moto",
    "mypy", "obstore", "optax", "orbax", "pandas", "polars", "playwright", "pyarrow", "ray", "s3fs", "sklearn",
    "soundfile", "soxr", "starlette", "tensorflow", "tensorflow_datasets", "torch", "torchdata", "torchtitan", "tyro",
    "uvicorn", "uvloop", "webdataset",
}  # fmt: skip


def lacking(error: BaseException | None) -> str:
    """Return the optional package for lack of which an error was raised; an empty text if that is not why."""
    while error is not None:
        package = str(getattr(error, "name", None)).partition(".")[0]
        if isinstance(error, ModuleNotFoundError) and package in OPTIONAL:
            return package
        error = error.__cause__
    return ""
