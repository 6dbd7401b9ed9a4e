"""Translates a Dockerfile into instructions that spython carries over rightly, and lists what cannot be carried over.

spython reads a file line by line. It loses exports, quotes, continued lines with comments, heredocs, flags, relative
paths and the form of CMD. So it gets one stage of one-line instructions, whose arguments a shell can take as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from ctrain_builder.imports import commands, copies
from ctrain_builder.imports.copies import Context, Missing
from ctrain_builder.imports.findings import Finding
from ctrain_builder.imports.instructions import Heredoc, Instruction
from ctrain_builder.imports.stages import Selected, argument_default, assignment
from ctrain_builder.imports.words import (
    Part,
    Unknown,
    Variable,
    Word,
    double_quoted,
    is_template,
    placeholders,
    plain,
    quote,
    raw,
    shell,
    split,
)

_NAME = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_USER = re.compile(r"[a-z_][a-z0-9_-]*")
_LABEL = re.compile(r"\w[\w./-]*", re.ASCII)
_PLATFORM = re.compile(r"(TARGET|BUILD)(PLATFORM|OS|ARCH|VARIANT)")
_COPY_FLAGS = ("from", "chown", "chmod", "link", "checksum")
_OTHER_STAGE = "Build it in %post, or copy it from the host: %files"


@dataclass(frozen=True)
class Translation:
    """`lines` are for spython, behind FROM; `default` is the line of a runscript that CMD is."""

    lines: tuple[str, ...]
    arguments: Mapping[str, str]
    default: str
    has_runscript: bool
    findings: tuple[Finding, ...]


def translate(selected: Selected, context: Context, aside: str, escape: str) -> Translation:
    """The instructions of an image. `aside` is the directory in it where files of %files wait for their COPY."""
    return _Translator(selected, context, aside, escape).translation()


class _Lost(Exception):
    """The instruction cannot be carried over."""

    def __init__(self, why: str, todo: str = "") -> None:
        super().__init__(why)
        self.why, self.todo = why, todo


class _Translator:
    """Goes through the instructions; its state is Docker's: variables, directory, shell, user."""

    def __init__(self, selected: Selected, context: Context, aside: str, escape: str) -> None:
        self._selected, self._context, self._aside, self._escape = selected, context, aside, escape
        self._lines: list[str] = []
        self._findings: list[Finding] = []
        self._arguments: dict[str, str] = {}  # of the whole image
        self._scope: dict[str, str] = {}  # those of them that are no variables of ENV
        self._known: dict[str, str] = {}  # variables of ENV
        self._directory = ""  # text between double quotes of a shell; "": the base's
        self._shell: Sequence[str] = commands.SHELL
        self._user, self._home = "", "root"
        self._copies = 0
        self._entry = self._default = ""

    def translation(self) -> Translation:
        known: dict[str, Callable[[Instruction], None]] = {
            "ADD": self._add_or_copy,
            "ARG": self._arg,
            "CMD": self._cmd,
            "COPY": self._add_or_copy,
            "ENTRYPOINT": self._entrypoint,
            "ENV": self._env,
            "EXPOSE": self._expose,
            "HEALTHCHECK": self._healthcheck,
            "LABEL": self._label,
            "MAINTAINER": self._maintainer,
            "ONBUILD": self._onbuild,
            "RUN": self._run,
            "SHELL": self._set_shell,
            "STOPSIGNAL": self._stopsignal,
            "USER": self._set_user,
            "VOLUME": self._volume,
            "WORKDIR": self._workdir,
        }
        for instruction in self._selected.body:
            try:
                if instruction.word not in known:
                    raise _Lost(f"{instruction.word} is not an instruction of Dockerfiles")
                known[instruction.word](instruction)
            except _Lost as lost:
                self._lose(instruction, lost.why, lost.todo)
            except Missing as missing:
                self._lose(instruction, missing.why, missing.todo)
            except Unknown as unknown:
                self._lose(instruction, f"the value of {unknown} is known only in the base image", "Write it out")
        has_runscript = bool(self._entry or self._default)
        if has_runscript:
            self._lines.append(f"ENTRYPOINT {self._entry or 'exec'}" + ("" if "$@" in self._entry else ' "$@"'))
        findings = (*self._selected.findings, *self._findings)
        return Translation(tuple(self._lines), self._arguments, self._default, has_runscript, findings)

    def _lose(self, instruction: Instruction, why: str, todo: str) -> None:
        self._findings.append(Finding(instruction.line, str(instruction), why, todo))
        self._lines.append(f"# line {instruction.line} of the Dockerfile is missing here: {instruction}".rstrip("\\"))

    def _note(self, instruction: Instruction, why: str, todo: str = "") -> None:
        self._findings.append(Finding(instruction.line, str(instruction), why, todo, lost=False))

    def _emit(self, lines: Sequence[str]) -> None:
        """Commands. What is indented, and what begins or ends a group, spython takes for no instruction."""
        self._lines += [line if line[0] == " " or line in "()" else f"RUN {line}" for line in lines]

    def _words(self, text: str) -> list[Word]:
        return split(text, self._escape)

    def _run(self, instruction: Instruction) -> None:
        if not instruction.text:
            raise _Lost("it has no command")
        for flag in instruction.flags:
            name, _, value = flag.partition("=")
            if name == "--mount":
                self._mount(instruction, dict(part.partition("=")[::2] for part in value.split(",")))
            elif name != "--network" or value not in ("default", "host"):
                self._note(instruction, f"{flag} has no effect here")
        if self._user:
            why = f"from here on commands run as root, not as {self._user}"
            todo = "Check that they need no rights of that user; runs do not see what they install into a home"
            self._findings.append(Finding(instruction.line, str(instruction), why, todo))
            self._user = ""  # said once
        self._emit(commands.run(instruction, self._shell))

    def _mount(self, instruction: Instruction, options: Mapping[str, str]) -> None:
        kind = options.get("type", "bind")
        target = options.get("target") or options.get("dst") or options.get("destination") or ""
        if kind in ("cache", "tmpfs"):
            self._note(instruction, f"no {kind} is mounted: what the command leaves in {target} stays in the image")
        elif kind == "bind" and "from" not in options and target:
            source = options.get("source") or options.get("src") or "."
            self._copy_files(instruction, source, shell(raw(target), self._scope), to_directory=False, unpack=False)
            self._note(instruction, f"{source} is copied to {target}, and stays in the image")
        elif kind in ("secret", "ssh"):
            raise _Lost(f"no {kind} is passed to builds", "Get what needs it before the build, and copy it: %files")
        else:
            raise _Lost("it mounts files of another stage or image", _OTHER_STAGE)

    def _arg(self, instruction: Instruction) -> None:
        for word in self._words(instruction.text):
            name, value = assignment(word)
            if not _NAME.fullmatch(name):
                raise _Lost(f"{name!r} is not the name of a variable")
            if name in self._known:
                continue  # ENV wins, at any place
            default = argument_default(value, self._scope, self._known)
            if not value:
                default = self._selected.arguments.get(name, "")
                self._note_missing(instruction, name)
            if "'" in default or is_template(re.sub(r"\{\{ \w+ \}\}", "", default)):
                raise _Lost("Apptainer's arguments have no such value", f"Set {name} in %post")
            for inner in placeholders(default):
                self._arguments.setdefault(inner, self._selected.arguments.get(inner, ""))
            self._arguments[name] = self._scope[name] = default
            self._lines += [f"ARG {name}='{{{{ {name} }}}}'", f"RUN export {name}"]

    def _note_missing(self, instruction: Instruction, name: str) -> None:
        if name in self._selected.arguments:
            return
        if _PLATFORM.fullmatch(name):
            todo = f"Write its value, as in {name}=amd64, into %arguments"
            self._findings.append(Finding(instruction.line, str(instruction), f"{name} is set by Docker alone", todo))
        else:
            self._note(instruction, f"{name} is empty unless it is given: --build-arg {name}=VALUE")

    def _env(self, instruction: Instruction) -> None:
        pairs = self._pairs(instruction)
        for name, value in pairs:
            if not _NAME.fullmatch(name):
                raise _Lost(f"{name!r} is not the name of a variable")
            self._lines += [f"ENV {name}={self._env_value(name, value)}", f"RUN export {name}"]
        for name, value in pairs:
            self._known.pop(name, None)
            if not any(isinstance(part, Variable) and part.name not in self._known for part in value):
                self._known[name] = plain(value, {}, self._known)
            self._scope.pop(name, None)

    def _env_value(self, name: str, value: Word) -> str:
        """The value as a shell takes it, in quotes that spython understands: around the whole, and none in it."""
        text = shell(value, self._scope)
        literal = "".join(map(str, value))
        if '"' not in text:
            return double_quoted(text)
        if "'" in literal or is_template(literal) or any(isinstance(part, Variable) for part in value):
            raise _Lost("spython cannot write this value", f'Add to %post and %environment: export {name}="{text}"')
        return f"'{literal}'"

    def _pairs(self, instruction: Instruction) -> list[tuple[str, Word]]:
        """Names and values of ENV and LABEL: NAME=VALUE ..., or of the old form one name and the rest of the line."""
        words = self._words(instruction.text)
        if not words:
            raise _Lost("it says nothing")
        if "=" in str(words[0][:1] and words[0][0]):
            return [assignment(word) for word in words]
        name, *rest = words
        value: list[Part] = []
        for word in rest:
            value += [*([" "] if value else []), *word]
        return [("".join(map(str, name)), tuple(value))]

    def _label(self, instruction: Instruction) -> None:
        for name, value in self._pairs(instruction):
            if not _LABEL.fullmatch(name) or is_template("".join(map(str, value))):
                raise _Lost("Apptainer has no such labels", "Set it in %post: see $APPTAINER_LABELS")
            self._lines.append(f"LABEL {name} {plain(value, self._scope, self._known)}")

    def _maintainer(self, instruction: Instruction) -> None:
        if is_template(instruction.text):
            raise _Lost("Apptainer has no such labels")
        self._lines.append(f"LABEL maintainer {instruction.text}")

    def _workdir(self, instruction: Instruction) -> None:
        text = shell(tuple(part for word in self._words(instruction.text) for part in word), self._scope)
        if not text.startswith(("/", "$", "{")):
            self._require_directory(instruction)
            text = f"{self._directory.rstrip('/')}/{text}"
        self._directory = text
        self._lines.append(f"WORKDIR {double_quoted(text)}")

    def _require_directory(self, instruction: Instruction) -> None:
        if not self._directory:
            self._note(instruction, "it is relative to the base's WORKDIR, for which / is taken", "Write it in full")

    def _add_or_copy(self, instruction: Instruction) -> None:
        if instruction.flag("from"):
            raise _Lost("it copies from another stage or image", _OTHER_STAGE)
        if {flag[2:].partition("=")[0] for flag in instruction.flags} - set(_COPY_FLAGS):
            raise _Lost("it has a flag that %files have not", "Name the files in %files")
        words = self._list(instruction)
        if len(words) < 2:
            raise _Lost("it names no source or no target")
        *sources, last = words
        target = shell(last, self._scope)
        if not target.startswith(("/", "$", "{")):
            self._require_directory(instruction)
        to_directory = len(sources) > 1 or target.endswith(("/", "/.", "/..")) or target in (".", "..")
        if to_directory and target not in (".", "./"):
            self._emit([f"mkdir -p {double_quoted(target)}"])
        for source in sources:
            self._add_source(instruction, source, target, to_directory=to_directory)
        if instruction.flag("chown"):
            self._note(instruction, "the copy belongs to root: containers run as their caller")

    def _add_source(self, instruction: Instruction, source: Word, target: str, *, to_directory: bool) -> None:
        name = plain(source, {}, {**self._scope, **self._known})
        heredoc = next((heredoc for heredoc in instruction.heredocs if heredoc.marker == name), None)
        is_add = instruction.word == "ADD"
        if "{{" in name:
            raise _Lost("its source depends on several arguments", "Name the files in %files")
        if heredoc:
            self._write(heredoc, _file(target, heredoc.delimiter))
        elif is_add and copies.is_git(name):
            raise _Lost("it clones a repository", "Clone it in %post")
        elif is_add and copies.is_url(name):
            self._download(instruction, name, _file(target, name.rpartition("/")[2]))
        else:
            self._copy_files(instruction, name, target, to_directory=to_directory, unpack=is_add)
            if any(isinstance(part, Variable) for part in source):
                self._note(instruction, f"its source is {name}, whatever the arguments are")

    def _list(self, instruction: Instruction) -> list[Word]:
        """The words of an instruction that may be a JSON array."""
        words = commands.exec_form(instruction.text)
        return [raw(word) for word in words] if words is not None else self._words(instruction.text)

    def _copy_files(
        self, instruction: Instruction, name: str, target: str, *, to_directory: bool, unpack: bool
    ) -> None:
        sources = self._context.sources(name)
        if len(sources) > 1 and not to_directory:
            self._emit([f"mkdir -p {double_quoted(target)}"])
        for source in sources:
            self._copies += 1
            aside = f"{self._aside}/{self._copies}"
            parts = self._context.entries(source) if source.is_dir() else [source]
            several = to_directory or len(sources) > 1
            archive = unpack and copies.is_archive(source)
            pairs, puts = copies.place(source, parts, target, aside, to_directory=several, unpack=archive)
            named = [(self._context.name(path), put) for path, put in pairs]
            if not named:
                raise Missing(f"nothing of {name} is copied", "See .dockerignore")
            self._lines += [f"COPY {path} {put}" for path, put in named]
            if instruction.flag("chmod"):
                self._emit([f"chmod -R {quote(instruction.flag('chmod'))} {aside}"])
            self._emit(puts)
            if parts != [source]:
                self._note(instruction, f"{name} is what is in it now", "New names need lines in %files")
            if source.is_dir() and self._context.has_deep_patterns():
                self._note(instruction, ".dockerignore counts only for names without a directory")

    def _write(self, heredoc: Heredoc, target: str) -> None:
        lines = heredoc.lines or ("",)
        printed = commands.printf(lines)
        if heredoc.expands:
            texts = [f'    "{shell(raw(line), self._scope)}"' for line in lines]
            printed = [printed[0], *(f"{text} \\" for text in texts[:-1]), texts[-1]]
        self._emit([*copies.make_parent(target), *printed[:-1], f"{printed[-1]} > {double_quoted(target)}"])

    def _download(self, instruction: Instruction, url: str, target: str) -> None:
        self._emit([*copies.make_parent(target), f"curl -fsSL -o {double_quoted(target)} {quote(url)}"])
        kind, _, digest = instruction.flag("checksum").partition(":")
        if kind:
            self._emit([f"echo {quote(digest)} {double_quoted(target)} | {quote(kind)}sum -c -"])
        self._note(instruction, "curl downloads it: the image must have that")

    def _set_shell(self, instruction: Instruction) -> None:
        words = commands.exec_form(instruction.text)
        if not words:
            raise _Lost("it is not a JSON array of words")
        self._shell = words

    def _set_user(self, instruction: Instruction) -> None:
        user = instruction.text.partition(":")[0]
        if _USER.fullmatch(user) and user != self._home:
            self._emit([f"HOME=~{user}", "export HOME"])
            self._home = user
        self._user = "" if user in ("root", "0") else user
        if self._user:
            self._note(instruction, "containers run as their caller, %post as root")

    def _volume(self, instruction: Instruction) -> None:
        self._emit([f"mkdir -p {double_quoted(shell(path, self._scope))}" for path in self._list(instruction)])
        self._lines.append(str(instruction))
        self._note(instruction, "a directory of the image, which cannot be written to", "Mount one over it: --mount")

    def _expose(self, instruction: Instruction) -> None:
        self._lines.append(str(instruction))
        self._note(instruction, "containers have the network of their node: every port is open")

    def _stopsignal(self, instruction: Instruction) -> None:
        self._lines.append(str(instruction))
        self._note(instruction, "jobs are ended by SIGTERM")

    def _healthcheck(self, instruction: Instruction) -> None:
        self._note(instruction, "no daemon looks after containers", "Put what tests the image into %test")

    def _onbuild(self, _instruction: Instruction) -> None:
        raise _Lost("it is for images that are built on this one", "Put it into their definitions")

    def _entrypoint(self, instruction: Instruction) -> None:
        words = commands.exec_form(instruction.text)
        text = commands.argv(words if words is not None else [*self._shell, instruction.text])
        self._entry = f"exec {text}" if text else ""

    def _cmd(self, instruction: Instruction) -> None:
        words = commands.exec_form(instruction.text)
        text = commands.argv(words if words is not None else [*self._shell, instruction.text])
        self._default = f'if [ "$#" -eq 0 ]; then set -- {text}; fi' if text else ""


def _file(target: str, name: str) -> str:
    """The path of a file that is written to a target, which may be a directory."""
    return f"{target.rstrip('/')}/{name}" if target.endswith("/") or target in (".", "..") else target
