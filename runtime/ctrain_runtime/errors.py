"""Every error that a user can meet: one clear line and a distinct exit code.

The codes lie between 64 and 79 so that they never look like a training program's own small codes, nor like
128 + signal. A program's exit code passes through ctrain unchanged.
"""

from __future__ import annotations

from typing import ClassVar


class CtrainError(Exception):
    """Root of all errors that ctrain explains in one line instead of a traceback.

    `message` says what is wrong and where; `hint` says what to do next.
    """

    exit_code: ClassVar[int] = 70
    meaning: ClassVar[str] = "ctrain could not do what was asked"

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}. {self.hint}" if self.hint else self.message


class UsageError(CtrainError):
    exit_code = 64
    meaning = "an option or argument is wrong"


class JobError(CtrainError):
    exit_code = 65
    meaning = "the job is unknown, or its job.yaml is wrong"


class ConfigError(CtrainError):
    exit_code = 66
    meaning = "a configuration file (site, images.yaml, definition) is wrong"


class SiteError(CtrainError):
    exit_code = 67
    meaning = "the site is unknown or misconfigured"


class ImageNotFound(CtrainError):
    exit_code = 68
    meaning = "the image is not in any store"


class ImageDamaged(CtrainError):
    exit_code = 69
    meaning = "the image file is unreadable, damaged, not one that ctrain made, or not trusted here"


class DataError(CtrainError):
    exit_code = 71
    meaning = "the data or a folder to mount is missing"


class SchedulerError(CtrainError):
    exit_code = 72
    meaning = "there is no scheduler, or it refused the job"


class EngineError(CtrainError):
    exit_code = 73
    meaning = "there is no Apptainer or Singularity that works here"


class ResourceError(CtrainError):
    exit_code = 74
    meaning = "the cluster does not have the resources that were asked for"


class SpaceError(CtrainError):
    exit_code = 75
    meaning = "a disk is full"


class StoreError(CtrainError):
    exit_code = 76
    meaning = "the store can't be read or written"


class BuildError(CtrainError):
    exit_code = 77
    meaning = "an image could not be built"


class ImageTestError(CtrainError):
    exit_code = 78
    meaning = "an image failed its tests, or was not tested"


class RegistryError(CtrainError):
    exit_code = 79
    meaning = "a registry of images could not be asked, or its answer is wrong"


CANCELLED = 130  # 128 + SIGINT, as shells report it


def exit_codes() -> list[tuple[int, str]]:
    """(code, meaning) of every error above, in order: the text of `ctrain help exit-codes`."""
    kinds: list[type[CtrainError]] = [CtrainError, *CtrainError.__subclasses__()]
    own = [(kind.exit_code, kind.meaning) for kind in kinds]
    return sorted([*own, (CANCELLED, "the run was cancelled with Ctrl-C")])
