"""read_events.py LOG FOLDER: reads the event files of FOLDER by the words of TensorFlow's record format, and compares their scalars
with the lines of LOG, the file of train_ctr --log of the same run: each number of a line is a scalar of its step, and no other is there.
"""
import json
import math
import pathlib
import struct
import sys


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def masked(data):
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283


def varint(data, at):
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == 0:
            value, at = varint(data, at)
        else:
            size = {1: 8, 5: 4}.get(kind)
            if size is None:
                assert kind == 2, kind
                size, at = varint(data, at)
            value, at = data[at:at + size], at + size
            assert len(value) == size
        yield number, value


def records(path):
    data = path.read_bytes()
    at = 0
    while at < len(data):
        head = data[at:at + 8]
        (length,) = struct.unpack("<Q", head)
        assert struct.unpack("<I", data[at + 8:at + 12])[0] == masked(head), f"{path}: the checksum of a length"
        body = data[at + 12:at + 12 + length]
        assert struct.unpack("<I", data[at + 12 + length:at + 16 + length])[0] == masked(body), f"{path}: a checksum"
        yield body
        at += 16 + length


found = {}
for path in sorted(pathlib.Path(sys.argv[2]).glob("*/events.out.tfevents.*")):
    run = path.parent.name
    for n, record in enumerate(records(path)):
        event = dict(fields(record))
        (seconds,) = struct.unpack("<d", event[1])
        assert seconds > 1.6e9
        if n == 0:
            assert event[3] == b"brain.Event:2", event
            continue
        for number, value in fields(event[5]):
            assert number == 1
            scalar = dict(fields(value))
            key = run, scalar[1].decode(), event[2]
            assert key not in found, key
            found[key] = struct.unpack("<f", scalar[2])[0]

expected = {}
steps = {}
for text in open(sys.argv[1]):
    line = json.loads(text)
    run = f"{line['model']}_seed_{line['seed']}"

    def expect(tag, value):
        if value is not None:
            expected[run, tag, line["step"]] = value

    if line["event"] == "step":
        steps.setdefault(run, []).append(line)
        expect("train/loss", line["loss"])
        expect("train/learning_rate", line["learning_rate"])
        expect("train/row_learning_rate", line["row_learning_rate"])
        for layer, norms in line["norms"].items():
            expect("weights/" + layer, norms["weights"])
            expect("gradient/" + layer, norms["gradient"])
    else:
        assert line["event"] in ("valid", "test")
        for tag, name in (("auc", "auc"), ("log_loss", "logloss"), ("calibration", "calibration"), ("group_auc", "group_auc")):
            expect(f"{line['event']}/{tag}", line.get(name))
assert found.keys() == expected.keys(), found.keys() ^ expected.keys()
for key, value in expected.items():
    assert abs(found[key] - value) <= 1e-6 * abs(value), (key, found[key], value)
for run, lines in steps.items():
    at = [line["step"] for line in lines]
    every = at[0]
    assert at == list(range(every, at[-1] + 1, every)), at
    assert all(a["seconds"] <= b["seconds"] and a["rows"] < b["rows"] for a, b in zip(lines, lines[1:]))
    assert all(0 < line["loss"] < 5 and math.isfinite(line["loss"]) for line in lines)
print(f"{len(found)} scalars of {len(steps)} runs")
