# SPDX-License-Identifier: Apache-2.0
"""The event files of `caesura train --tensorboard`, read as their formats say: TFRecord's frames and checksums, protobuf's wire format."""

import struct

import numpy as np
import pytest

from caesura import _core


def crc32c(data: bytes) -> int:
    """RFC 3720, bit by bit."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(crc: int) -> int:
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def records(path) -> list:
    data, found = path.read_bytes(), []
    while data:
        length, of_length = struct.unpack_from("<QI", data)
        assert of_length == masked(crc32c(data[:8]))
        body, data = data[12:12 + length], data[12 + length:]
        assert len(body) == length and struct.unpack_from("<I", data)[0] == masked(crc32c(body))
        found.append(body)
        data = data[4:]
    return found


def fields(message: bytes) -> dict:
    """Field numbers to lists of values: ints, or bytes of what has a length or a fixed size."""
    found, at = {}, 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(message):
        key = varint()
        kind = key & 7
        if kind == 0:
            value = varint()
        else:
            size = {1: 8, 2: None, 5: 4}[kind]
            size = varint() if size is None else size
            value, at = message[at:at + size], at + size
        found.setdefault(key >> 3, []).append(value)
    return found


def test_crc():
    assert crc32c(b"123456789") == 0xE3069283  # the check value of the algorithm


def test_scalars_texts_and_histograms(tmp_path):
    events = _core.Events.open(str(tmp_path / "runs" / "first"))
    events.scalar("loss/train", 0.25, 3)
    events.scalar("loss/train", 1.5, 1 << 40)
    events.text("options", "**batch** 32 é", 0)
    events.histogram("weights", np.array([[0.0, 1.0], [64.0, np.nan]], np.float32), 7)
    events.histogram("none", np.array([np.inf], np.float32), 7)
    [file] = (tmp_path / "runs" / "first").iterdir()
    assert str(file) == events.path and file.name.startswith("events.out.tfevents.")
    first, *rest = map(fields, records(file))
    assert first[3] == [b"brain.Event:2"] and struct.unpack("<d", first[1][0])[0] > 1.6e9
    values = [fields(fields(event[5][0])[1][0]) for event in rest]
    assert [event.get(2) for event in rest] == [[3], [1 << 40], [0], [7]]
    assert [value[1][0].decode() for value in values] == ["loss/train", "loss/train", "options", "weights"]
    assert [struct.unpack("<f", value[2][0])[0] for value in values[:2]] == [0.25, 1.5]
    tensor = fields(values[2][8][0])
    assert tensor[1] == [7] and tensor[8][0].decode() == "**batch** 32 é"
    assert fields(fields(values[2][9][0])[1][0])[1] == [b"text"]
    histogram = fields(values[3][5][0])
    least, most, count, total, squares = (struct.unpack("<d", histogram[i][0])[0] for i in range(1, 6))
    assert (least, most, count, total, squares) == (0, 64, 3, 65, 4097)
    limits, counts = np.frombuffer(histogram[6][0]), np.frombuffer(histogram[7][0])
    np.testing.assert_array_equal(limits, np.arange(1, 65))
    assert counts[0] == 1 and counts[1] == 1 and counts[63] == 1 and counts.sum() == 3


def test_writers_have_files_of_their_own(tmp_path):
    paths = {_core.Events.open(str(tmp_path)).path for _ in range(3)}
    assert len(paths) == 3 == len(list(tmp_path.iterdir()))


def test_a_folder_that_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        _core.Events.open(str(tmp_path / "file" / "runs"))
