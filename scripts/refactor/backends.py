#!/usr/bin/env python3
"""scripts/refactor/backends.py FILE...   specialisations of `backend` become overloads found by a tag

template <> struct backend<verbs::lookup, host_backend> { static status run(ctx, ...) }   ->   status lookup_on(host_backend, ctx, ...)
and detail::run_verb<verbs::lookup>(ctx, ...)   ->   detail::or_out_of_memory([&] { return lookup_on(ctx.backend(), ctx, ...); })
Helpers of a specialisation move in front of it, into namespace detail.
"""
import re
import sys

SPECIAL = re.compile(r"template <>\nstruct backend<verbs::(\w+), (\w+)> \{\n(.*?)\n\};\n", re.S)
RUN = re.compile(r"^((?:\[\[gnu::visibility\(\"hidden\"\)\]\] )?)static status run\(", re.M)


def dedented(body):
    return re.sub(r"^  ", "", body, flags=re.M)


def members(body):
    """The member functions of a specialisation, each with its comments."""
    out, lines = [], []
    for line in body.split("\n"):
        if re.match(r"\s*(private|public):$", line):
            continue
        lines.append(line)
        if line == "}":
            out.append("\n".join(lines).strip("\n"))
            lines = []
    if any(line.strip() for line in lines):
        raise SystemExit("not understood: " + "\n".join(lines))
    return out


def overload(match):
    verb, tag = match[1], match[2]
    found = members(dedented(match[3]))
    main = [f for f in found if RUN.search(f)]
    helpers = [f for f in found if not RUN.search(f)]
    if len(main) != 1:
        raise SystemExit(f"{verb}: {len(main)} functions called run")
    text = RUN.sub(lambda m: f"{m[1]}status {verb}_on({tag}, ", main[0])
    head = ""
    if helpers:
        parts = [re.sub(r"^static ", "", f, flags=re.M) for f in helpers]
        for f in parts:
            name = re.search(r"^(?:status|void|bool|std::uint64_t) (\w+)\(", f, re.M)[1]
            text = re.sub(rf"(?<![\w:]){name}\(", f"detail::{name}(", text)
        head = "namespace detail {\n\n" + "\n\n".join(parts) + "\n\n}  // namespace detail\n\n"
    if tag == "host_backend":
        head += f"template <class... Args>\nstatus {verb}_on(any_backend, const Args&...) {{\n  return detail::no_backend<Args...>();\n}}\n\n"
    return head + text + "\n"


def balanced(text, at):
    """The end of the parenthesis that opens at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[i], 0)
        if depth == 0:
            return i
    raise SystemExit("no closing parenthesis")


def calls(text):
    pattern = re.compile(r"detail::run_verb<verbs::(\w+)>\(")
    while found := pattern.search(text):
        end = balanced(text, found.end() - 1)
        arguments = text[found.end() : end].removeprefix("ctx, ")
        text = (
            text[: found.start()]
            + f"detail::or_out_of_memory([&] {{ return {found[1]}_on(ctx.backend(), ctx, {arguments}); }})"
            + text[end + 1 :]
        )
    return text


def without_verb_tags(text):
    return re.sub(r"namespace verbs \{\n(?:struct \w+ \{\};[^\n]*\n)+\}[^\n]*\n\n?", "", text)


for name in sys.argv[1:]:
    with open(name, encoding="utf-8") as file:
        before = file.read()
    after = without_verb_tags(calls(SPECIAL.sub(overload, before)))
    if after != before:
        with open(name, "w", encoding="utf-8") as file:
            file.write(after)
