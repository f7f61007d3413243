"""Writes the same random rows as CSV and as Parquet: parquet_rows.py FOLDER ROWS SEED; and Parquet files that are refused."""
import csv, os, random, struct, sys

import pyarrow as pa
import pyarrow.parquet as pq

folder, count, seed = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.makedirs(folder, exist_ok=True)
chance = random.Random(seed)


def single(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def some(value, part=0.1):
    return None if chance.random() < part else value


rows = []
for r in range(count):
    city = chance.randrange(12)
    tags = [f"t{int(chance.paretovariate(0.8)) % 50}" for _ in range(chance.choice([0, 1, 1, 2, 5]))]
    rows.append({
        "y": int(chance.random() < 0.2 + 0.5 * (city % 3 == 0)),
        "n": some(int(chance.paretovariate(0.6)) - 2),
        "price": some(chance.choice([chance.gauss(20, 15), 1e-7 * chance.random(), 3e8 * chance.random(), 0.1])),
        "rate": single(chance.random()),
        "seen": chance.random() < 0.5,
        "city": some(f"c{city}, \"x\""),
        "page": some(chance.randrange(-5, 300)),
        "hash": chance.getrandbits(64),
        "word": some(chance.choice(["red", "green", "blue", "NA", "pink"])),
        "flag": chance.random() < 0.3,
        "tags": some(tags),
        "ids": [chance.randrange(90) for _ in range(chance.randrange(3))],
        "user": f"u{chance.randrange(40)}",
        "id": r * 10 + seed,
        "w": some(chance.choice([0.0, 0.5, 1.0, 2.75])),
        "when": r,
    })
types = {
    "y": pa.int8(), "n": pa.int32(), "price": pa.float64(), "rate": pa.float32(), "seen": pa.bool_(),
    "city": pa.dictionary(pa.int16(), pa.string()), "page": pa.int64(), "hash": pa.uint64(), "word": pa.large_string(),
    "flag": pa.bool_(), "tags": pa.list_(pa.string()), "ids": pa.large_list(pa.int32()), "user": pa.string(), "id": pa.int64(),
    "w": pa.float64(), "when": pa.timestamp("s"),
}


def array(name, of=rows):
    kind = types[name]
    if pa.types.is_dictionary(kind):
        return pa.array([row[name] for row in of], pa.string()).dictionary_encode().cast(kind)
    return pa.array([row[name] for row in of], kind)


def write(path, of=rows, leave=(), put=None):
    columns = {name: array(name, of) for name in types if name not in leave}
    columns.update(put or {})
    names = sorted(columns, key=lambda name: name[::-1])  # another order than that of the schema
    pq.write_table(pa.table({name: columns[name] for name in names}), path, row_group_size=97)


def text(value):
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, list):
        return "|".join(map(str, value))
    return repr(value) if isinstance(value, float) else str(value)


with open(f"{folder}/rows.csv", "w", newline="") as out:
    to = csv.writer(out)
    to.writerow(types)
    for row in rows:
        to.writerow([text(row[name]) for name in types])
write(f"{folder}/rows.parquet")
os.makedirs(f"{folder}/parts", exist_ok=True)
third = count // 3
for k in range(3):
    write(f"{folder}/parts/part-{k}.parquet", rows[k * third:(k + 1) * third if k < 2 else count])
write(f"{folder}/no_label.parquet", leave=["y", "w"])
write(f"{folder}/no_city.parquet", leave=["city"])
n = len(rows)
write(f"{folder}/text_price.parquet", put={"price": pa.array(["1"] * n)})
write(f"{folder}/list_price.parquet", put={"price": pa.array([[1.0]] * n)})
write(f"{folder}/float_page.parquet", put={"page": pa.array([1.0] * n)})
write(f"{folder}/struct_city.parquet", put={"city": pa.array([{"name": "a"}] * n)})
write(f"{folder}/lists_tags.parquet", put={"tags": pa.array([[["a"]]] * n)})
write(f"{folder}/list_city.parquet", put={"city": pa.array([["a"]] * n)})
for name, column, value in (("label", "y", 2), ("null", "y", None), ("weight", "w", -0.5), ("nan", "price", float("nan")),
                            ("endless", "w", float("inf")), ("huge", "price", 1e39)):
    bad = [dict(row) for row in rows]
    for at in (150, 151, 152):
        bad[at][column] = value
    write(f"{folder}/bad_{name}.parquet", bad)
clean = [row for r, row in enumerate(rows) if r not in (150, 151, 152)]
write(f"{folder}/clean.parquet", clean)
pq.write_table(pa.table({name: array(name, []) for name in types}), f"{folder}/empty.parquet")
bytes_of = open(f"{folder}/rows.parquet", "rb").read()
footer = struct.unpack("<I", bytes_of[-8:-4])[0]
open(f"{folder}/footer", "w").write(f"{len(bytes_of)} {footer}")
