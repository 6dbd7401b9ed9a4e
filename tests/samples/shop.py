"""A store with images of a few bytes, and what `ctrain store` prints about it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, Optional, Union

import pytest

from ctrain_builder.cli.main import BUILD_VERBS
from ctrain_builder.store.init import init_store
from ctrain_builder.store.publish import publish
from ctrain_runtime.cli.main import RUNTIME_VERBS, main
from ctrain_runtime.store.manifest import SCHEMA, Manifest, checksum
from ctrain_runtime.store.store import open_store


class Shop:
    """A store, and what the verbs say about it."""

    def __init__(
        self, folder: Path, make_manifest: Callable[..., Manifest], capsys: pytest.CaptureFixture[str]
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.root, self._folder, self.make, self.capsys = folder / "store", folder, make_manifest, capsys
        init_store(self.root)

    def publish(self, content: Union[str, bytes], channel: str = "", **facts: Any) -> None:
        """`facts`: of the manifest."""
        image, data = self._folder / "small.sif", content.encode() if isinstance(content, str) else content
        image.write_bytes(data)
        made = {key: facts.pop(key) for key in ("passed", "tag", "layers") if key in facts}
        manifest = self.make(f"sha256:{hashlib.sha256(data).hexdigest()}", **made)
        publish(image, Manifest(**{**vars(manifest), "size": len(data), **facts}), self.root, channel)

    def __call__(self, *argv: str, code: Optional[int] = 0, stream: str = "") -> str:
        """What `ctrain store ARGV` prints."""
        return self.ctrain("store", *argv, code=code, stream=stream)

    def ctrain(self, *argv: str, code: Optional[int] = 0, stream: str = "") -> str:
        """What `ctrain ARGV --store STORE` prints to a stream (by default to stderr if it fails) with that exit code;
        `code` None: with any but 0."""
        ended = main([*RUNTIME_VERBS, *BUILD_VERBS], [*argv, "--store", str(self.root)])
        output = self.capsys.readouterr()
        assert ended == code if code is not None else ended, output
        return output.err if (stream or ("err" if ended else "out")) == "err" else output.out

    def next_schema(self, number: int, folder: str = "") -> Path:
        """Make a manifest one of the next schema, as a newer ctrain would write it; its path."""
        path = self.file(number, "json", folder)
        data = {**json.loads(path.read_text()), "schema": SCHEMA + 1, "new_key": 1}
        del data["checksum"]
        path.chmod(0o644)
        path.write_text(json.dumps({**data, "checksum": checksum(data)}, indent=2) + "\n")
        return path

    def data(self, *argv: str) -> Any:
        return json.loads(self(*argv, "--json"))

    @property
    def versions(self) -> dict[int, tuple[str, ...]]:
        """Number -> channels."""
        return {image.manifest.release: image.channels for image in open_store(self.root).images()}

    def file(self, number: int, suffix: str = "sif", folder: str = "") -> Path:
        return self.root / folder / f"small_1.0-s-py3-r{number}.{suffix}"
