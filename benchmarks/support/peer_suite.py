"""What suites in Python share: statistics of pairs, memory, and the arguments and the report of a Google Benchmark
program."""

import argparse
import ctypes
import json
import math
import os
import platform
import re
import sys


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


class OtherProcesses:
    """What other processes had of the processors since this was made. Threads that wait for each other actively lose
    far more to them than those that sleep."""

    def __init__(self):
        self.before = self.seconds()

    @staticmethod
    def seconds():
        """Seconds of all processors: of other processes, of none, of this one."""
        with open("/proc/stat", encoding="ascii") as stat:
            user, nice, system, idle, iowait, irq, softirq, steal = map(int, stat.readline().split()[1:9])
        tick = os.sysconf("SC_CLK_TCK")
        own = sum(os.times()[:4])  # with those of children that ended
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
