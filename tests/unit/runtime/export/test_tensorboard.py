"""Event files, by the documented formats: TFRecord, and the protocol buffers of event.proto."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ctrain_runtime.export import tensorboard
from samples.reports import a_subject

Fields = dict[int, list[Any]]


def fields(data: bytes) -> Fields:
    """The fields of a message, by the wire format (protobuf.dev, Encoding)."""
    found: Fields = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            found.setdefault(key >> 3, []).append(varint())
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        found.setdefault(key >> 3, []).append(data[at : at + size])
        at += size
    return found


def events(path: Path) -> Iterator[Fields]:
    data = path.read_bytes()
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == tensorboard.masked_crc(data[:8])
        content = data[12 : 12 + size]
        assert struct.unpack("<I", data[12 + size : 16 + size])[0] == tensorboard.masked_crc(content)
        yield fields(content)
        data = data[16 + size :]


def exported(tmp_path: Path, *records: dict[str, Any]) -> list[Fields]:
    subject = a_subject(tmp_path / "runs/one", 0, metrics="".join(json.dumps(each) + "\n" for each in records))
    place, _ = tensorboard.export(subject.run.path, subject.record, str(tmp_path / "events"))
    (file,) = Path(place).iterdir()
    assert "tfevents" in file.name
    return list(events(file))


def scalars(made: list[Fields]) -> list[tuple[int, str, float]]:
    values = [(each[2][0], fields(value)) for each in made if 5 in each for value in fields(each[5][0])[1]]
    return [(step, f[1][0].decode(), struct.unpack("<f", f[2][0])[0]) for step, f in values if 2 in f]


def test_the_checksum_is_crc32c() -> None:
    # RFC 3720, B.4: 32 bytes of zeros give 0x8A9136AA, 32 of ones 0x62A8AB43; masked as in TensorFlow's crc32c.h
    for data, crc in ((bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)):
        assert tensorboard.masked_crc(data) == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def test_measures_parameters_and_outcome(tmp_path: Path) -> None:
    made = exported(
        tmp_path, {"step": 1, "loss": 2.5, "time": 103.5, "note": "x"}, {"step": 300, "loss": 0.5, "rate": 4}
    )
    assert made[0][3] == [b"brain.Event:2"]
    assert scalars(made) == [(1, "loss", 2.5), (300, "loss", 0.5), (300, "rate", 4.0)]
    assert struct.unpack("<d", made[1][1][0]) == (103.5,)
    texts = {}
    for value in map(fields, fields(made[-1][5][0])[1]):
        assert fields(fields(value[9][0])[1][0])[1] == [b"text"]
        texts[value[1][0].decode()] = fields(value[8][0])[8][0].decode()
    assert texts["run/outcome"] == "completed"
    assert texts["run/image_digest"].startswith("sha256:")


def test_a_restart_begins_a_session_at_its_step(tmp_path: Path) -> None:
    made = exported(tmp_path, {"step": 8, "loss": 2}, {"step": 9, "loss": 1}, {"step": 8, "loss": 1.5})
    assert [(each[2], fields(each[7][0])) for each in made if 7 in each] == [([8], {1: [1]})]


def test_values_that_do_not_fit(tmp_path: Path) -> None:
    made = exported(tmp_path, {"step": 1, "a": 1e300, "b": -1e300, "c": math.nan}, {"step": -5, "d\ud800": 10**400})
    by_key = {key: value for _, key, value in scalars(made)}
    assert (by_key["a"], by_key["b"]) == (math.inf, -math.inf)
    assert math.isnan(by_key["c"])


def test_no_metrics_and_a_second_export(tmp_path: Path) -> None:
    assert scalars(exported(tmp_path)) == []
    (tmp_path / "runs/one/metrics.jsonl").write_text('{"step": 1, "loss": 3}\n{"step": 2, "lo')
    subject = a_subject(tmp_path / "runs/two", 0, metrics='{"step": 1, "loss": 3}\nno record\n{"step": 2, "lo')
    for _ in range(2):
        place, count = tensorboard.export(subject.run.path, subject.record, str(tmp_path / "events"))
        assert (count, len(list(Path(place).iterdir()))) == (1, 1)
