"""All errors that ctrain reports to users: one line each, with a distinct exit code.

The codes are 64 to 84, 86 and 87: distinct from the small codes of training programs and from 128 + signal. A program's
own exit code passes through ctrain unchanged.
"""

from __future__ import annotations

from typing import ClassVar


class CtrainError(Exception):
    """Base of all errors that ctrain reports in one line instead of a traceback.

    `message` is what is wrong and where, `hint` the next step; neither ends with a full stop.
    """

    exit_code: ClassVar[int] = 70
    meaning: ClassVar[str] = "other ctrain error"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class UsageError(CtrainError):
    exit_code = 64
    meaning = "invalid option or argument"


class JobError(CtrainError):
    exit_code = 65
    meaning = "unknown or invalid job"


class ConfigError(CtrainError):
    exit_code = 66
    meaning = "invalid configuration file"


class SiteError(CtrainError):
    exit_code = 67
    meaning = "unknown or misconfigured site"


class ImageNotFound(CtrainError):
    exit_code = 68
    meaning = "image not found"


class ImageUnusable(CtrainError):
    exit_code = 69
    meaning = "image or layer unusable"


class DataError(CtrainError):
    exit_code = 71
    meaning = "data set, mount source or checkpoint missing"


class SchedulerError(CtrainError):
    exit_code = 72
    meaning = "no scheduler, or job rejected"


class UnansweredSubmission(SchedulerError):
    """A submission that may have been accepted: its answer was lost. Whether it was, the scheduler knows later."""


class EngineError(CtrainError):
    exit_code = 73
    meaning = "no usable container engine"


class ResourceError(CtrainError):
    exit_code = 74
    meaning = "resources unavailable"


class DiskFullError(CtrainError):
    exit_code = 75
    meaning = "disk full or over quota"


class StoreError(CtrainError):
    exit_code = 76
    meaning = "store error"


class BuildError(CtrainError):
    exit_code = 77
    meaning = "build failed"


class ImageTestError(CtrainError):
    exit_code = 78
    meaning = "image tests failed or not run"


class RegistryError(CtrainError):
    exit_code = 79
    meaning = "registry unreachable, access denied or bad response"


class PreflightError(CtrainError):
    exit_code = 80
    meaning = "preflight failed: a node, the network, or ranks that do not meet"


class WorldError(CtrainError):
    exit_code = 81
    meaning = "ranks started ranks of their own instead of joining one world"


class ImportIncomplete(CtrainError):
    exit_code = 82
    meaning = "imported, but for lines that are listed"


class GateNotPassed(CtrainError):
    exit_code = 83
    meaning = "a version lacks what its store asks for: tests, signature, recent base, clean scan"


class HangError(CtrainError):
    exit_code = 84
    meaning = "the run hung, and was ended as --on-hang asks for"


class LossesPart(CtrainError):
    exit_code = 86
    meaning = "replay --strict: losses part from those of the recorded run, or cannot be compared"


class RemoteError(CtrainError):
    exit_code = 87
    meaning = "login node unreachable, without a ctrain that fits, or lost"


CANCELLED = 130  # 128 + SIGINT, as shells report it
ENDED = {  # the code of docs/contract.md, and 128 + a signal
    129: "the terminal was closed (SIGHUP); the run continues",
    85: "saved and left: the program has ended with this code, before it was done",
    CANCELLED: "cancelled (Ctrl-C or SIGTERM)",
    137: "out of memory, or a rank was killed (SIGKILL)",
    143: "ended early: time limit, preemption, a lost node, SIGTERM; or saved and left",
}


def exit_codes() -> list[tuple[int, str]]:
    """(code, meaning) of every error above and of runs that were ended, in ascending order, for `ctrain help
    exit-codes`."""
    classes: list[type[CtrainError]] = [CtrainError, *CtrainError.__subclasses__()]
    codes = [(error.exit_code, error.meaning) for error in classes]
    return sorted([*codes, *ENDED.items()])
