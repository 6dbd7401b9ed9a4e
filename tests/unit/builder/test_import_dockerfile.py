"""Dockerfiles as definitions: what each instruction becomes, and what is listed instead."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ctrain_builder.definitions import definition, files
from ctrain_builder.imports.copies import Context, Missing
from ctrain_builder.imports.definitions import Imported, of_dockerfile
from ctrain_builder.imports.instructions import read
from ctrain_runtime.errors import ConfigError, UsageError

START = ["if [ -f /mnt/build-env.sh ]; then . /mnt/build-env.sh; fi", "cd /"]
DONE = "rm -rf /usr/local/src/lab"


def imported(text: str, target: str = "", on: str | None = None) -> Imported:
    root = Path.cwd()
    context = Context(root, root, root / "definitions")
    return of_dockerfile(text, "Dockerfile", "lab", context, on, target)


def lines(text: str, section: str = "post", base: str = "FROM debian:12\n") -> list[str]:
    """The lines of a section of the definition, which a shell can read, without those that every %post has."""
    path = Path.cwd() / "definitions/lab/lab.def"
    made = definition.parse("lab", path, imported(base + text).text)
    rendered = definition.render(made, {})
    checked = subprocess.run(["sh", "-n"], input=rendered.body("post"), text=True, capture_output=True)
    assert checked.returncode == 0, checked.stderr
    found = [line[4:] for line in made.body(section).splitlines()]
    return [line for line in found if line not in ("", *START, DONE)]


def told(text: str, base: str = "FROM debian:12\n") -> list[tuple[int, bool, str]]:
    return [(one.line, one.lost, one.advice) for one in imported(base + text).findings]


@pytest.mark.parametrize(
    ("text", "post"),
    [
        ("RUN pip install numpy", ["( pip install numpy )"]),
        ("RUN a; b", ["(", "    set +e", "    a; b", ")"]),  # Docker goes on after a
        ("RUN a && b > c 2>&1", ["( a && b > c 2>&1 )"]),
        ("RUN a # why", ["(", "    a # why", ")"]),
        ("RUN a && \\\n  # why\n\n  b", ["(", "    a && \\", "        b", ")"]),
        ("RUN a 'x \\\n  y'", ["( a 'x   y' )"]),  # a shell would keep the backslash
        ("RUN a \\\n  %b", ["( a   %b )"]),  # Apptainer would take it for a section
        ("RUN a # b \\\n  && c", ["(", "    a # b   && c", ")"]),
        ("# escape=`\nFROM x:1\nRUN a `\n  b\\", ["(", "    a \\", "        b\\", ")"]),
        ('RUN ["a", "b c"]', ["a 'b c'"]),
        ('SHELL ["/bin/bash", "-ec"]\nRUN a "b"', ["/bin/bash -ec 'a \"b\"'"]),
        ("RUN echo '{{ x }}'", ["/bin/sh -c 'echo '\"'\"'{''{ x }}'\"'\"''"]),  # no argument of ctrain
        ("RUN <<EOF\na\n\n%b\nEOF", ["/bin/sh -c \"$(printf '%s\\n' \\", "'a' \\", "'' \\", "'%b')\""]),
        ("RUN add x", ["( add x )"]),  # spython knows an instruction ADD
        ("ENV A=1 B='x y'", ["A=1", "export A", 'B="x y"', "export B"]),
        ("ENV A hello  world", ['A="hello world"', "export A"]),
        ("ENV USER=me", ["USER=me", "export USER"]),  # of which spython makes `su - =me`
        ("ENV J='{\"a\": 1}'", ["J='{\"a\": 1}'", "export J"]),
        ("ARG V=1\nENV A=$V-${V:-2}", ["V='{{ V }}'", "export V", 'A="{{ V }}-{{ V }}"', "export A"]),
        ("WORKDIR /a\nWORKDIR b", ["mkdir -p /a", "cd /a", "mkdir -p /a/b", "cd /a/b"]),
        ("VOLUME /data", ["mkdir -p /data", "# VOLUME /data"]),
        ("USER me", ["HOME=~me", "export HOME"]),
        ("COPY --from=b /x /y", ["# line 2 of the Dockerfile is missing here: COPY --from=b /x /y"]),
    ],
)
def test_instructions_become_commands_that_do_the_same(text: str, post: list[str]) -> None:
    base = "" if "FROM" in text else "FROM debian:12\n"
    assert lines(text, base=base) == post


@pytest.mark.parametrize(
    ("text", "line", "lost", "advice"),
    [
        ("COPY --from=build /x /y", 2, True, "it copies from another stage or image. Build it in %post"),
        ("COPY no.txt /", 2, True, "there is no no.txt in "),
        ("COPY --parents a /", 2, True, "it has a flag that %files have not"),
        ("ADD https://example.org/x.git /x", 2, True, "it clones a repository"),
        ("ADD https://example.org/x /x", 2, False, "curl downloads it"),
        ("RUN --mount=type=secret,id=a b", 2, True, "no secret is passed to builds"),
        ("RUN --mount=type=cache,target=/c b", 2, False, "no cache is mounted: what the command leaves in /c stays"),
        ("RUN --mount=from=x,target=/c b", 2, True, "it mounts files of another stage or image"),
        ("USER me\nRUN a", 3, True, "from here on commands run as root, not as me"),
        ("USER me", 2, False, "containers run as their caller"),
        ("ONBUILD RUN a", 2, True, "it is for images that are built on this one"),
        ("HEALTHCHECK CMD a", 2, False, "no daemon looks after containers"),
        ("STOPSIGNAL SIGINT", 2, False, "jobs are ended by SIGTERM"),
        ("EXPOSE 80", 2, False, "containers have the network of their node"),
        ("VOLUME /d", 2, False, "a directory of the image"),
        ("SHELL bash", 2, True, "it is not a JSON array"),
        ("ARG TARGETARCH", 2, True, "TARGETARCH is set by Docker alone"),
        ("ARG X", 2, False, "X is empty unless it is given"),
        ('ENV A="\\"$B\\""', 2, True, "spython cannot write this value. Add to %post and %environment: export A="),
        ("LABEL a=$B", 2, True, "the value of B is known only in the base image"),
        ("FOO bar", 2, True, "FOO is not an instruction"),
        ("RUN", 2, True, "it has no command"),
        ("WORKDIR x", 2, False, "it is relative to the base's WORKDIR"),
    ],
)
def test_nothing_is_dropped_silently(text: str, line: int, lost: bool, advice: str) -> None:
    found = [one for one in told(text) if one[2].startswith(advice)]
    assert [one[:2] for one in found] == [(line, lost)], told(text)


@pytest.mark.parametrize(
    ("text", "source", "arguments", "tag"),
    [
        ("FROM python:3.11-slim", "python:{{ TAG }}", {"TAG": "3.11-slim"}, "3.11-slim"),
        ("FROM python", "python:{{ TAG }}", {"TAG": "latest"}, "latest"),
        ("FROM r:5000/x/y:1", "r:5000/x/y:{{ TAG }}", {"TAG": "1"}, "1"),
        ("FROM x:1_2", "x:1_2", {"RELEASE": "1"}, "1"),
        ("FROM x@sha256:ab", "x@sha256:ab", {"RELEASE": "1"}, "1"),
        ("ARG C=12.1\nFROM cuda:${C}-devel", "cuda:{{ C }}-devel", {"C": "12.1"}, "12.1"),
        (
            "ARG R=q\nARG B=$R/x\nFROM $B",
            "{{ B }}",
            {"R": "q", "B": "{{ R }}/x", "RELEASE": "1"},
            "1",
        ),
        ("FROM a:1 AS x\nRUN b\nFROM x\nRUN c", "a:{{ TAG }}", {"TAG": "1"}, "1"),
        ("FROM a:1 AS x\nFROM b:2\nRUN c", "b:{{ TAG }}", {"TAG": "2"}, "2"),
        ("ARG R=Own\nFROM a:1 AS own\nRUN b\nFROM b:2 AS c\nFROM $R\nRUN d", "a:{{ TAG }}", {"TAG": "1"}, "1"),
    ],
)
def test_the_base_has_its_tag_as_an_argument(text: str, source: str, arguments: dict[str, str], tag: str) -> None:
    made = imported(text)
    found = definition.parse("lab", Path("lab.def"), made.text)
    assert (found.header["from"], found.defaults) == (source, arguments)
    assert f"    tag: {tag}\n".replace("'", "") in made.entry.replace("'", "")
    assert f"tag_argument: {list(arguments)[-1]}\n" in made.entry
    assert list(arguments)[-1] in found.placeholders, "images.yaml demands that a base uses it"


def test_stages_that_are_built_on_each_other_are_one() -> None:
    text = "FROM a:1 AS x\nRUN b\nFROM z:1 AS other\nRUN no\nFROM x AS last\nRUN c"
    assert lines(text, base="") == ["( b )", "( c )"]
    assert told(text, base="") == [(3, False, "a stage that is not part of the image. Import it alone: --target")]
    assert "( no )" in imported(text, target="OTHER").text
    with pytest.raises(UsageError, match=r"has no stage nix. It has: x, other, last"):
        imported(text, target="nix")


def test_arguments_of_from_that_no_build_can_give_or_that_each_must() -> None:
    text = "ARG R=own\nFROM a:1 AS own\nRUN b\nFROM ${R}\nRUN c"
    assert lines(text, base="") == ["( b )", "( c )"]
    assert told(text, base="") == [(4, False, "it is the stage own, whatever the arguments are")]
    advice = "V has no value. Give one to each build, --build-arg V=VALUE, or write it into %arguments"
    assert told("ARG V\nFROM python:$V", base="") == [(2, False, advice)]


def test_stacked_on_an_image_its_own_base_is_replaced() -> None:
    made = imported("FROM python:3\nRUN a", on="store:pytorch:prod")
    assert made.text.startswith("Bootstrap: localimage\nFrom: {{ PARENT }}\n")
    assert [(one.line, one.text, one.advice, one.lost) for one in made.findings] == [
        (1, "FROM python:3", "--on replaces it", False)
    ]
    assert made.entry == "  lab:\n    from: store:pytorch:prod\n    chain: [lab]\n    stack: own\n    tag: '1'\n"


def test_copies_are_made_where_the_dockerfile_makes_them() -> None:
    Path("src").mkdir()
    for name in ("src/a.py", "src/b.py", "r.txt"):
        Path(name).write_text("")
    text = "RUN x\nCOPY src /app\nWORKDIR /app\nCOPY r.txt .\nCOPY --chmod=755 r.txt /x/y\nCOPY src/*.py /z/\n"
    assert lines(text) == [
        *("( x )", "mkdir -p /app", "cp -r /usr/local/src/lab/1/. /app", "mkdir -p /app", "cd /app"),
        "cp /usr/local/src/lab/2/r.txt .",
        *("chmod -R 755 /usr/local/src/lab/3", "mkdir -p /x", "cp /usr/local/src/lab/3/r.txt /x/y"),
        *("mkdir -p /z/", "cp /usr/local/src/lab/4/a.py /z/", "cp /usr/local/src/lab/5/b.py /z/"),
    ]
    assert lines(text, "files") == [
        *("src /usr/local/src/lab/1", "r.txt /usr/local/src/lab/2/r.txt", "r.txt /usr/local/src/lab/3/r.txt"),
        *("src/a.py /usr/local/src/lab/4/a.py", "src/b.py /usr/local/src/lab/5/b.py"),
    ]
    assert imported("FROM x:1\n" + text).text.count(DONE) == 1


def test_the_whole_context_is_what_docker_sends_without_the_definitions() -> None:
    for name in ("definitions/lab/old.def", ".git/config", "a.py", "data/x", "secret.key", "open.key"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("")
    Path(".dockerignore").write_text("# no\ndata\n*.key\n!open.key\n")
    assert lines("COPY . /app", "files") == [
        ".dockerignore /usr/local/src/lab/1/.dockerignore",
        "a.py /usr/local/src/lab/1/a.py",
        "open.key /usr/local/src/lab/1/open.key",
    ]
    path = Path.cwd() / "definitions/lab/lab.def"
    made = definition.parse("lab", path, imported("FROM x:1\nCOPY . /app").text)
    assert [str(file.relative) for file in files.listing(made, Path.cwd())] == [".dockerignore", "a.py", "open.key"]


def test_sources_outside_of_the_project_are_listed(tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "x").write_text("")
    context = Context(tmp_path, tmp_path / "project", tmp_path / "project/definitions")
    made = of_dockerfile("FROM a:1\nCOPY x /x", "Dockerfile", "lab", context, None, "")
    assert [(one.line, one.lost) for one in made.findings] == [(2, True)]
    assert "where definitions take their files from" in made.findings[0].why


def test_heredocs_are_files_with_all_their_lines() -> None:
    text = "ARG V=1\nCOPY <<EOF <<'RAW' /d/\nv $V\n\n%x \"y\"\nEOF\n$V\nRAW\n"
    assert lines(text)[2:] == [
        *("mkdir -p /d/", "mkdir -p /d", "printf '%s\\n' \\", '"v {{ V }}" \\', '"" \\', '"%x \\"y\\"" > /d/EOF'),
        *("mkdir -p /d", "printf '%s\\n' \\", "'$V' > /d/RAW"),
    ]


@pytest.mark.parametrize(
    ("text", "script"),
    [
        ('ENTRYPOINT ["python", "a b.py"]', ["exec python 'a b.py' \"$@\""]),
        ('CMD ["python", "t.py"]', ['if [ "$#" -eq 0 ]; then set -- python t.py; fi', 'exec "$@"']),
        ('ENTRYPOINT ["p"]\nCMD ["a"]', ['if [ "$#" -eq 0 ]; then set -- a; fi', 'exec p "$@"']),
        ("CMD a && b", ["if [ \"$#\" -eq 0 ]; then set -- /bin/sh -c 'a && b'; fi", 'exec "$@"']),
        ('WORKDIR /w\nENTRYPOINT ["p"]', ["cd /w", 'exec p "$@"']),
        ("CMD []", []),
        ("RUN a", []),
    ],
)
def test_arguments_replace_the_command_and_follow_the_entry_point(text: str, script: list[str]) -> None:
    assert lines(text, "runscript") == script
    assert lines(text, "startscript") == []


def test_labels_and_the_environment() -> None:
    text = 'ARG V=1\nENV P=/opt/bin:$PATH Q=$V\nLABEL a.b="x y" c=$V\nMAINTAINER me <me@example.org>'
    assert lines(text, "environment") == ['export P="/opt/bin:${PATH}"', 'export Q="{{ V }}"']
    assert lines(text, "labels") == ["a.b x y", "c {{ V }}", "maintainer me <me@example.org>"]


def test_an_instruction_has_its_line_flags_and_heredocs() -> None:
    text = (
        "# c\nFROM x\n\nRUN --mount=type=a \\\n  # c\n  --network=none \\\n  b <<E 2<<-'F'\n1\nE\n\t2\n\tF\nCMD c 1<<d"
    )
    (first, run, last), escape = read(text)
    assert (first.line, run.line, last.line, escape) == (2, 4, 12, "\\")
    assert run.flags == ("--mount=type=a", "--network=none")
    assert [(one.delimiter, one.lines, one.expands) for one in run.heredocs] == [
        ("E", ("1",), True),
        ("F", ("2",), False),
    ]
    assert (str(last), last.heredocs) == ("CMD c 1<<d", ())


def test_a_file_without_from_is_refused() -> None:
    with pytest.raises(ConfigError, match="Dockerfile has no FROM"):
        imported("RUN a")
    with pytest.raises(ConfigError, match="line 1: no ARG before FROM is named X"):
        imported("FROM $X")
    with pytest.raises(ConfigError, match="line 1: FROM names no image"):
        imported("FROM")


def test_a_directory_that_may_not_be_read_is_no_strange_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> bool:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "exists", refuse)  # as below a directory that is closed to its user: root may read all
    with pytest.raises(Missing, match=r"^closed/file cannot be read: Permission denied$"):
        Context(tmp_path, tmp_path, tmp_path).sources("closed/file")
