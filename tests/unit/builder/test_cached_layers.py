from __future__ import annotations

import hashlib

from ctrain_builder.cache.build_cache import Cache
from ctrain_builder.files.layer_content import LayerContent
from samples.sample_images import sif


def test_the_content_of_a_layer_is_recorded_when_it_is_added(cache: Cache) -> None:
    made = cache.root / "tmp/made"
    made.write_bytes(b"layer")
    cache.layers.add(made, cache.layers.path("key", False), "2026-11-22T08:00:00Z")
    digest = f"sha256:{hashlib.sha256(b'layer').hexdigest()}"
    assert cache.layers.known_content("key", False) == LayerContent(digest, 5, "2026-11-22T08:00:00Z")
    base = cache.layers.path("base", True)
    base.write_bytes(sif(data=b"system"))
    assert cache.layers.known_content("base", True) is None
    assert cache.layers.content("base", True).size == len(b"system")  # of its partition
    assert cache.layers.known_content("base", True) == cache.layers.content("base", True)


def test_a_layer_of_the_same_key_with_other_content_is_described_again(cache: Cache) -> None:
    for content in (b"one", b"another"):
        made = cache.root / "tmp/made"
        made.write_bytes(content)
        cache.layers.add(made, cache.layers.path("key", False), "")
        assert cache.layers.content("key", False).digest == f"sha256:{hashlib.sha256(content).hexdigest()}"
