"""Writes random rows for a schema: schema_rows.py SCHEMA FILE ROWS SEED [quoted|shuffled|crlf|bom]..."""
import json, random, sys

schema_path, path, rows, seed, *how = sys.argv[1:]
schema, chance = json.load(open(schema_path)), random.Random(int(seed))
delimiter, quote = schema.get("delimiter", ","), schema.get("quote", '"')
columns = list(enumerate(schema["columns"]))
missing = [""] + schema.get("missing", [])


def value(n, column):
    use = column["use"]
    if use == "label":
        if "at_least" in column:
            return f"{chance.choice([0.5, 1, 2, 3, 3.5, 4, 4.5, 5])}"
        if "positive" in column:
            return chance.choice(column["positive"] + (column.get("negative") or ["no", "never"]))
        return str(int(chance.random() < 0.3))
    if use in ("count", "dense") and chance.random() < 0.1:
        return chance.choice(missing)
    if use == "count":
        return str(int(chance.paretovariate(0.5)) - 2)
    if use == "dense":
        return f"{chance.gauss(20, 15):.3f}"
    if use == "token" and isinstance(column.get("vocabulary"), list) and chance.random() < 0.7:
        return chance.choice(column["vocabulary"])
    if use == "name":
        return f"row, {chance.getrandbits(60)}" if quote else str(chance.getrandbits(60))
    if chance.random() < 0.05:
        return chance.choice(missing)
    return f"{n}_{int(chance.paretovariate(0.7)):x}"


def written(field):
    if quote and ("quoted" in how or any(c in field for c in delimiter + quote + "\n")):
        return quote + field.replace(quote, 2 * quote) + quote
    return (" " + field) if schema.get("trims") else field


order = columns[:]
if "shuffled" in how:
    random.Random(5).shuffle(order)
lines = []
if schema.get("header", True):
    lines.append([c["name"] for _, c in order])
for _ in range(int(rows)):
    made = {n: value(n, c) for n, c in columns}
    lines.append([made[n] for n, _ in order])
end = "\r\n" if "crlf" in how else "\n"
with open(path, "w", newline="", encoding="utf-8") as out:
    out.write("\ufeff" if "bom" in how else "")
    for line in lines:
        out.write(delimiter.join(map(written, line)) + end)
