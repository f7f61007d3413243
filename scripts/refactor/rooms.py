#!/usr/bin/env python3
"""scripts/refactor/rooms.py TABLE   moves headers; TABLE has lines "old<TAB>new", below include/deeprec/

Paths in the text of every tracked file are replaced: deeprec/OLD as a whole, and OLD where its last folder and name stand
alone in a document. Run in the repository's root.
"""
import os
import re
import subprocess
import sys

with open(sys.argv[1], encoding="utf-8") as table:
    new_of = dict(line.rstrip("\n").split("\t") for line in table if line.strip())
for old, new in new_of.items():
    if os.path.exists(f"include/deeprec/{old}"):
        os.makedirs(os.path.dirname(f"include/deeprec/{new}"), exist_ok=True)
        subprocess.run(["git", "mv", f"include/deeprec/{old}", f"include/deeprec/{new}"], check=True)
paths = re.compile(r"(?<![\w/])((?:include/)?(?:deeprec/)?)(" + "|".join(map(re.escape, sorted(new_of, key=len, reverse=True))) + r")(?!\w)")
for name in subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split("\n"):
    if not name or name.startswith(("scripts/refactor/", "docs/benchmarks/")) or os.path.islink(name):
        continue
    try:
        with open(name, encoding="utf-8") as file:
            before = file.read()
    except UnicodeDecodeError:
        continue
    after = paths.sub(lambda found: found[1] + new_of[found[2]], before)
    if after != before:
        with open(name, "w", encoding="utf-8") as file:
            file.write(after)
