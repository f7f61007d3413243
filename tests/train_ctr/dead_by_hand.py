"""Counts the units of dlrm's bottom layer that no exported row of the test switches on, by its first weights.

    dead_by_hand.py EXPORTED UNITS
"""
import struct, sys


def npy(path):
    with open(path, "rb") as f:
        data = f.read()
    head = 10 + struct.unpack("<H", data[8:10])[0]
    flat = struct.unpack(f"<{(len(data) - head) // 4}f", data[head:])
    width = eval(data[10:head].decode())["shape"][1]
    return [flat[i : i + width] for i in range(0, len(flat), width)]


units = int(sys.argv[2])
rows = npy(sys.argv[1] + "/test_dense.npy")
(weights,) = npy(sys.argv[1] + "/dlrm, bottom.npy")
inputs = len(rows[0])
bias = weights[inputs * units : (inputs + 1) * units]
dead = 0
for u in range(units):
    dead += all(sum(x * weights[u * inputs + i] for i, x in enumerate(row)) + bias[u] <= 0 for row in rows)
print(dead)
