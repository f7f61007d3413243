#!/usr/bin/env python3
"""scripts/refactor/words.py   one noun, one meaning; run in the repository's root

slot      core, embedding, ops: the place of an id in a batch -> position; data: a column of ids -> feature. It stays in
          rings, buffers and optimizers.
stage     what changes a gradient before the optimizer -> transform. It stays in staging, and for pipelines.
step      the distance of two products of a batch -> batch stride. It stays in optimizers.
word      a vector of a region -> vector. It stays for 32 and 64 bits.
"""
import re
import subprocess

files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
source = [f for f in files if f.endswith((".hpp", ".cuh", ".inl", ".cpp", ".cu"))]
FEASIGN = "include/deeprec/data/feasign_format.hpp"


def edit(names, change):
    for name in names:
        with open(name, encoding="utf-8") as file:
            before = file.read()
        after = change(before)
        if after != before:
            with open(name, "w", encoding="utf-8") as file:
                file.write(after)


def in_words(old, new):
    """in every identifier and word, whatever stands around it"""
    pairs = [(old, new), (old.capitalize(), new.capitalize())]
    return lambda text: re.sub(r"\w*" + old + r"\w*", lambda m: m[0].replace(*pairs[0]), re.sub(pairs[1][0], pairs[1][1], text))


def renamed(table):
    words = re.compile(r"(?<!\w)(" + "|".join(map(re.escape, sorted(table, key=len, reverse=True))) + r")(?!\w)")
    return lambda text: words.sub(lambda m: table[m[1]], text)


# --- slot ----------------------------------------------------------------------------------------
grouped = ["batches/detail/group_slots.hpp", "batches/jagged_batch.hpp", "batches/partition.hpp", "batches/detail/device_batches.hpp",
           "training/detail/backward.hpp", "training/detail/device_update.hpp", "training/detail/row_groups.hpp", "training/update.cuh"]
edit(["include/deeprec/embedding/" + f for f in grouped], renamed({"position": "sorted_index", "positions": "sorted_indices"}))
library = [f for f in source if re.match(r"include/deeprec/(core|embedding|ops)/", f)] + [
    "include/deeprec/exec/device_fault.hpp", "include/deeprec/exec/warp_team.cuh", "include/deeprec/memory/owns.hpp", "include/deeprec/exec/cuda_stream.hpp"]
names = set()
for f in library:
    names |= set(re.findall(r"\b\w*slots?\w*\b", open(f, encoding="utf-8").read()))
names -= {"slot", "slots"}
edit(library, in_words("slot", "position"))
users = [f for f in source if f not in library and not re.match(r"include/|tests/(staging|data|memory)/|benchmarks/queue", f)]
table = {n: n.replace("slot", "position") for n in names}


def public(text):
    text = renamed(table)(text)
    text = re.sub(r"(?<=[.{ ]\.)slot(?= =)|(?<=place\(\)\.)slot\b|(?<=place\.)slot\b|(?<=[({]\.)slot\b", "position", text)
    return re.sub(r'(?<=[ "(])slot(?= (?:\d|"))', "position", text)


edit(users + [f for f in files if f.startswith("examples/") and f.endswith(".out")] + ["README.md"], public)
data = [f for f in source if f.startswith("include/deeprec/data/") and f != FEASIGN]
edit(data, in_words("slot", "feature"))
edit([FEASIGN] + [f for f in source if re.match(r"tests/(data|fuzz|regression)/|tests/support/|benchmarks/data/|examples/train_ctr/", f)],
     lambda t: re.sub(r"\bslot_count\b", "feature_count", re.sub(r"\.slots\b", ".features", re.sub(r"\.slot\(", ".feature(", re.sub(r"\bcriteo_slots\b", "criteo_features", t)))))

# --- stage, step, word ---------------------------------------------------------------------------
optim = [f for f in source if re.match(r"include/deeprec/optim/|tests/optim/", f)]
edit(optim, in_words("stage", "transform"))
edit(source, renamed({"GradientStage": "GradientTransform", "begin_stage": "begin_transform", "a_step": "a_batch_stride", "b_step": "b_batch_stride",
                      "c_step": "c_batch_stride", "step_by": "offset_by", "x_step": "x_stride", "out_step": "out_stride", "column_step": "column_stride"}))
moves = {"simd/words.hpp": "simd/vectors.hpp", "simd/rounding_words.hpp": "simd/rounding_vectors.hpp", "optim/detail/step_words.inl": "optim/detail/step_vectors.inl",
         **{f"simd/detail/words_{i}.inl": f"simd/detail/vectors_{i}.inl" for i in ("portable", "avx2", "avx512")}}
for old, new in moves.items():
    subprocess.run(["git", "mv", f"include/deeprec/{old}", f"include/deeprec/{new}"], check=True)
for old, new in {"tests/simd/words_test.cpp": "tests/simd/vectors_test.cpp", "tests/simd/rounding_words_test.cpp": "tests/simd/rounding_vectors_test.cpp"}.items():
    subprocess.run(["git", "mv", old, new], check=True)
files = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n")
paths = re.compile("|".join(re.escape(o) for o in [*moves, "words_test.cpp", "rounding_words_test.cpp"]))
new_path = {**moves, "words_test.cpp": "vectors_test.cpp", "rounding_words_test.cpp": "rounding_vectors_test.cpp"}
edit([f for f in files if f and not f.startswith(("scripts/refactor", "docs/benchmarks")) and f.endswith((".hpp", ".cuh", ".inl", ".cpp", ".cu", ".md", ".txt", ".cmake"))],
     lambda t: paths.sub(lambda m: new_path[m[0]], t))
subprocess.run(["git", "mv", "include/deeprec/embedding/batches/detail/group_slots.hpp", "include/deeprec/embedding/batches/detail/group_positions.hpp"], check=True)
subprocess.run(["git", "mv", "include/deeprec/embedding/training/detail/slot_dots.inl", "include/deeprec/embedding/training/detail/position_dots.inl"], check=True)
subprocess.run(["git", "mv", "include/deeprec/embedding/training/detail/slot_dots_kernels.hpp", "include/deeprec/embedding/training/detail/position_dots_kernels.hpp"], check=True)
