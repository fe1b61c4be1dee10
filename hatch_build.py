"""Compile ``cachelayer/_gather.c``, if there is a compiler; without it, the package does the same with numpy.

The extension has the stable ABI: one wheel a platform serves Python 3.11 and all later ones.
"""

from __future__ import annotations

import sysconfig
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from setuptools import Distribution, Extension


class CompileGather(BuildHookInterface):
    """Compile the extension beside its source, and add it to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:  # noqa: ARG002
        if self.target_name != "wheel":
            return
        folder = Path(self.root) / "cachelayer"
        for old in folder.glob("_gather.*so"):
            old.unlink()
        source = Extension("cachelayer._gather", [str(folder / "_gather.c")], py_limited_api=True, optional=True)
        command = Distribution({"ext_modules": [source]}).get_command_obj("build_ext")
        command.build_lib = self.root
        with TemporaryDirectory() as command.build_temp:
            command.ensure_finalized()
            command.run()
        if compiled := [path.name for path in folder.glob("_gather.*so")]:
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["pure_python"] = False
            build_data["tag"] = f"cp311-abi3-{platform}"
            build_data["artifacts"] += [f"cachelayer/{name}" for name in compiled]
