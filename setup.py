"""Puts definitions/, examples/ and docs/ into the wheel: outside a checkout ctrain finds its images, jobs and pages.

They are data at the top of the repository, not packages; pyproject.toml says everything else. Wheel and sdist also get
the commit that they are made from, and the sdist the times and owners that make it reproducible.
"""

import gzip
import io
import os
import subprocess
import tarfile
from pathlib import Path
from shutil import copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

NO_TEXT = ("*.png", "*.svg", "*.ipynb", "site")  # of docs: terminals show the pages
COMMIT = Path("commit")  # in an sdist, which has no .git


class BuildWithShare(build_py):
    def run(self) -> None:
        super().run()
        if self.editable_mode:  # a checkout finds them at its top
            return
        share = Path(self.build_lib, "ctrain_runtime", "share")
        for name, left_out in (("definitions", ()), ("examples", ()), ("docs", NO_TEXT)):
            copytree(name, share / name, dirs_exist_ok=True, ignore=ignore_patterns("__pycache__", *left_out))
        if commit := find_commit():
            (share / COMMIT).write_text(commit)


class ReproducibleSdist(sdist):
    def run(self) -> None:
        super().run()
        for archive in self.get_archive_files():
            settle(Path(archive), int(os.environ.get("SOURCE_DATE_EPOCH", "0")))

    def make_release_tree(self, base_dir: str, files: list) -> None:  # type: ignore[type-arg]  # setuptools' own
        super().make_release_tree(base_dir, files)
        if commit := find_commit():
            Path(base_dir, COMMIT).write_text(commit)


def find_commit() -> str:
    """The commit of the sources, with -dirty where they differ from it; "" if nobody knows."""
    if COMMIT.is_file():
        return COMMIT.read_text()
    if not Path(".git").exists():
        return ""
    ask = ["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    return subprocess.run(ask, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def settle(archive: Path, epoch: int) -> None:
    """Pack it again, sorted, by nobody, at one time."""
    packed = io.BytesIO()
    with tarfile.open(archive) as old, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as new:
        for member in sorted(old.getmembers(), key=lambda member: member.name):
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            member.mtime = epoch
            member.pax_headers = {}
            new.addfile(member, old.extractfile(member) if member.isfile() else None)
    with archive.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as compressed:
        compressed.write(packed.getvalue())


setup(cmdclass={"build_py": BuildWithShare, "sdist": ReproducibleSdist})
