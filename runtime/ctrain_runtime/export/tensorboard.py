"""Event files of TensorBoard: records of TFRecord (tensorflow.org/tutorials/load_data/tfrecord) that hold messages of
tensorflow/core/util/event.proto. The few fields that are needed are written here: the library brings 100 MB."""

from __future__ import annotations

import struct
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO

from ctrain_runtime.base import run_files
from ctrain_runtime.export import facts
from ctrain_runtime.report.series import Measures, measures
from ctrain_runtime.run.record import Record

VERSION = b"brain.Event:2"
POLYNOMIAL = 0x82F63B78  # of CRC32C, reflected (RFC 3720, B.4)
LARGEST_FLOAT32 = 3.4028234e38
DT_STRING, DATA_CLASS_TENSOR, SESSION_START = 7, 2, 1


def export(path: Path, record: Record, where: str) -> tuple[str, int]:
    """Write what the run in the directory `path` has measured to `where`/RUN. Returns that, and how many values it has.

    The file is replaced as a whole by the next export. Raises OSError.
    """
    folder = Path(where) / record.run
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"events.out.tfevents.{int(facts.seconds(record.created) or 0)}.ctrain"
    with tempfile.TemporaryDirectory(dir=folder, prefix=".partial-") as partial:
        unfinished = Path(partial) / "partial"
        with unfinished.open("wb") as file:
            count = _write(file, path, record)
        unfinished.replace(target)
    return str(folder), count


def _write(file: IO[bytes], path: Path, record: Record) -> int:
    begin, last, count = facts.start(record), -1.0, 0
    file.write(framed(event(begin, 0, _bytes(3, VERSION))))
    for made in measures(path / run_files.METRICS):
        if made.step < last:  # a restart: TensorBoard then drops what it had from this step on
            file.write(framed(event(made.time or begin, int(made.step), _bytes(7, _number(1, SESSION_START)))))
        file.write(framed(event(made.time or begin, int(made.step), _bytes(5, _scalars(made)))))
        last, count = made.step, count + len(made.values)
    texts = {**{f"parameters/{name}": value for name, value in record.parameters.items()}, **_run_texts(record)}
    summary = b"".join(_text(tag, text) for tag, text in texts.items() if text)
    file.write(framed(event(begin, int(max(last, 0)), _bytes(5, summary))))
    return count


def _run_texts(record: Record) -> Mapping[str, str]:
    return {f"run/{name}": value for name, value in facts.tags(record).items()}


def event(time: float, step: int, what: bytes) -> bytes:
    """The message Event. `what` is one of its fields."""
    return b"\x09" + struct.pack("<d", time) + _number(2, step) + what


def framed(data: bytes) -> bytes:
    """A record of TFRecord: its length and its content, each with a checksum."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def masked_crc(data: bytes) -> int:
    """CRC32C, turned by 15 bits and moved by a constant, as TFRecord has it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 0xFF] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def _entry(index: int) -> int:
    for _ in range(8):
        index = (index >> 1) ^ (POLYNOMIAL if index & 1 else 0)
    return index


_TABLE = tuple(map(_entry, range(256)))


def _scalars(made: Measures) -> bytes:
    values = ((key.encode(errors="replace"), _float32(value)) for key, value in made.values.items())
    return b"".join(_bytes(1, _bytes(1, key) + b"\x15" + struct.pack("<f", value)) for key, value in values)


def _float32(value: float) -> float:
    """`value`, or infinity if it is too large for 32 bits; NaN stays NaN."""
    if abs(value) > LARGEST_FLOAT32:
        return float("inf") if value > 0 else float("-inf")
    return value


def _text(tag: str, text: str) -> bytes:
    """A text: a tensor with one string, for the plugin `text`."""
    tensor = _number(1, DT_STRING) + _bytes(2, _bytes(2, _number(1, 1))) + _bytes(8, text.encode(errors="replace"))
    plugin = _bytes(1, _bytes(1, b"text")) + _number(4, DATA_CLASS_TENSOR)
    return _bytes(1, _bytes(1, tag.encode(errors="replace")) + _bytes(9, plugin) + _bytes(8, tensor))


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value)


def _bytes(field: int, value: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(value)) + value


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*out, value))
