"""Writes the golden files, docs/reference, docs/schemas, and what pages show of estimates, anew.

Look at the difference before committing it.

python tests/golden/regenerate.py
"""

from __future__ import annotations

import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
sys.path[:0] = [
    str(TOP / "builder"),
    str(TOP / "runtime"),
    str(TOP / "tests"),
]  # runs without an installation, as pytest does

from golden import cases, definitions  # noqa: E402  # found through the path above
from samples import estimate_page, reference_pages  # noqa: E402  # so are these


def main() -> None:
    for name, text in {**cases.files(), **definitions.files()}.items():
        path = cases.FOLDER / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    reference_pages.write()
    page = estimate_page.DOCS / "estimate.md"
    page.write_text(estimate_page.with_new_examples(page.read_text(encoding="utf-8")), encoding="utf-8")
    (estimate_page.DOCS / "estimate-evidence.md").write_text(estimate_page.evidence(), encoding="utf-8")


if __name__ == "__main__":
    main()
