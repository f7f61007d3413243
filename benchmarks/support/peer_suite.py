"""What suites in Python share: statistics of pairs, figures of rounds, memory, and the arguments and the report of a
Google Benchmark program."""

import argparse
import ctypes
import importlib
import itertools
import json
import math
import os
import platform
import re
import sys
import time
import warnings
from pathlib import Path

MOST_OF_OTHERS = 0.1  # of the processors


class Unavailable(Exception):
    """This benchmark cannot run here, and why."""


# Statistics, as benchmarks/support/paired.hpp has them.


def median(values):
    ordered = sorted(values)
    middle = len(ordered) // 2
    return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


def median_interval(values):
    """The 95 % interval of the median by order statistics."""
    ordered, count = sorted(values), len(values)
    below, k = 0.0, 0
    while k < count // 2:
        below += math.exp(
            math.lgamma(count + 1) - math.lgamma(k + 1) - math.lgamma(count - k + 1) - count * math.log(2)
        )
        if below > 0.025:
            break
        k += 1
    first = max(0, k - 1)
    return ordered[first], ordered[count - 1 - first]


def figure(name, values):
    """The counters of a figure: its median and the interval of it."""
    low, high = median_interval(values)
    return {name: median(values), f"{name}_low": low, f"{name}_high": high}


def pairs_wanted(otherwise):
    return max(1, int(float(os.environ.get("DEEPREC_BENCH_PAIRS") or otherwise)))


class Figures:
    """Rounds of timings of some sides in turn, and ratios for claims, by the rules of benchmarks/support/figures.hpp.

    A counter with several cases is its least one. sample() calls the round once uncounted, at least 21 times, and goes
    on until the interval of each counter that a claim names lies on one side of the claim's target, or five minutes
    are over. DEEPREC_BENCH_TARGETS has the targets, DEEPREC_BENCH_PAIRS and DEEPREC_BENCH_SECONDS change both numbers.
    The counter `speedup` is over whatever ours was compared with: the least case of all counters over_<side>.
    `partners` are the ids of processes that take part in every round; they are not counted as `others`.
    """

    def __init__(self, name, partners=()):
        self.targets, self.partners = self.targets_of(name), partners
        self.series, self.notes = {}, {}  # {counter: {case: values}}, {name: values}
        self.rounds, self.counts, self.others = 0, True, 0.0

    @staticmethod
    def targets_of(name):
        path = os.environ.get("DEEPREC_BENCH_TARGETS")
        lines = Path(path).read_text(encoding="utf-8").splitlines() if path else []
        words = [line.split() for line in lines]
        return [(counter, float(target)) for of, counter, target in words if of == name]

    def turn(self, sides, case=""):
        """Runs {side: call that returns seconds} one after another, every second round the other way round; their
        seconds."""
        ordered = list(sides) if self.rounds % 2 else list(reversed(sides))
        seconds = {side: sides[side]() for side in ordered}
        for side in sides if self.counts else ():
            self.notes.setdefault(joined(f"{side}_us", case), []).append(1e6 * seconds[side])
        return seconds

    def add(self, counter, value, case=""):
        if self.counts:
            self.series.setdefault(counter, {}).setdefault(case, []).append(value)

    def compare(self, sides, case=""):
        """A turn; over_<side> is how many times faster than that side `ours` is."""
        seconds = self.turn(sides, case)
        for side in sides:
            if side != "ours":
                self.add(f"over_{side}", seconds[side] / seconds["ours"], case)

    def sample(self, one_round):
        others, start = OtherProcesses(self.partners), time.perf_counter()
        least, most_seconds = pairs_wanted(21), float(os.environ.get("DEEPREC_BENCH_SECONDS") or 300)
        self.counts = False
        one_round()
        self.counts = True
        look = least
        while True:
            while self.rounds < look:
                one_round()
                self.rounds += 1
                if self.rounds >= least and time.perf_counter() - start >= most_seconds:
                    look = self.rounds
            self.others = others.share()
            if self.decided() or time.perf_counter() - start >= most_seconds:
                return
            look += max(10, look // 2)  # each look is one more chance to be wrong, so looks become rarer

    def of(self, counter):
        """(median, low, high) of a counter; None: it has no values."""
        names = [name for name in self.series if name.startswith("over_")] if counter == "speedup" else [counter]
        cases = [values for name in names for values in self.series.get(name, {}).values()]
        figures = [(median(values), *median_interval(values)) for values in cases]
        return tuple(min(ends) for ends in zip(*figures)) if figures else None

    def decided(self):
        now = [(self.of(counter), target) for counter, target in self.targets]
        return not any(of and of[1] < target <= of[2] for of, target in now)

    def counters(self):
        made = {}
        for counter in ["speedup", *self.series]:
            of = self.of(counter)
            if of:
                made.update({counter: of[0], f"{counter}_low": of[1], f"{counter}_high": of[2]})
        for counter, cases in self.series.items():
            for case, values in cases.items():
                if case:
                    made.update(figure(joined(counter, case), values))
        made.update({name: median(values) for name, values in self.notes.items()})
        return {**made, "others": self.others, "pairs": float(self.rounds)}


# Samples.


def seconds_of(call, batches):
    start = time.perf_counter()
    for batch in batches:
        call(batch)
    return (time.perf_counter() - start) / len(batches)


def timed(calls, ahead, least_seconds):
    """{side: call that returns the seconds of one call of that side}. A sample takes the next sets of the rotation, as
    many as take the side `least_seconds`."""

    def sample_of(call):
        first = list(itertools.islice(ahead, 3))
        seconds_of(call, first)
        count = max(1, math.ceil(least_seconds / seconds_of(call, first)))
        return lambda: seconds_of(call, list(itertools.islice(ahead, count)))

    return {name: sample_of(call) for name, call in calls.items()}


def joined(name, case):
    return f"{name}_{case}" if case else name


def lines_of(name, counters):
    """A line for each figure, and one for the other counters."""
    figures = [key for key in counters if f"{key}_low" in counters]
    ends = {f"{key}{end}" for key in figures for end in ("_low", "_high")}
    values = [(key, *(counters[key + end] for end in ("", "_low", "_high"))) for key in figures]
    lines = [f"  {key} {middle:.3g} [{low:.3g}..{high:.3g}]" for key, middle, low, high in values]
    others = [f"{key} {value:.4g}" for key, value in counters.items() if key not in ends and key not in figures]
    return "\n".join([f"{name}:", *lines, "  " + ", ".join(others)])


def free_memory():
    """Bytes that programs can have."""
    with open("/proc/meminfo", encoding="ascii") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("MemAvailable:"))


def last_level_cache():
    """Bytes, as the machine says; 32 MB where it does not."""
    sizes = Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size")
    texts = [path.read_text(encoding="ascii").strip() for path in sizes]
    return max((int(text[:-1]) << {"K": 10, "M": 20}[text[-1]] for text in texts), default=32 << 20)


def keep_freed_memory():
    """No mmap for results and no trim of the heap: page faults would be most of a peer's time."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except AttributeError:  # another C library
        return
    trim_threshold, mmap_threshold, arena_max = -1, -3, -8
    mallopt(mmap_threshold, 32 << 20)
    mallopt(trim_threshold, 2**31 - 1)
    mallopt(arena_max, 1)


def load_torch(module):
    """A module that needs PyTorch, which is set as all suites time it."""
    try:
        peer = importlib.import_module(module)
    except ImportError as problem:
        raise Unavailable(f"PyTorch is not installed: {problem}") from problem
    warnings.simplefilter("ignore")  # of PyTorch
    keep_freed_memory()
    peer.torch.set_flush_denormal(True)
    return peer


class OtherProcesses:
    """What other processes had of the processors since this was made; `partners`, ids of processes that are measured with this one, are none.
    Threads that wait for each other actively lose far more to them than those that sleep."""

    def __init__(self, partners=()):
        self.partners = partners
        self.before = self.seconds()

    def seconds(self):
        """Seconds of all processors: of other processes, of none, of this one and its partners."""
        with open("/proc/stat", encoding="ascii") as stat:
            user, nice, system, idle, iowait, irq, softirq, steal = map(int, stat.readline().split()[1:9])
        tick = os.sysconf("SC_CLK_TCK")
        own = sum(os.times()[:4])  # with those of children that ended
        for partner in self.partners:
            words = Path(f"/proc/{partner}/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
            own += (int(words[11]) + int(words[12])) / tick
        return (user + nice + system + irq + softirq + steal) / tick - own, (idle + iowait) / tick, own

    def share(self):
        busy, idle, own = (now - then for now, then in zip(self.seconds(), self.before))
        return max(0.0, busy) / max(busy + idle + own, 1e-9)


# A program of Google Benchmark.


def entry_of(name, counters, microseconds, label=""):
    return {
        "name": name,
        "run_name": name,
        "run_type": "iteration",
        "iterations": 1,
        "real_time": microseconds,
        "cpu_time": microseconds,
        "time_unit": "us",
        "label": label,
        **counters,
    }


def error_of(name, reason):
    return {
        "name": name,
        "run_name": name,
        "run_type": "iteration",
        "error_occurred": True,
        "error_message": reason,
    }


def measured(names, measure, line_of=lines_of):
    """The entries of benchmarks; measure(name) returns the counters and the microseconds of each. A counter `label` is
    its label."""
    entries = []
    for name in names:
        try:
            counters, microseconds = measure(name)
        except Unavailable as problem:
            entries.append(error_of(name, str(problem)))
            print(f"{name}: {problem}", flush=True)
            continue
        label, others = counters.pop("label", ""), counters.get("others", 0)
        if others > MOST_OF_OTHERS:
            label = f"unfit: other processes had {others:.0%} of the processors" + (f"; {label}" if label else "")
        entries.append(entry_of(name, counters, microseconds, label))
        print(line_of(name, counters), *([f"  {label}"] if label else []), sep="\n", flush=True)
    return entries


def run_program(argv, description, options, names, run):
    """Lists or runs benchmarks. options: {option: help}, all texts; run(names, arguments) returns the versions of the
    peers and the entries."""
    parser = argparse.ArgumentParser(description=description)
    for option, text in options.items():
        parser.add_argument(option, default="", help=text)
    parser.add_argument("--benchmark_list_tests", action="store_true")
    parser.add_argument("--benchmark_filter", default=".")
    parser.add_argument("--benchmark_out", default="")
    parser.add_argument("--benchmark_context", default="", help="name=value,...")
    arguments, others = parser.parse_known_args(argv)
    wrong = [other for other in others if not other.startswith("--benchmark_")]
    if wrong:
        parser.error("unknown: " + " ".join(wrong))
    wanted = [name for name in names if re.search(arguments.benchmark_filter, name)]
    if arguments.benchmark_list_tests:
        print("\n".join(wanted))
        return 0
    peers, entries = run(wanted, arguments)
    context = {"executable": os.path.basename(sys.argv[0]), "host_name": platform.node()}
    context.update(pair.split("=", 1) for pair in arguments.benchmark_context.split(",") if "=" in pair)
    context.update({f"peer.{name}": version for name, version in peers.items()})
    if arguments.benchmark_out:
        with open(arguments.benchmark_out, "w", encoding="utf-8") as out:
            json.dump({"context": context, "benchmarks": entries}, out, indent=2)
    else:
        print(json.dumps(entries, indent=2))
    return 0
