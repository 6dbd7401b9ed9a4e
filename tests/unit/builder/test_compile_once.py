"""What definitions/python_layer.sh compiles once, with a shell for a compiler, and stand-ins for pip and dpkg."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "definitions" / "python_layer.sh"
# What it "compiles" shows how often that was done, and in which environment.
COMPILER = """\
echo >> times
mkdir "$1/lib"
echo "$SOURCE_DATE_EPOCH $PYTHONDONTWRITEBYTECODE" > "$1/lib/it.so"
chmod 750 "$1/lib/it.so"
"""


class Image:
    def __init__(self, root: Path) -> None:
        self.root, self.made, self.kept = root, root / "made", root / "compiled"
        found = re.search(r"(?ms)^compile_once\(\).*?^make_once\(\).*?^}$", SCRIPT.read_text())
        assert found and "/mnt/compiled" in found[0]
        (root / "post").write_text(f'{found[0].replace("/mnt/compiled", str(self.kept))}\ncompile_once "$@"\n')
        (root / "compiler").write_text(COMPILER)
        self.program("python3", '[ "$*" = "-m pip list --format freeze" ] && echo torch==2.13.0')
        self.program("dpkg-query", "echo gcc 12")
        self.kept.mkdir()

    def program(self, name: str, script: str) -> None:
        (self.root / "bin").mkdir(exist_ok=True)
        (self.root / "bin" / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.root / "bin" / name).chmod(0o755)

    def compile(self) -> subprocess.CompletedProcess[str]:
        """As %post does in a new layer."""
        if self.made.exists():
            subprocess.run(["rm", "-r", str(self.made)], check=True)
        argv = ["/bin/sh", "-ex", "post", str(self.made), "/bin/sh", "-e", "compiler", str(self.made)]
        env = {"PATH": f"{self.root}/bin:/usr/bin:/bin", "SOURCE_DATE_EPOCH": "1795494621"}
        return subprocess.run(argv, cwd=self.root, env=env, capture_output=True, text=True)

    @property
    def times(self) -> int:
        return len((self.root / "times").read_text().splitlines())

    @property
    def result(self) -> tuple[str, int]:
        return (self.made / "lib/it.so").read_text(), (self.made / "lib/it.so").stat().st_mode & 0o777


@pytest.fixture
def image(tmp_path: Path) -> Image:
    return Image(tmp_path)


def test_what_was_compiled_is_taken(image: Image) -> None:
    for said in ("", "made: compiled before, taken from the cache\n"):
        assert image.compile().stdout == said
        assert image.result == ("315619200 1\n", 0o750), "at a time that is not the layer's"
        assert len(list(image.kept.iterdir())) == 1
    assert image.times == 1


@pytest.mark.parametrize(("name", "script"), [("python3", "echo torch==2.13.1"), ("dpkg-query", "echo gcc 13")])
def test_other_packages_compile_again_and_what_was_kept_goes(image: Image, name: str, script: str) -> None:
    """A mirror's can be newer, although the same programs have run."""
    image.compile()
    before = list(image.kept.iterdir())
    image.program(name, script)
    assert image.compile().returncode == 0
    assert image.times == 2
    assert len(list(image.kept.iterdir())) == 1 and list(image.kept.iterdir()) != before


def test_beside_what_follows_the_packages_are_those_of_before(image: Image) -> None:
    """compile_beside starts while pip is going to install: what it keeps counts for the packages without these."""
    post = (image.root / "post").read_text()
    more = "printf '#!/bin/sh\\necho torch==2.13.0 new==1\\n' > bin/python3\nname_kept other"
    beside = f'\ncompile_beside "$@"\n{more}\nwait $!\n'
    (image.root / "post").write_text(post.replace('\ncompile_once "$@"\n', beside))
    before = (image.root / "bin/python3").read_text()
    assert image.compile().returncode == 0
    (image.root / "bin/python3").write_text(before)
    assert image.compile().stdout == "made: compiled before, taken from the cache\n"
    assert image.times == 1


def test_an_image_without_dpkg(image: Image) -> None:
    image.program("dpkg-query", "exit 127")
    image.compile()
    image.compile()
    assert image.times == 1
    image.program("python3", "echo torch==2.13.1")
    image.compile()
    assert image.times == 2


def test_a_compilation_that_fails_ends_the_build_and_keeps_nothing(image: Image) -> None:
    (image.root / "compiler").write_text(f"{COMPILER}exit 3\n")
    assert image.compile().returncode == 3
    assert list(image.kept.iterdir()) == []


def test_a_function_of_the_definition_ends_where_it_fails(image: Image) -> None:
    post = (image.root / "post").read_text()
    (image.root / "post").write_text(
        post.replace('\ncompile_once "$@"\n', "\nf() { false; echo on; }\ncompile_once made f\n")
    )
    done = image.compile()
    assert (done.returncode, done.stdout) == (1, "")
    assert list(image.kept.iterdir()) == []


def test_plain_apptainer_compiles_each_time(image: Image) -> None:
    image.kept.rmdir()
    for _ in range(2):
        assert image.compile().returncode == 0
    assert image.times == 2 and not image.kept.exists()
    assert image.result == ("315619200 1\n", 0o750)
