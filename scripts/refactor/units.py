#!/usr/bin/env python3
"""scripts/refactor/units.py   function templates of the host get a template parameter that encodes the unit's flags

Every function template of include/deeprec/ with a parameter Context, or whose first parameter is host_backend, gets the last template
parameter "class = detail::unit" (core/unit.hpp). Its symbols then differ between units with different flags. Run in the repository's
root; bodies inside regions and device code are left alone.
"""
import re
import subprocess

FILES = subprocess.run(["git", "ls-files", "include/deeprec/*.hpp"], capture_output=True, text=True, check=True).stdout.split()


def closing(text, at):
    depth = 0
    while True:
        depth += {"<": 1, ">": -1}.get(text[at], 0)
        if depth == 0:
            return at
        at += 1



for path in FILES:
    with open(path, encoding="utf-8") as file:
        text = file.read()
    out, last, changed = [], 0, False
    for found in re.finditer(r"^ *template <", text, re.M):
        open_at = found.end() - 1
        close = closing(text, open_at)
        head = text[open_at + 1 : close]
        rest = text[close + 1 :]
        declaration = re.split(r"[;{]", rest, maxsplit=1)[0]
        if "(" not in declaration or re.match(r"\s*(class|struct|using|concept|inline constexpr|friend)\b", declaration):
            continue
        if not (re.search(r"\bclass Context\b", head) or re.search(r"\(host_backend\b", declaration)) or "detail::unit" in head:
            continue
        before = text[: found.start()]
        if before.rfind("inline namespace DEEPREC_UNIT {") > before.rfind("DEEPREC_UNIT\n"):
            continue  # named after the flags already
        if re.search(r"__global__|DEEPREC_HD", declaration) or "operator()" in declaration:
            continue
        out += [text[last:close], ", class = detail::unit"]
        last, changed = close, True
    if changed:
        text = "".join(out) + text[last:]
        if "<deeprec/core/unit.hpp>" not in text:
            first = re.search(r"^#include <deeprec/", text, re.M)
            text = text[: first.start()] + "#include <deeprec/core/unit.hpp>\n" + text[first.start() :]
        with open(path, "w", encoding="utf-8") as file:
            file.write(text)
