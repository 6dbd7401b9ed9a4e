"""Options and arguments that several verbs share."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from pathlib import Path

from ctrain_builder.build_host.secrets import BuildSecret, read_secret
from ctrain_builder.definitions import image_spec
from ctrain_builder.definitions.image_spec import ImageSpec
from ctrain_builder.files.digests import REGIONS
from ctrain_runtime.base.digest import SHOWN_DIGITS
from ctrain_runtime.errors import UsageError

_UNITS = {"b": 1, "kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}


def add_definitions_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--definitions",
        type=Path,
        metavar="DIR",
        help="directory of images.yaml and definitions; it extends the packaged ones "
        "($CTRAIN_DEFINITIONS, ./definitions)",
    )


def cache_directory(text: str) -> Path:
    """The value of --cache. An empty one, as of a variable that is not set, would be the current directory."""
    if not text:
        raise argparse.ArgumentTypeError("must be a directory, not empty")
    return Path(text)


def add_cache_arguments(parser: argparse.ArgumentParser) -> None:
    """Where images are described and kept; shared with `ctrain publish`."""
    add_definitions_argument(parser)
    parser.add_argument(
        "--cache",
        type=cache_directory,
        metavar="DIR",
        help="where layers, images and logs are kept ($CTRAIN_CACHE, /var/tmp/ctrain-UID)",
    )
    parser.add_argument("--tag", default="", help="upstream version of the image (default: the one in images.yaml)")
    parser.add_argument("--flatten", action="store_true", help="one file system instead of a base and layers")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")


def add_plan_arguments(parser: argparse.ArgumentParser) -> None:
    """What an image's plan depends on; shared with `ctrain test`."""
    parser.add_argument("--offline", action="store_true", help="contact no registry; use cached digests")
    parser.add_argument(
        "--build-arg",
        action="append",
        default=[],
        metavar="K=V",
        help="value for an argument of a definition (repeatable)",
    )
    add_cache_arguments(parser)


def add_yes(parser: argparse.ArgumentParser) -> None:
    """The option of actions that remove or move something: without it, they list what they would do."""
    parser.add_argument("--yes", action="store_true", help="do it; without this, only list what would be done")


def add_dry_run(parser: argparse.ArgumentParser) -> None:
    """The option of actions that act at once."""
    parser.add_argument("--dry-run", action="store_true", help="only show what would be done")


def positive(text: str) -> int:
    """A positive integer. Raises ArgumentTypeError."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a positive integer, not {text!r}")
    return int(text)


def parse_build_args(texts: Sequence[str]) -> dict[str, str]:
    """The values of --build-arg by name. Raises UsageError."""
    for text in texts:
        if text.find("=") < 1:
            raise UsageError(f"--build-arg must be NAME=VALUE, not {text!r}")
    return dict(text.split("=", 1) for text in texts)


def parse_secrets(texts: Sequence[str]) -> tuple[BuildSecret, ...]:
    """The files of --secret by name. Raises UsageError."""
    for text in texts:
        if text.find("=") < 1:
            raise UsageError(f"--secret must be NAME=FILE, not {text!r}")
    return tuple(read_secret(name, Path(path)) for name, path in dict(text.split("=", 1) for text in texts).items())


def find_image(definitions: Path, text: str, tag: str) -> ImageSpec:
    """The image of the argument IMAGE[:TAG] and the option --tag."""
    name, colon, own = text.partition(":")
    if colon and (tag or not own):
        raise UsageError(f"{text!r} has an empty tag, or --tag is also given", "Use IMAGE:TAG or --tag")
    return image_spec.find_spec(definitions, name, own or tag)


def days(text: str) -> float:
    """A number of days. Raises ArgumentTypeError."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise argparse.ArgumentTypeError(f"must be a number of days, not {text!r}")
    return number


def digest(text: str) -> str:
    """The digest of an image, or the beginning of one that ctrain shows. Raises ArgumentTypeError."""
    if not re.fullmatch(rf"({REGIONS}|sha256:)[0-9a-f]{{{SHOWN_DIGITS},64}}", text):
        what = f"must be sha256:HEX or {REGIONS}HEX with {SHOWN_DIGITS} to 64 hexadecimal digits, not {text!r}"
        raise argparse.ArgumentTypeError(what)
    return text


def parse_size(text: str) -> int:
    """Bytes of a size as in 200GB or 1.5 TB (powers of 1000); only 0 needs no unit. Raises UsageError."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([a-z]*)", text.strip().lower())
    if match and match[2] == "" and float(match[1]) == 0:
        return 0
    if not match or match[2] not in _UNITS:
        what = f"size {text!r} has no unit" if match and not match[2] else f"{text!r} is not a size"
        raise UsageError(what, "Write it as in 200GB (B, kB, MB, GB, TB; powers of 1000)")
    return round(float(match[1]) * _UNITS[match[2]])
