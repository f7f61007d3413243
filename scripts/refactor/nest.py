#!/usr/bin/env python3
"""scripts/refactor/nest.py FILE... -- COMPILER ARGUMENT...   pooling tags move into namespaces

Types (sum_t) and names that are written deeprec::sum are found by their spelling. The others are found by the compiler: it is run on
each FILE that is a unit, and where it does not know a name, the namespace is put in front, until it knows all.
"""
import os
import re
import subprocess
import sys

NESTED = {
    **{n: "combiner" for n in ("sum", "mean", "sqrtn", "max_", "concat", "by_count", "by_weight")},
    **{n: "bounds" for n in ("check", "skip", "assume_valid")},
    **{n: "empty_bag" for n in ("zeros", "default_row", "keep")},
}
NEW = {"max_": "max"}
TYPES = {f"{n.rstrip('_')}_t": space for n, space in NESTED.items() if n != "default_row"}
DEFINES = "embedding/pooling.hpp"


def nested(name):
    return f"{NESTED[name]}::{NEW.get(name, name)}"


def by_spelling(text):
    text = re.sub(r"\bdeeprec::(" + "|".join(NESTED) + r")\b(?!\s*::)", lambda m: "deeprec::" + nested(m[1]), text)
    text = re.sub(
        r"(?<![\w:.>])(deeprec::)?(" + "|".join(TYPES) + r")\b", lambda m: f"{m[1] or ''}{TYPES[m[2]]}::{m[2]}", text
    )
    text = re.sub(r"\busing combiner = ", "using combiner_type = ", text)
    text = re.sub(r"is_same_v<combiner,", "is_same_v<combiner_type,", text)
    return text


UNKNOWN = re.compile(r"^(.*?):(\d+):(\d+): error: .*?[‘'](?:deeprec::)?(\w+)[’'] (?:was not declared|has not been declared|is not a member|does not name a type)", re.M)


def by_compiler(unit, compiler):
    for _ in range(30):
        done = subprocess.run([*compiler, "-fsyntax-only", "-fmax-errors=0", unit], capture_output=True, text=True, env={**os.environ, "LC_ALL": "C.UTF-8"})
        places = {(m[1], int(m[2]), int(m[3]), m[4]) for m in UNKNOWN.finditer(done.stderr) if m[4] in NESTED}
        if not places:
            if done.returncode:
                print(unit, "still fails:", *done.stderr.split("\n")[:6], sep="\n  ")
            return
        for path, line, column, name in sorted(places, reverse=True):
            with open(path, encoding="utf-8") as file:
                lines = file.read().split("\n")
            at = lines[line - 1].encode()[: column - 1].decode()
            rest = lines[line - 1][len(at) :]
            if rest.startswith(name):
                lines[line - 1] = at + nested(name) + rest[len(name) :]
            with open(path, "w", encoding="utf-8") as file:
                file.write("\n".join(lines))


arguments = sys.argv[1:]
cut = arguments.index("--")
files, compiler = arguments[:cut], arguments[cut + 1 :]
for name in files:
    if name.endswith(DEFINES):
        continue
    with open(name, encoding="utf-8") as file:
        before = file.read()
    after = by_spelling(before)
    if after != before:
        with open(name, "w", encoding="utf-8") as file:
            file.write(after)
if compiler:
    for name in files:
        if name.endswith((".cpp", ".cu")):
            by_compiler(name, compiler)
