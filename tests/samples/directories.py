"""Directories with files of which each contains its own name."""

from __future__ import annotations

from pathlib import Path


def fill(root: Path, *names: str) -> dict[str, str]:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return content(root)


def content(root: Path) -> dict[str, str]:
    return {str(path.relative_to(root)): path.read_text() if path.is_file() else "" for path in root.rglob("*")}
