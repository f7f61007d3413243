#!/usr/bin/env python3
"""What a unit that includes deeprec costs its compiler, in units of the time of a fixed list of standard headers.

A suite like the C++ ones, `header_cost` for scripts/bench.sh; scripts/header_cost.sh prints the same as a table. Times are
processor seconds of the compiler at -std=c++20 -O2; all units of a round are compiled one after another, and their ratios
count. standard_headers.txt is what embedding/lookup/lookup.hpp included on 2026-11-25: it does not change, so a header
that is included no longer shows as a gain.

  includes         lookup.hpp and thread_pool.hpp
  call             a call of lookup more (f32 rows, ids and offsets of 64 bits), headers only
  call_component   the same with the component deeprec::kernels, whose kernels are declared
  all              deeprec.hpp
  object_kb, object_component_kb   the objects of the two calls
"""

import ast
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True  # no __pycache__ among the sources
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks" / "support"))
from peer_suite import Figures, Unavailable, measured, median, run_program  # noqa: E402

COMPILERS = {"gcc": "g++", "clang": "clang++"}
FLAGS = ["-std=c++20", "-O2", f"-I{ROOT / 'include'}"]
INCLUDES = """#include <deeprec/embedding/lookup/lookup.hpp>
#include <deeprec/exec/thread_pool.hpp>
"""
CALL = """
deeprec::status canonical(deeprec::thread_pool& pool, deeprec::const_table_view<deeprec::f32_rows> table,
                          deeprec::jagged_view<> bags, deeprec::matrix_view<float> out) {
  return deeprec::lookup(pool, table, bags, deeprec::combiner::sum, out);
}
"""
NOTHING = "int nothing;\n"


def eigen_flags():
    found = subprocess.run(["pkg-config", "--cflags", "eigen3"], capture_output=True, text=True, check=False)
    return found.stdout.split() if found.returncode == 0 else ["-I/usr/include/eigen3"]


def kernels_number(compiler, flags):
    """DEEPREC_KERNELS_NUMBER of a unit: the sum that the preprocessor prints, added up."""
    text = "#include <deeprec/core/config.hpp>\nDEEPREC_KERNELS_NUMBER\n"
    command = [compiler, *flags, "-E", "-P", "-x", "c++", "-"]
    printed = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout

    def value(node):
        if isinstance(node, ast.Constant):
            return node.value
        left, right = value(node.left), value(node.right)
        return {ast.Add: left + right, ast.Sub: left - right, ast.Mult: left * right}[type(node.op)]

    return value(ast.parse(printed[printed.rindex("(((") :].replace("\n", " ").strip(), mode="eval").body)


class Units:
    """The units of a compiler in a folder; compile(name) returns processor seconds."""

    def __init__(self, compiler, folder):
        if not shutil.which(compiler):
            raise Unavailable(f"{compiler} is not installed")
        self.compiler, self.folder, self.flags = compiler, Path(folder), FLAGS + eigen_flags()
        names = (ROOT / "benchmarks/header_cost/standard_headers.txt").read_text(encoding="ascii").split()
        texts = {
            "empty": NOTHING,
            "standard": "".join(f"#include <{name}>\n" for name in names) + NOTHING,
            "includes": INCLUDES + NOTHING,
            "call": INCLUDES + CALL,
            "call_component": f"#define DEEPREC_KERNELS {kernels_number(compiler, self.flags)}\n" + INCLUDES + CALL,
            "all": "#include <deeprec/deeprec.hpp>\n" + NOTHING,
        }
        self.names = list(texts)
        for name, text in texts.items():
            (self.folder / f"{name}.cpp").write_text(text, encoding="ascii")

    def compile(self, name):
        command = [self.compiler, *self.flags, "-c", f"{self.folder / name}.cpp", "-o", f"{self.folder / name}.o"]
        child = subprocess.Popen(command)
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        if child.returncode:
            raise RuntimeError(f"{name}.cpp must compile with {self.compiler}")
        return used.ru_utime + used.ru_stime

    def kilobytes(self, name):
        return (self.folder / f"{name}.o").stat().st_size / 1000


def version_of(compiler):
    printed = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True).stdout
    return printed.splitlines()[0]


def measure(name):
    compiler = COMPILERS[name.split("/")[1]]
    with tempfile.TemporaryDirectory() as folder:
        units = Units(compiler, folder)
        sides = {side: lambda side=side: units.compile(side) for side in units.names if side != "empty"}
        figures = Figures(name)

        def one_round():
            seconds = figures.turn(sides)
            unit = seconds["standard"]
            figures.add("includes", seconds["includes"] / unit)
            figures.add("call", (seconds["call"] - seconds["includes"]) / unit)
            figures.add("call_component", (seconds["call_component"] - seconds["includes"]) / unit)
            figures.add("all", seconds["all"] / unit)
            figures.add("object_kb", units.kilobytes("call"))
            figures.add("object_component_kb", units.kilobytes("call_component"))

        figures.sample(one_round)
        counters = figures.counters()
    return {**counters, "label": version_of(compiler)}, counters["call_us"]


def run(names, _arguments):
    return {}, measured(names, measure)


def table(compilers, runs):
    """Prints docs/header-cost.md's table of some compilers."""
    rows = {
        "empty": "an empty unit",
        "standard": "the standard headers of benchmarks/header_cost/standard_headers.txt",
        "includes": "lookup.hpp and thread_pool.hpp, included",
        "call": "the same, and one call of lookup",
        "call_component": "the same with deeprec::kernels",
        "all": "deeprec.hpp, included",
    }
    for compiler in compilers:
        print(f"{version_of(compiler)}, -O2, median of {runs}\n")
        print("| unit | seconds | over the standard headers | object, kB |\n|---|---|---|---|")
        with tempfile.TemporaryDirectory() as folder:
            units = Units(compiler, folder)
            times = {name: [] for name in units.names}
            for _ in range(runs):
                for name in units.names:
                    times[name].append(units.compile(name))
            unit = median(times["standard"])
            for name in units.names:
                seconds = median(times[name])
                print(f"| {rows[name]} | {seconds:.2f} | {seconds / unit:.2f} | {units.kilobytes(name):.0f} |")
        print()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--table"]:
        table(sys.argv[2:] or ["g++"], int(os.environ.get("RUNS") or 3))
    else:
        names = [f"header_cost/{compiler}" for compiler in COMPILERS]
        sys.exit(run_program(sys.argv[1:], __doc__, {}, names, run))
