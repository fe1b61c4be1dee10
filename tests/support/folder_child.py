"""A process that is killed while it has a temporary folder."""

import os
import signal
import tempfile
from pathlib import Path

from cachelayer.support.temporary_files import working_folder


def killed_at_work(made: str, parent: str) -> None:
    """Make a temporary folder with a file, tell its name, and be killed."""
    tempfile.tempdir = parent
    with working_folder() as folder:
        (folder / "file").touch()
        Path(made).write_text(str(folder))
        os.kill(os.getpid(), signal.SIGKILL)
