from __future__ import annotations

from pathlib import Path

import pytest

from samples.scripts import Scripts


@pytest.fixture
def scripts(tmp_path: Path) -> Scripts:
    return Scripts(tmp_path)
