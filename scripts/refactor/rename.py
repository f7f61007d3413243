#!/usr/bin/env python3
"""scripts/refactor/rename.py TABLE FILE...   replaces whole words; TABLE has lines "old<TAB>new" """
import re
import sys

with open(sys.argv[1], encoding="utf-8") as table:
    pairs = [line.rstrip("\n").split("\t") for line in table if line.strip()]
new_of = dict(pairs)
words = re.compile(
    "|".join(rf"(?<![\w]){re.escape(old)}" + (r"(?!\w)" if old[-1].isalnum() or old[-1] == "_" else "") for old in sorted(new_of, key=len, reverse=True))
)
for name in sys.argv[2:]:
    with open(name, encoding="utf-8") as file:
        before = file.read()
    after = words.sub(lambda found: new_of[found[0]], before)
    if after != before:
        with open(name, "w", encoding="utf-8") as file:
            file.write(after)
