"""Reads a table by a schema with Python's csv, and compares it with what train_ctr exported.

    schema_by_hand.py SCHEMA TRAINED TESTED EXPORTED      rows of TESTED are in the order of the file
"""
import bisect, collections, csv, json, math, struct, sys


def npy(path):
    with open(path, "rb") as f:
        data = f.read()
    head = 10 + struct.unpack("<H", data[8:10])[0]
    about = eval(data[10:head].decode())
    rows, width = about["shape"]
    kind = {"<f4": "f", "<i4": "i", "<i8": "q"}[about["descr"]]
    flat = struct.unpack(f"<{rows * width}{kind}", data[head:])
    return [flat[r * width : (r + 1) * width] for r in range(rows)]


def single(x):
    return struct.unpack("f", struct.pack("f", x))[0]


def table(schema, path):
    with open(path, newline="", encoding="utf-8-sig") as f:
        quote = schema.get("quote", '"')
        how = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
        rows = [row for row in csv.reader(f, delimiter=schema.get("delimiter", ","), **how) if row]
    if schema.get("trims"):
        rows = [[field.strip(" \t") for field in row] for row in rows]
    head = rows.pop(0) if schema.get("header", True) else None
    columns = {}
    for n, column in enumerate(schema["columns"]):
        at = head.index(column["name"]) if head else column.get("position", n)
        columns[column.get("name", str(n + 1))] = (column, [row[at] for row in rows])
    return columns


def label(column, text):
    if "at_least" in column:
        return 1.0 if float(text) >= column["at_least"] else 0.0
    if "positive" in column:
        return 1.0 if text in column["positive"] else 0.0
    return float(text)


def number(schema, column, text):
    """The value and whether it is missing."""
    if text == "" or text in schema.get("missing", []):
        return (column["missing"], 0.0) if "missing" in column else (0.0, 1.0)
    x = single(float(text))
    if column["use"] == "count":
        return 0.3 * math.log1p(max(x, 0.0)), 0.0
    scale = column.get("scale", "none")
    if scale == "log":
        x = math.copysign(math.log1p(abs(x)), x)
    if scale == "standard":
        x = (x - column.get("mean", 0)) / column.get("deviation", 1)
    if scale == "quantile":
        q = column["quantiles"]
        above = bisect.bisect_right(q, x)
        x = 0.0 if above == 0 else 1.0 if above == len(q) else (above - 1 + (x - q[above - 1]) / (q[above] - q[above - 1])) / (len(q) - 1)
    return x, 0.0


def main():
    schema_path, trained, tested, exported = sys.argv[1:]
    schema = json.load(open(schema_path))
    train, test = table(schema, trained), table(schema, tested)
    labels, dense = npy(f"{exported}/test_labels.npy"), npy(f"{exported}/test_dense.npy")
    rows, first = npy(f"{exported}/test_rows.npy"), [x[0] for x in npy(f"{exported}/first_row.npy")]
    by_use = lambda *uses: [name for name, (c, _) in test.items() if c["use"] in uses]
    (label_name,) = by_use("label")
    expected = [label(test[label_name][0], text) for text in test[label_name][1]]
    assert [x[0] for x in labels] == expected, "labels differ"
    assert len(npy(f"{exported}/train_labels.npy")) == len(train[label_name][1]), "rows to train differ"
    assert sum(x[0] for x in npy(f"{exported}/train_labels.npy")) == sum(
        label(train[label_name][0], text) for text in train[label_name][1]), "labels to train differ"
    counts, numbers, tokens = by_use("count"), by_use("dense"), by_use("token")
    names = counts + numbers
    for i in range(len(expected)):
        made = [number(schema, test[name][0], test[name][1][i]) for name in names]
        wanted = [v for v, _ in made] + [m for _, m in made] or [0.0]
        for a, b in zip(dense[i], wanted):
            assert abs(a - b) <= 1e-6 * (1 + abs(b)), f"row {i}: {a} is not {b}"
    assert len(first) == len(counts) + len(tokens) + 1
    missing = lambda text: "" if text in schema.get("missing", []) else text
    for s, name in enumerate(tokens):
        column = test[name][0]
        slot = len(counts) + s
        has = first[slot + 1] - first[slot]
        words = column.get("vocabulary")
        if isinstance(words, str):
            words = open(words).read().split()
        assert has == 1 + (len(words) + 2 if words else column.get("rows", 1 << 17)), f"{name} has {has} rows"
        known = lambda text: missing(text) if not words else "" if missing(text) == "" else text if text in words else "\0"
        uses = collections.Counter(known(text) for text in train[name][1])
        row_of = {}
        for i, text in enumerate(map(known, test[name][1])):
            row = rows[i][slot] - first[slot]
            assert row_of.setdefault(text, row) == row, f"{name}: {text} has two rows"
            assert row > 0 or uses[text] < 2, f"{name}: {text}, used {uses[text]} times, has the row of rare tokens"
            if words and row > 0:
                assert row == 1 + (0 if text == "" else 1 if text == "\0" else 2 + words.index(text)), f"{name}: {text} has row {row}"
        rare = [text for text, row in row_of.items() if uses[text] < 2]
        shared = [text for text in rare if row_of[text] > 0]  # the row of another token's hash
        pairs = 2 + len(uses) ** 2 / column.get("rows", 1 << 17)  # twice as many as fall together by chance
        assert len(shared) <= (0 if words else pairs), f"{name}: {len(shared)} of {len(rare)} rare tokens have rows"
        distinct = [row for row in row_of.values() if row > 0]
        assert len(distinct) - len(set(distinct)) <= pairs, f"{name}: tokens share rows"
    print(f"{len(expected)} rows, {len(names)} numbers, {len(tokens)} tokens are those of Python's csv")


main()
