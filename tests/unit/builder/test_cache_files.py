from __future__ import annotations

import os

from ctrain_builder.cache.build_cache import Cache


def test_logs_are_for_their_owner(cache: Cache) -> None:
    before = os.umask(0)
    try:
        assert cache.files.new_log("x").stat().st_mode & 0o777 == 0o600
        cache.files.new_log("x").chmod(0o644)  # of an older version
        assert cache.files.new_log("x").stat().st_mode & 0o777 == 0o600
    finally:
        os.umask(before)
