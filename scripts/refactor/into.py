#!/usr/bin/env python3
"""scripts/refactor/into.py TABLE   moves definitions into a namespace inside the library's

TABLE has lines "header<TAB>name<TAB>namespace<TAB>new name". The definitions of the name at column 0 of the header, with the comment
above them, are wrapped; every other use in a tracked source file gets the namespace in front. Run in the repository's root.
"""
import re
import subprocess
import sys

with open(sys.argv[1], encoding="utf-8") as table:
    rows = [line.rstrip("\n").split("\t") for line in table if line.strip()]
new_of = {name: (space, new) for _, name, space, new in rows}
words = "|".join(sorted(map(re.escape, new_of), key=len, reverse=True))
USE = re.compile(rf"(?<![\w.>/:])((?:deeprec::)?)({words})(?!\w)")
DEFINES = re.compile(
    rf"^(?:(?:using|class|struct|enum class) |(?:inline|constexpr|DEEPREC_HD|DEEPREC_INLINE|\[\[nodiscard\]\])[ \w:]*? )({words})(?=[({{<;:]| [={{:]|$)"
)


def blocks(lines):
    """(first, end) of the declarations at column 0, with what belongs above them"""
    at = 0
    while at < len(lines):
        if not lines[at].strip() or lines[at].startswith(("#", "namespace", "}", "//  ")):
            at += 1
            continue
        first = at
        while at < len(lines) and (lines[at].startswith("//") or lines[at].startswith(("template", "  requires", "requires"))):
            at += 1
        if at == len(lines) or not lines[at].strip() or lines[at].startswith(("namespace", "#")):
            continue
        head = at
        while at < len(lines) and not (lines[at].rstrip().endswith((";", "}")) and not lines[at].startswith(" ")) and not lines[at].rstrip() == "}":
            at += 1
            if lines[at - 1].rstrip().endswith(";") and not any("{" in l and not l.rstrip().endswith("};") for l in lines[head:at]):
                at -= 1
                break
        yield first, head, at + 1
        at += 1


moved = {}
for header, name, *_ in rows:
    moved.setdefault(header, []).append(name)
tracked = subprocess.run(["git", "ls-files", "*.hpp", "*.cuh", "*.inl", "*.cpp", "*.cu"], capture_output=True, text=True, check=True).stdout.split()
for path in tracked:
    with open(path, encoding="utf-8") as file:
        before = file.read()
    names = moved.get(path.removeprefix("include/deeprec/"), [])
    lines = before.split("\n")
    spans = []
    if names:
        for first, head, end in blocks(lines):
            found = DEFINES.match(lines[head]) or (head + 1 < end and DEFINES.match(lines[head + 1]))
            if found and found[1] in names:
                spans.append((first, head, end, found[1]))
        missing = set(names) - {s[3] for s in spans}
        if missing:
            print(f"{path}: no definition of {', '.join(sorted(missing))}")

    def qualified(line, own=()):
        def one(m):
            space, new = new_of[m[2]]
            if m[2] in own or space in own:
                return new
            return f"{m[1]}{space}::{new}"
        code, mark, comment = line.partition("//")
        if not mark:
            return USE.sub(one, line)
        # Prose names a thing without the namespace of what is private.
        return USE.sub(one, code) + mark + USE.sub(lambda m: m[0] if new_of[m[2]][0] == "detail" else one(m), comment)

    out, at = [], 0
    for first, head, end, name in spans:
        out += [qualified(l) for l in lines[at:first]]
        space = new_of[name][0]
        out += [f"namespace {space} {{", ""] + [qualified(l, (space,)) for l in lines[first:end]] + ["", f"}}  // namespace {space}"]
        at = end
    out += [qualified(l) for l in lines[at:]]
    after = "\n".join(out)
    after = re.sub(r"\n+\}  // namespace (\w+)\n+namespace \1 \{\n+", "\n\n", after)
    if after != before:
        with open(path, "w", encoding="utf-8") as file:
            file.write(after)
