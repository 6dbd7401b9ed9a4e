"""A static web page of a store: which versions there are, what is in them, what differs, and how to run them.

It is one file and needs no network. Its parts lie in page/: the frame, the style, and the programs for searching, for
details and for comparing. The table of versions is written here, so that it is there without JavaScript; all else is
in the page as JSON. Values get into HTML, JSON and command lines by `_html`, `_json` and shlex.join, nowhere else.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
import shlex
import stat
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Optional
from urllib.parse import urlencode

from ctrain_builder.files import atomic, manifest_writer
from ctrain_builder.store.writer import Permissions, lock_store
from ctrain_runtime.base.text import format_size, pluralize
from ctrain_runtime.errors import ImageUnusable, UsageError
from ctrain_runtime.images.image import Image
from ctrain_runtime.store import outputs, sbom
from ctrain_runtime.store.manifest import stated_licenses
from ctrain_runtime.store.outputs import CATALOGUE
from ctrain_runtime.store.store import PublishedImage, Store, StoreContents

FILE = "catalogue.html"
_PAGE = Path(__file__).parent / "page"
_SCRIPTS = ("search.js", "details.js", "compare.js")
_FRAMEWORKS = ("torch", "tensorflow")
_OCI = "org.opencontainers.image."
_SHOWN_ELSEWHERE = (_OCI, "org.ctrain.", "org.label-schema.")  # labels that repeat the manifest, or name the builder
_FACTS = (  # of the manifest, as they are
    *("name", "arch", "built", "published", "revision", "digest", "signed", "flat"),
    *("base", "software", "requires", "tools"),
)


@dataclass(frozen=True)
class CatalogueEntry:
    """A published image. `packages` are places in the catalogue's table; `problem` says why there are none."""

    image: PublishedImage
    packages: tuple[int, ...] = ()
    problem: str = ""

    @property
    def reference(self) -> str:
        return self.image.manifest.reference


@dataclass(frozen=True)
class Catalogue:
    """What the page tells. `packages` holds each (kind, name, version) once, however many images have it."""

    contents: StoreContents
    root: Path
    made: str
    versions: tuple[CatalogueEntry, ...]
    packages: tuple[tuple[str, str, str], ...]

    @property
    def damaged(self) -> tuple[str, ...]:
        return tuple(map(str, (*self.contents.damaged, *self.contents.dangling)))


def load_entries(store: Store) -> Catalogue:
    """What is published now, by name, newest first. It takes no lock; a damaged image is there, with the reason."""
    root = store.root.absolute()
    scan = Store(root).scan()
    places: dict[tuple[str, str, str], int] = {}
    versions = []
    images = list(reversed(scan.images))  # of each name the newest first
    images.sort(key=lambda one: one.manifest.name)
    for image in images:
        try:
            held = sorted((kind, name, number) for (kind, name), number in sbom.packages(image.path).items())
            versions.append(CatalogueEntry(image, tuple(places.setdefault(one, len(places)) for one in held)))
        except ImageUnusable as error:
            is_known = image.manifest.adopted and isinstance(
                error, sbom.NoPackageList
            )  # a file without Python, or signed
            versions.append(CatalogueEntry(image, problem="" if is_known else error.message))
    return Catalogue(scan, root, manifest_writer.utc_now(), tuple(versions), tuple(places))


def write(catalogue: Catalogue, output: Optional[Path], say: Callable[[str], None]) -> Path:
    """Write the page into the store, or to `output`; its path. It is as readable as the store is.

    Under the lock, `gc` removes no temporary file of it; and the page is made again if others have changed the store
    since it was read, so that no older one takes the place of theirs. The log is for what changes the store; this does
    not. Raises StoreError, UsageError.
    """
    page, root = render(catalogue), catalogue.root
    if output is None:
        path = root / FILE
        with lock_store(root, say) as writer:
            if outputs.fingerprint(writer.store.scan()) != outputs.fingerprint(catalogue.contents):
                catalogue = load_entries(writer.store)
                page = render(catalogue)
            writer.write(path, page)
            writer.record_output(path, CATALOGUE, catalogue.contents)
        return path
    try:
        atomic.write_text(output, page, Permissions(root.stat()).file | stat.S_IWUSR)
    except (FileNotFoundError, IsADirectoryError, NotADirectoryError, PermissionError) as error:
        raise UsageError(f"{output} can't be written: {error.strerror}", "Name another file with --output") from error
    return output


def render(catalogue: Catalogue) -> str:
    """The page. What a browser may load or run is said by digest, so nothing that the data could bring in."""
    style, script = _part("page.css"), "".join(map(_part, _SCRIPTS))
    names = {one.image.manifest.name for one in catalogue.versions}
    parts = {
        "policy": f"default-src 'none'; img-src data:; style-src {_sha256(style)}; script-src {_sha256(script)}; "
        "base-uri 'none'; form-action 'none'",
        "style": style,
        "script": script,
        "data": _json({"packages": catalogue.packages, "versions": list(map(_facts, catalogue.versions))}),
        "store": _html(catalogue.root),
        "made": _html(f"{catalogue.made[:16].replace('T', ' ')} UTC"),
        "count": _html(f"{pluralize(len(catalogue.versions), 'version')} of {pluralize(len(names), 'image')}"),
        "damaged": "".join(f"<p class=problem>Left out: {_html(problem)}</p>" for problem in catalogue.damaged),
        "rows": "\n".join(map(_row, catalogue.versions)),
    }
    # In one pass: what looks like a place in a value stays as it is.
    page = re.sub(r"\{\{ (\w+) \}\}", lambda match: parts[match[1]], _part("page.html"))
    return page.encode("utf-8", "replace").decode()  # JSON can hold half a character, which no file can


def _row(version: CatalogueEntry) -> str:
    """A line of the table."""
    manifest, reference = version.image.manifest, _html(version.reference)
    software, link = manifest.software, _html(urlencode({"image": version.reference}, errors="replace"))
    run = [test for test in manifest.tests if not test.skipped]
    cells = (
        ("framework", " ".join(f"{one} {software[one].partition('+')[0]}" for one in _FRAMEWORKS if one in software)),
        ("cuda", software.get("cuda", "")),
        ("minor", " ".join(manifest.requires.gpus)),
        ("number", format_size(manifest.size)),
        ("minor", (manifest.published or manifest.built)[:10]),
        ("minor", f"{sum(test.passed for test in run)}/{len(run)}"),
        ("minor", "yes" if version.image.signed else ""),
    )
    badges = (f' <span class=badge data-channel="{one}">{one}</span>' for one in map(_html, version.image.channels))
    problem = version.problem.replace(f"{version.image.path} ", "")
    note = version.image.deprecation
    deprecated = f"<small class=failed>{_html(note)}</small>" if note else ""
    held = (f"<td class={kind}>{_html(text)}</td>" for kind, text in cells)
    return (
        f'<tr><td class=pick><input type=checkbox value="{reference}" aria-label="Compare {reference}"></td>'
        f'<th scope=row><a href="#{link}">{_html(manifest.name)} '
        f"<span class=version>{_html(manifest.version)}</span></a>{''.join(badges)}"
        f"{deprecated}<small class=failed>{_html(problem)}</small><small class=found></small></th>"
        f"{''.join(held)}</tr>"
    )


def _facts(version: CatalogueEntry) -> dict[str, Any]:
    """A version as the page's programs know it."""
    image, manifest = version.image, version.image.manifest
    facts, labels, root = asdict(manifest), manifest.labels, image.path.parent
    run = ("ctrain", "run", "--nodes", "2", "--store", str(root), "--image", version.reference, "--")
    engine = Image(image.path, manifest).plain_argv
    return {
        **{fact: facts[fact] for fact in _FACTS},
        "version": manifest.version,
        "channels": image.channels,
        "size": format_size(manifest.size),
        "description": labels.get(f"{_OCI}description", ""),
        "licenses": stated_licenses(labels),
        "labels": {name: value for name, value in labels.items() if not name.startswith(_SHOWN_ELSEWHERE)},
        "layers": [(one.definition, one.size, format_size(one.size), one.digest or one.key) for one in manifest.layers],
        "tests": [(one.name, one.outcome, one.skipped or f"{one.seconds} s") for one in manifest.tests],
        "scan": str(image.scan or ""),
        "deprecated": str(image.deprecation or ""),
        "packages": version.packages,
        "problem": version.problem,
        "commands": [shlex.join((*start, "python", "train.py")) for start in (run, engine)],
    }


def _json(data: object) -> str:
    """JSON that may stand in a script element: nothing in it begins a tag or a comment."""
    return json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")


def _html(text: object) -> str:
    return html.escape(str(text))


def _sha256(text: str) -> str:
    """As a Content-Security-Policy names what it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _part(name: str) -> str:
    return (_PAGE / name).read_text(encoding="utf-8")
