"""The parts that all commands share: ``--json``, ``--traceback``, examples in the help, and exit codes for errors."""

from __future__ import annotations

import functools
import inspect
import sys
import sysconfig
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, redirect_stdout
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer
from rich.markup import escape

from cachelayer.cli import output
from cachelayer.cli.output import Answer
from cachelayer.errors import CacheLayerError, CacheLayerWarning, CorruptionError, FormatError, StorageError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document, for scripts.")]
Traceback = Annotated[bool, typer.Option("--traceback", help="Show where in the code an error was raised.")]
_SHARED = {"as_json": Json, "show_traceback": Traceback}


def command(*examples: str) -> Callable[[Callable[..., Answer]], Callable[..., None]]:
    """Turn a function that returns an answer into a command with the shared options.

    With ``--json``, everything that the function prints goes to stderr, so that stdout holds only the document.

    Args:
        examples: command lines for its ``--help``.
    """

    def decorate(function: Callable[..., Answer]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(*args: Any, as_json: bool, show_traceback: bool, **kwargs: Any) -> None:
            with _exit_codes(show_traceback=show_traceback):
                with redirect_stdout(sys.stderr) if as_json else nullcontext():
                    answer = function(*args, **kwargs)
                output.write(answer, as_json=as_json)
            raise typer.Exit(answer.code)

        run.__doc__ = _help(function.__doc__ or "", examples)
        _add_parameters(run, function)
        return run

    return decorate


def _help(text: str, examples: tuple[str, ...]) -> str:
    lines = "\n".join(f"  $ {example}" for example in examples)
    paragraphs = " ".join(escape(text).split()), f"\b\nExamples:\n{escape(lines)}"
    return "\n\n".join(paragraphs)


def _add_parameters(run: Callable[..., None], function: Callable[..., Answer]) -> None:
    """Give a wrapper the parameters of its function, with resolved annotations, followed by the shared ones."""
    hints = get_type_hints(function, include_extras=True)
    own = [
        parameter.replace(annotation=hints[name]) for name, parameter in inspect.signature(function).parameters.items()
    ]
    shared = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=False, annotation=annotation)
        for name, annotation in _SHARED.items()
    ]
    run.__signature__ = inspect.Signature([*own, *shared])  # type: ignore[attr-defined]
    run.__annotations__ = {**hints, **_SHARED, "return": None}


@contextmanager
def _exit_codes(*, show_traceback: bool) -> Iterator[None]:
    """Turn a failure inside the block into a line on stderr and an exit code."""
    try:
        with warnings.catch_warnings():
            warnings.showwarning = _show_warning
            yield
    except (KeyboardInterrupt, typer.Abort) as error:
        output.problem("interrupted", str(error) or "nothing more was done")
        raise typer.Exit(output.INTERRUPTED) from None
    except CacheLayerError as error:
        if show_traceback:
            traceback.print_exc()
        output.problem("error", str(error))
        line = None if show_traceback else users_line(error)
        if line is not None:
            sys.stderr.write(f"{line}\n")
        raise typer.Exit(_code(error)) from None
    except SystemExit as end:
        output.problem("error", f"the program called sys.exit({end.code!r}): nothing was done")
        raise typer.Exit(output.USAGE) from None
    except (typer.Exit, BrokenPipeError):
        raise
    except Exception:  # noqa: BLE001 - shown in full, with its own exit code
        traceback.print_exc()
        output.problem("error", "this is a bug in cachelayer: please report it with the lines above")
        raise typer.Exit(output.BUG) from None


def _code(error: CacheLayerError) -> int:
    failed = isinstance(error, StorageError | CorruptionError | FormatError)
    return output.FAILURE if failed else output.USAGE


_plain_warning = warnings.showwarning


def _show_warning(message: Warning | str, category: type[Warning], *place: Any, **options: Any) -> None:
    if issubclass(category, CacheLayerWarning):
        output.problem("warning", str(message))
    else:
        _plain_warning(message, category, *place, **options)


_OTHERS = (
    str(Path(__file__).resolve().parents[1]),
    *(str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "purelib", "platlib")),
)


def users_line(error: CacheLayerError) -> str | None:
    """Return the innermost frame of the user's code in the causes of an error, as Python shows it.

    Frames of this library, the standard library and installed packages do not count.

    Returns:
        The lines of the frame; None if there is no such frame.
    """
    cause: BaseException | None = error.__cause__
    innermost = None
    while cause is not None:
        if not isinstance(cause, CacheLayerError):
            frames = [frame for frame in traceback.extract_tb(cause.__traceback__) if _is_users(frame.filename)]
            innermost = frames[-1] if frames else innermost
        cause = cause.__cause__
    return None if innermost is None else "".join(traceback.format_list([innermost])).rstrip("\n")


def _is_users(filename: str) -> bool:
    # Code without a file is generated, for example by autograph.
    path = Path(filename)
    return path.is_file() and not any(path.resolve().is_relative_to(folder) for folder in _OTHERS)
