"""What a failed command says of its cause: the command of the script that failed, and the line that tells why.

Both stand somewhere in its output: below them what pip, make and others say of the failure of their own commands, and
what background jobs print; in the log also what is run after a failure.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ctrain_builder.layers.container import CommandFailed, last_lines

_READ_BYTES = 2_000_000
_COMMAND = re.compile(r"\$ /")  # as the log names what was run
_TRACE = re.compile(r"\++ (.*)")  # as `sh -x` does; those of bash for nested commands have more signs
_NO_PROGRAM = re.compile(r"\w+=\S*$|set \+")  # $(failed) is assigned after it has failed
_ERROR = re.compile(
    r"(?i)error|exception|fatal|fail|\b(?:cannot|can't|could ?n.t|unable|no such|not found|no matching|denied|refused|"
    r"undefined reference|no space|exceeded|segmentation fault|timed out|killed|aborted)\b|^E: "
)
_CONSEQUENCE = re.compile(
    r"make(?:\[\d+\])?: \*\*\* .*Error \d|ninja: build stopped|errors occurred|ld returned \d|compilation terminated|"
    r"returned non-zero exit status|command .* failed with exit (?:code|status)|"
    r"[Ff]ailed (?:to )?build|Could not build|subprocess-exited-with-error|did not run successfully|"
    r"error originates from a subprocess|-generation-failed|"
    r"Encountered error while|Sub-process .* returned an error|Unable to fetch some archives|\[notice\]"
)
_COMMAND_WIDTH, _CAUSE_WIDTH = 80, 200


@dataclass(frozen=True)
class Failure:
    """`lines`: the output, of a long one its end. `command` and `cause` are "" where nothing tells."""

    log: Path
    lines: tuple[str, ...]
    command: str = ""
    cause: str = ""

    def __str__(self) -> str:
        """As the end of a sentence that tells what has failed."""
        return (f" at `{self.command}`" if self.command else "") + (f": {self.cause}" if self.cause else "")


class SectionFailed(Exception):
    """A section of a definition failed; `section` is "" when it can't be told."""

    def __init__(self, section: str, failed: CommandFailed) -> None:
        super().__init__(str(failed))
        self.section, self.code, self.failure = section, failed.code, read(failed.log)


def read(log: Path) -> Failure:
    """How the last command in `log` failed; to be called before another one is run."""
    lines = last_lines(log, _READ_BYTES, _READ_BYTES)
    began = max((number for number, line in enumerate(lines, 1) if _COMMAND.match(line)), default=0)
    lines = lines[began:]
    traces = [(number, match[1]) for number, line in enumerate(lines) if (match := _TRACE.match(line))]
    if not traces or traces[0][0] > 0:  # an untraced program that prints such lines
        return Failure(log, tuple(lines), cause=_cause(lines))
    number, command = next((trace for trace in reversed(traces) if not _NO_PROGRAM.match(trace[1])), traces[-1])
    traced = {number for number, _ in traces}
    output = [line for place, line in enumerate(lines) if place not in traced]
    after = [line for place, line in enumerate(lines) if place > number and place not in traced]
    return Failure(log, tuple(lines), _cut(command, _COMMAND_WIDTH), _cause(after or output))


def _cause(lines: list[str]) -> str:
    errors = [line for line in lines if _ERROR.search(line)]
    causes = [line for line in errors if not _CONSEQUENCE.search(line)]
    return _cut((causes or errors or lines or [""])[-1], _CAUSE_WIDTH)


def _cut(text: str, width: int) -> str:
    text = " ".join(text.split())
    return text if len(text) <= width else f"{text[: width - 3]}..."
