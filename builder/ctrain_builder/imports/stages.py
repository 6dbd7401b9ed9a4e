"""Stages of a Dockerfile: which instructions make the image, and what it starts from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from ctrain_builder.imports.findings import Finding
from ctrain_builder.imports.instructions import Instruction
from ctrain_builder.imports.words import Unknown, Variable, Word, placeholders, plain, split
from ctrain_runtime.errors import ConfigError, UsageError
from ctrain_runtime.store.store import TAG_RE

SCRATCH = "scratch"


@dataclass(frozen=True)
class Base:
    """What a definition starts from. `source` is the text of `From:`, with {{ }} for arguments; `tag_argument` is the
    one that images.yaml sets, and `tag` its value."""

    source: str
    arguments: dict[str, str] = field(default_factory=dict)
    tag_argument: str = ""
    tag: str = ""


@dataclass(frozen=True)
class Stage:
    """A FROM with what follows it."""

    first: Instruction
    name: str  # in small letters; "" without one
    image: Word
    body: tuple[Instruction, ...]


@dataclass(frozen=True)
class Selected:
    """The stages of one image, the lowest first; `arguments` are the ARGs before the first FROM, with defaults."""

    stages: tuple[Stage, ...]
    arguments: dict[str, str]
    findings: tuple[Finding, ...]

    @property
    def body(self) -> tuple[Instruction, ...]:
        return tuple(instruction for stage in self.stages for instruction in stage.body)


def select(instructions: Sequence[Instruction], where: str, target: str, escape: str) -> Selected:
    """The stages that the stage `target` (the last one for "") consists of: FROM may name an earlier one.

    Raises ConfigError without any FROM, UsageError for an unknown target."""
    starts = [number for number, instruction in enumerate(instructions) if instruction.word == "FROM"]
    if not starts:
        raise ConfigError(f"{where} has no FROM", "Name a Dockerfile, a Singularity recipe or a list of packages")
    ends = [*starts[1:], len(instructions)]
    stages = [_stage(instructions[start:end], escape) for start, end in zip(starts, ends)]
    names = {stage.name or str(number): number for number, stage in enumerate(stages)}
    if target.lower() not in ("", *names):
        raise UsageError(f"{where} has no stage {target}", f"It has: {', '.join(names)}")
    chain = [names[target.lower()] if target else len(stages) - 1]
    arguments, findings = _global(instructions[: starts[0]], escape)
    while (below := _stage_below(stages, chain[0], arguments)) is not None:
        first = stages[chain[0]].first
        if not plain_or_empty(stages[chain[0]].image):
            why = f"it is the stage {stages[below].name}, whatever the arguments are"
            findings.append(Finding(first.line, str(first), why, lost=False))
        chain.insert(0, below)
    for number, stage in enumerate(stages):
        if number not in chain:
            why = "a stage that is not part of the image"
            findings.append(Finding(stage.first.line, str(stage.first), why, "Import it alone: --target", lost=False))
    return Selected(tuple(stages[number] for number in chain), arguments, tuple(findings))


def base(stage: Stage, arguments: dict[str, str], taken: Sequence[str]) -> Base:
    """What the lowest stage starts from. `taken` are the names of other arguments. Raises Unknown."""
    source = plain(stage.image, arguments, {})
    used = [part.name for part in stage.image if isinstance(part, Variable) and f"{{{{ {part.name} }}}}" in source]
    inner = [name for one in used for name in placeholders(arguments[one])]
    given = {name: arguments[name] for name in (*inner, *used) if arguments[name]}
    for name in reversed(used):
        if TAG_RE.fullmatch(arguments[name]):
            return Base(source, given, name, arguments[name])
    if used or source == SCRATCH:
        return without_tag(source, given)
    return of_image(source, taken)


def of_image(source: str, taken: Sequence[str]) -> Base:
    """An image of a registry, its tag an argument: images.yaml demands one of each base. If the tag cannot be part of a
    version, a label is what the argument sets."""
    directory, slash, last = source.rpartition("/")
    image, _, tag = last.partition(":")
    if "@" in last or not TAG_RE.fullmatch(tag or "latest"):
        return without_tag(source)
    argument = "TAG" if "TAG" not in taken else "BASE_TAG"
    return Base(
        f"{directory}{slash}{image}:{{{{ {argument} }}}}", {argument: tag or "latest"}, argument, tag or "latest"
    )


def without_tag(source: str, arguments: Mapping[str, str] = MappingProxyType({})) -> Base:
    return Base(source, {**arguments, "RELEASE": "1"}, "RELEASE", "1")


def _stage(instructions: Sequence[Instruction], escape: str) -> Stage:
    words = split(instructions[0].text, escape)
    named = len(words) > 2 and plain_or_empty(words[1]).lower() == "as"
    name = plain_or_empty(words[2]).lower() if named else ""
    return Stage(instructions[0], name, words[0] if words else (), tuple(instructions[1:]))


def _stage_below(stages: Sequence[Stage], number: int, arguments: dict[str, str]) -> int | None:
    name = plain_or_empty(stages[number].image, arguments).lower()
    earlier = [below for below in range(number) if name and stages[below].name == name]
    return earlier[-1] if earlier else None


def plain_or_empty(word: Word, known: dict[str, str] | None = None) -> str:
    """A word with the values of `known`; "" for one with other variables."""
    try:
        return plain(word, {}, known or {})
    except Unknown:
        return ""


def _global(instructions: Sequence[Instruction], escape: str) -> tuple[dict[str, str], list[Finding]]:
    arguments: dict[str, str] = {}
    findings: list[Finding] = []
    for instruction in instructions:
        if instruction.word != "ARG":
            findings.append(Finding(instruction.line, str(instruction), "it stands before FROM, where only ARG may"))
        for word in split(instruction.text, escape) if instruction.word == "ARG" else ():
            name, value = assignment(word)
            arguments[name] = argument_default(value, arguments, {})
    return arguments, findings


def assignment(word: Word) -> tuple[str, Word]:
    """Name and value of NAME=VALUE; the value is empty without one."""
    first = word[0] if word and isinstance(word[0], str) else ""
    name, _, rest = first.partition("=")
    return name, tuple(part for part in (rest, *word[1:]) if part)


def argument_default(value: Word, arguments: dict[str, str], known: dict[str, str]) -> str:
    """The default of an ARG. It may use others: {{ }}, which Apptainer follows one level deep; below, their values.

    What is not known is empty, as in Docker."""
    given = {name: text if not text or "{{" in text else f"{{{{ {name} }}}}" for name, text in arguments.items()}
    try:
        return plain(value, {}, {**known, **given})
    except Unknown:
        return ""
