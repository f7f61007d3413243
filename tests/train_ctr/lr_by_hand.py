"""lr_by_hand.py FOLDER RESULT [NAME=VALUE...]: trains a logistic regression on the rows that train_ctr --export wrote, by the words
of train_ctr --help and in double precision, and compares what RESULT, the file of --json, has of every pass and of the test.

Rows are trained on in one order in all epochs, that of --window 1, and those that test validate as well. Where rows have weights w,
a row's part of the gradient is w (p - y) / B, and the loss is the sum of w times the loss over the sum of w.
"""
import json
import math
import os
import struct
import sys

folder, result = sys.argv[1], json.load(open(sys.argv[2]))
given = dict(word.split("=") for word in sys.argv[3:])


def option(name, default):
    return type(default)(given.get(name, default))


def read_npy(name):
    with open(f"{folder}/{name}.npy", "rb") as file:
        assert file.read(6) == b"\x93NUMPY"
        file.read(2)
        head = file.read(struct.unpack("<H", file.read(2))[0]).decode()
        kind = {"<f4": "f", "<i4": "i", "<i8": "q"}[head.split("'descr': '")[1][:3]]
        rows, columns = map(int, head.split("'shape': (")[1].split(")")[0].split(","))
        values = struct.unpack(f"<{rows * columns}{kind}", file.read())
    return [values[i * columns:(i + 1) * columns] for i in range(rows)]


def read_rows(name):
    labels = read_npy(f"{name}_labels")
    has = os.path.exists(f"{folder}/{name}_weights.npy")
    counts = [w[0] for w in read_npy(f"{name}_weights")] if has else [1.0] * len(labels)
    return list(zip(read_npy(f"{name}_dense"), labels, read_npy(f"{name}_rows"), counts))


train, test = read_rows("train"), read_rows("test")
wide = len(train[0][0])
batch, epochs, patience, every = option("batch", 128), option("epochs", 1), option("patience", 0), option("every", 0)
rate, row_rate, l2 = option("rate", 0.1), option("row_rate", 0.04), option("l2", 0.0)
sgd, schedule, warm_up = option("optimizer", "adagrad") == "sgd", option("schedule", "constant"), option("warm_up", 0)
decay, decay_every, last_rate = option("decay", 0.5), option("decay_every", 1000), option("last_rate", 0.0)
steps_of_epoch = -(-len(train) // batch)


def scale(step):
    done = step / warm_up if step < warm_up else 1
    if schedule == "step":
        return decay**(step // decay_every)
    if schedule == "smooth" and step < warm_up:
        return 1 / warm_up + (1 - 1 / warm_up) * (3 * done**2 - 2 * done**3)
    if schedule == "smooth":
        return decay**((step - warm_up) // decay_every)
    if step < warm_up:
        return 1 / warm_up + (1 - 1 / warm_up) * done
    if schedule == "cosine":
        along = (step - warm_up) / (steps_of_epoch * epochs - warm_up)
        return last_rate + (1 - last_rate) * (1 + math.cos(math.pi * along)) / 2
    return 1


weights, squares = [0.0] * (wide + 1), [0.0] * (wide + 1)  # the last one is the bias
rows, row_squares = {}, {}


def logit(dense, ids):
    return sum(w * x for w, x in zip(weights, dense)) + weights[wide] + sum(rows.get(i, 0.0) for i in ids)


def probability(value):
    return 1 / (1 + math.exp(-value))


def figures():
    scored = sorted((logit(dense, ids), label[0], count) for dense, label, ids, count in test)
    every = sum(count for *_, count in scored)
    clicks = sum(label * count for _, label, count in scored)
    below = wins = i = 0
    while i < len(scored):
        j = i
        while j < len(scored) and scored[j][0] == scored[i][0]:
            j += 1
        tied = sum(label * count for _, label, count in scored[i:j])
        others = sum((1 - label) * count for _, label, count in scored[i:j])
        wins += tied * (below + others / 2)
        below += others
        i = j
    ps = [(probability(s), label, count) for s, label, count in scored]
    return {
        "auc": wins / (clicks * (every - clicks)),
        "logloss": -sum(count * math.log(p if label else 1 - p) for p, label, count in ps) / every,
        "calibration": sum(count * p for p, _, count in ps) / clicks,
    }


def stepped(value, gradient, sums, key, rate, epsilon):
    gradient += l2 * value
    if sgd:
        return value - rate * gradient
    sums[key] = (sums.get(key, 0.0) if isinstance(sums, dict) else sums[key]) + gradient**2
    return value - rate * gradient / (math.sqrt(sums[key]) + epsilon)


passes, losses, step = [], [], 0
best, since = None, 0


def look():
    global best, since, losses
    passes.append(dict(figures(), step=step, train_loss=sum(l * w for l, w in losses) / sum(w for _, w in losses)))
    losses = []
    if best is None or passes[-1]["auc"] > best["auc"]:
        best, since = passes[-1], 0
    else:
        since += 1
    return patience > 0 and since >= patience


def run():
    global step
    for _ in range(epochs):
        for first in range(0, len(train), batch):
            part = train[first:first + batch]
            gradient, of_rows = [0.0] * (wide + 1), {}
            for dense, label, ids, count in part:
                z = logit(dense, ids)
                losses.append((math.log1p(math.exp(-z if label[0] else z)), count))
                slope = count * (probability(z) - label[0]) / len(part)
                for k in range(wide):
                    gradient[k] += slope * dense[k]
                gradient[wide] += slope
                for i in ids:
                    of_rows[i] = of_rows.get(i, 0.0) + slope
            by = scale(step)
            for k in range(wide + 1):
                weights[k] = stepped(weights[k], gradient[k], squares, k, rate * by, 1e-8)
            for i, g in of_rows.items():
                rows[i] = stepped(rows.get(i, 0.0), g, row_squares, i, row_rate * by, 1e-3)
            step += 1
            ends = first + batch >= len(train)
            if (every and step % every == 0 and not ends or ends) and look():
                return


run()
model = result["models"][0]
assert [p["step"] for p in model["passes"]] == [p["step"] for p in passes], (model["passes"], passes)
for theirs, mine in list(zip(model["passes"], passes)) + [(model, best if patience else passes[-1])]:
    for name in ("auc", "logloss", "calibration", "train_loss"):
        if theirs is model and name == "train_loss":
            continue
        assert abs(theirs[name] - mine[name]) < 2e-4 * abs(mine[name]), (mine["step"], name, theirs[name], mine[name])
if patience:
    assert model["kept_step"] == best["step"], (model["kept_step"], best)
print(f"{len(passes)} passes, AUC {passes[-1]['auc']:.4f} at the end, {max(p['auc'] for p in passes):.4f} at best")
