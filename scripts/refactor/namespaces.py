#!/usr/bin/env python3
"""scripts/refactor/namespaces.py FILE...   spells namespaces so that Universal Ctags parses them

namespace deeprec::inline DEEPREC_ABI::detail {   ->   namespace deeprec { inline namespace DEEPREC_ABI { namespace detail {
and its closing brace; closing comments that clang-format garbled lose the attribute.
"""
import re
import sys

OPENING = re.compile(r"^(\s*)namespace (\w+(?:::(?:inline )?\w+)*::inline \w+(?:::\w+)*) \{$")
COMPILED = re.compile(r"^(\s*)namespace (compiled_for::inline \w+) \{$")
GARBLED = re.compile(r"^(\s*\}.*// namespace) .*\]\](\w+)$")
COMMENT = re.compile(r"^\}(\s*// namespace .*)?$")


def parts_of(path):
    out = []
    for part in path.split("::"):
        inline, name = part.startswith("inline "), part.removeprefix("inline ")
        out.append(("inline namespace " if inline else "namespace ") + name)
    return out


def respell(text):
    lines = text.split("\n")
    for at, line in enumerate(lines):
        garbled = GARBLED.match(line)
        if garbled:
            lines[at] = f"{garbled[1]} {garbled[2]}"
    for at, line in enumerate(lines):
        opening = OPENING.match(line) or COMPILED.match(line)
        if not opening:
            continue
        indent, path = opening[1], opening[2]
        parts = parts_of(path)
        lines[at] = indent + " ".join(part + " {" for part in parts)
        comment = "// namespace " + path
        plain = "// namespace " + path.replace("inline ", "")
        for end in range(at + 1, len(lines)):
            if lines[end].startswith(indent + "}") and lines[end].rstrip().endswith((comment, plain)):
                lines[end] = indent + "}" * len(parts) + "  " + plain
                break
    # What begin_*.hpp opens, end_*.hpp closes.
    text = "\n".join(lines)
    return re.sub(r"^\}  // namespace deeprec::inline (\w+)$", r"}}  // namespace deeprec::\1", text, flags=re.M)


for name in sys.argv[1:]:
    with open(name, encoding="utf-8") as file:
        before = file.read()
    after = respell(before)
    if name.rsplit("/", 1)[-1].startswith("end_"):
        after = re.sub(r"\n\}\n(?!\})", "\n}}\n", after, count=1)
    if after != before:
        with open(name, "w", encoding="utf-8") as file:
            file.write(after)
