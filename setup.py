"""Puts definitions/, examples/ and docs/ into the wheel: outside a checkout ctrain finds its images, jobs and pages.

They are data at the top of the repository, not packages; pyproject.toml says everything else.
"""

from pathlib import Path
from shutil import copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py

LEFT_OUT = ("__pycache__", "*.png", "*.ipynb", "site")


class BuildWithShare(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # a checkout finds them at its top
            return
        for name in ("definitions", "examples", "docs"):
            target = Path(self.build_lib, "ctrain_runtime", "share", name)
            copytree(name, target, dirs_exist_ok=True, ignore=ignore_patterns(*LEFT_OUT))


setup(cmdclass={"build_py": BuildWithShare})
