"""The documentation as a site, by Sphinx: `make docs`.

The pages stay Markdown that a repository's web page and `ctrain help` show, too: the navigation is here, not in them.
"""

from __future__ import annotations

import re
from pathlib import Path

from sphinx.application import Sphinx

# The four kinds of pages: to learn, to do something, to look something up, to understand.
NAVIGATION = {
    "Tutorials": (
        "first-run",
        "one-gpu-to-fsdp",
        "when-a-run-dies",
        "from-sbatch",
        "your-image",
        "first-store",
        "store-rules",
        "images-in-ci",
    ),
    "How to": (
        "installing",
        "jobs",
        "runs",
        "restarts",
        "hangs",
        "without-a-queue",
        "interactive",
        "laptop",
        "user-layers",
        "report",
        "profiles",
        "replay",
        "api",
        "sites",
        "staging",
        "import",
        "images",
        "store",
        "signatures",
        "store-sync",
        "modules",
        "ci",
        "upstream",
        "doctor",
    ),
    "Reference": (
        "reference/commands",
        "reference/keys",
        "reference/files",
        "reference/editors",
        "reference/exit-codes",
        "launchers",
        "run-directory",
        "signals",
        "engines",
        "contract",
        "schedulers",
        "known-sites",
        "description",
        "store-format",
        "store-commands",
        "store-policy",
        "estimate",
        "network",
        "ngc",
        "licences",
        "scripts",
    ),
    "Explanation": (
        "compared",
        "how-a-run-ends",
        "one-world",
        "layers",
        "equality",
        "estimate-formulas",
        "estimate-evidence",
    ),
    "Change ctrain": ("architecture", "where-does-my-change-go", "one-run", "releases", "decisions"),
}
# Pages whose commands a test runs, as of every tutorial; of others it compares them with what ctrain takes.
RUN_BY_TESTS = (*NAVIGATION["Tutorials"], "store", "store-sync", "signatures")
NOT_RUN = "*A test compares the commands of this page with what ctrain takes; not all of them are run.*"
RUN = "*Tests run the commands of this page.*"
COMMAND = re.compile(r"^ *(?:\$ )?ctrain [a-z]", re.MULTILINE)
OUTSIDE = (  # pages that are not in docs/, and stay where people look for them
    "/README",
    "/CHANGELOG",
    "/CONTRIBUTING",
    "/SECURITY",
    "/examples/README",
    "/examples/*/README",
    "/definitions/README",
    "/definitions/*/README",
    "/benchmarks/README",
)
LINK = re.compile(r"\[([^\]]+)\]\(([^)\s#]+)(?:#[^)\s]*)?\)")

project = "ctrain"
root_doc = "docs/index"
extensions = ["myst_parser"]
include_patterns = ["*.md", "docs/**.md", "examples/**.md", "benchmarks/*.md", "definitions/**.md"]
exclude_patterns = [".*", "build", "builder", "runtime", "tests", "*.egg-info"]
html_extra_path = ["root"]  # index.html, which leads to docs/index.html

myst_heading_anchors = 4  # links may name headings, as on the repository's web page
suppress_warnings = ["myst.header"]  # a page may begin with a smaller heading

highlight_language = "none"  # of what names no language: output, and lines of a shell

html_theme = "furo"  # without scripts, fonts or pictures of other hosts
html_title = "ctrain"
html_copy_source = False
html_show_sphinx = html_show_copyright = False
html_show_search_summary = False  # it would fetch pages, which a browser refuses for local files
nitpicky = True


def setup(app: Sphinx) -> None:
    app.connect("source-read", _prepare)


def _prepare(app: Sphinx, name: str, source: list[str]) -> None:
    """The index gets the navigation, which the other pages show beside themselves, at its end what it does not name.
    Pages with commands end with whether tests run them.
    Directories of the repository, and its pages that are not of the site, have no address: links become their text."""
    directory = Path(app.srcdir, name).parent
    source[0] = LINK.sub(lambda link: link[0] if _has_page(app, directory / link[2]) else link[1], source[0])
    if name == root_doc:
        source[0] += "".join(_toctree(caption, pages) for caption, pages in NAVIGATION.items())
        listed = {page for pages in NAVIGATION.values() for page in pages}
        others = sorted({path.stem for path in directory.glob("*.md")} - listed - {Path(root_doc).name})
        source[0] += _toctree("More", (*others, *OUTSIDE))
    elif COMMAND.search(source[0]):
        source[0] += f"\n---\n\n{RUN if Path(name).name in RUN_BY_TESTS else NOT_RUN}\n"


def _has_page(app: Sphinx, target: Path) -> bool:
    """Also true of what does not exist, so that it is an error, and of other sites."""
    path = target.resolve()
    if path.suffix == ".md" and path.is_file():
        return str(path.relative_to(app.srcdir).with_suffix("")) in app.env.found_docs
    return not path.is_dir()


def _toctree(caption: str, pages: tuple[str, ...]) -> str:
    lines = ["", "```{toctree}", ":hidden:", ":glob:", f":caption: {caption}", "", *pages, "```", ""]
    return "\n".join(lines)
