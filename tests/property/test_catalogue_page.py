"""The web page of a store: whatever its texts are, a browser reads the same page with these texts in it."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path
from typing import Optional

from hypothesis import example, given
from hypothesis import strategies as st

from ctrain_builder.store.views.catalogue_page import Catalogue, CatalogueEntry, render
from ctrain_runtime.errors import ConfigError
from ctrain_runtime.store.store import PublishedImage, StoreContents
from samples.plans import a_manifest


class Reader(HTMLParser):
    """What a browser makes of a page: its elements, the values of their attributes, and the data for its programs."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.values: list[str] = []
        self.data = ""
        self.feed(page)
        self.close()

    def handle_endtag(self, tag: str) -> None:
        self.tags.append(f"/{tag}")

    def handle_starttag(self, tag: str, attributes: list[tuple[str, Optional[str]]]) -> None:
        self.tags.append(" ".join([tag, *(name for name, _ in attributes)]))
        self.values += [value or "" for _, value in attributes]

    def handle_data(self, data: str) -> None:
        if self.tags[-1:] == ["script id type"]:
            self.data += data


def page(text: str) -> str:
    manifest = a_manifest(name=text, software={"cuda": text, text: text}, labels={text: text})
    image = PublishedImage(manifest, Path("/apps") / "x.sif", (text,))
    version = CatalogueEntry(image, (0,), text)
    contents = StoreContents((image,), (ConfigError(text),))
    made = "2026-11-21T00:00:00Z"
    return render(Catalogue(contents, Path("/apps"), made, (version,), (("pypi", text, text),)))


PLAIN = Reader(page("plain"))


@given(st.text(st.characters(exclude_characters="\r\0")))  # which HTML itself reads as others
@example("</script><script>")
@example("<!--<script>")
@example('" onclick="x')
@example("{{ data }}")
@example("half a character: \ud800")
def test_any_text_stays_a_text(text: str) -> None:
    read = Reader(page(text))
    assert read.tags == PLAIN.tags
    assert text.encode("utf-8", "replace").decode() in read.values  # the channel of a badge
    assert json.loads(read.data)["packages"] == [["pypi", text, text]]
