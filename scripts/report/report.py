#!/usr/bin/env python3
"""The rows of benchmarks/reproduce.json: runs them, records what was measured, and writes their page.

  report.py suites [ROW]            prints the suites that the rows need
  report.py reproduce [ROW] --claims TOOL --programs FOLDER [-- ARGUMENT...]
                                    runs the suites by the tool of benchmarks/claims, which gets ARGUMENT...
  report.py timeline ROW TRACE [--begin OP] [--steps N]
                                    records some steps from the middle of a trace, for the picture of the row
  report.py page [RECORD...]        writes the page, its plots and the part of the README, and runs nothing

A row (README.md in docs/benchmarks says what it means):

  id, feature, shape, ours, difference                    texts
  published    {figures: [{what, ratio, baseline, figure, unit}], hardware, source}, or null; a figure may have
               its ratio only
  suite, filter   the benchmark of the row, as in claims.json; or untimed: {reason, test} for a row without one
  speedup      its counter over the fastest of its baselines, or null
  baselines    [{name, why, counter}], with suite and filter for those of another benchmark, such as an optional peer
  limit        {name, counter}, with suite and filter likewise, or null
  beside       optional: [{name, counter}] of what is to be read beside the ratio, with suite and filter likewise
  timeline     optional: {file, text}: a trace of some steps beside the page, which its picture shows

A record is {"runs": [{provenance, results}...]} as `reproduce` writes it, or one run as `bench.sh claims --json` does.
Exit code 2: a file that is not what it has to be; 1: a suite failed.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEAST_PAIRS = 21
ROWS_IN_README = 6
BEGIN, END = "<!-- reproduce: begin -->\n", "<!-- reproduce: end -->\n"
PLOTS = {"speedup": "report_speedup.svg", "limit": "report_limit.svg"}


class Problem(Exception):
    """A file that is not what it has to be."""


# Files.


def load_json(path):
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise Problem(f"{path}: {getattr(problem, 'strerror', None) or problem}") from problem
    except json.JSONDecodeError as problem:
        raise Problem(f"{path}: line {problem.lineno}, column {problem.colno}: {problem.msg}") from problem


def write_text(path, text):
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text, encoding="utf-8")


def need(thing, keys, where):
    """Fails where `thing` is no object that has these keys."""
    if not isinstance(thing, dict):
        raise Problem(f"{where} is not an object")
    missing = [key for key in keys if key not in thing]
    if missing:
        raise Problem(f"{where} has no {', '.join(missing)}")


def check_row(row, where):
    need(row, ["id"], where)
    where = f"{where} ({row['id']})"
    need(row, ["feature", "published", "shape", "ours", "baselines", "limit", "difference"], where)
    if "untimed" in row:
        need(row["untimed"], ["reason", "test"], f"{where}: untimed")
    else:
        need(row, ["suite", "filter", "speedup"], where)
        if not row["speedup"] and not row["limit"]:
            raise Problem(f"{where} has neither a speedup nor a limit")
    if row["published"] is not None:
        need(row["published"], ["figures", "hardware", "source"], f"{where}: published")
        for figure in row["published"]["figures"]:
            need(figure, ["what", "ratio"], f"{where}: a published figure")
    for baseline in row["baselines"]:
        need(baseline, ["name", "why", "counter"], f"{where}: a baseline")
    if row["limit"] is not None:
        need(row["limit"], ["name", "counter"], f"{where}: limit")
    for figure in row.get("beside", []):
        need(figure, ["name", "counter"], f"{where}: a figure beside")
    if "timeline" in row:
        need(row["timeline"], ["file", "text"], f"{where}: timeline")


def load_rows(path, only=None):
    rows = load_json(path)
    if not isinstance(rows, list):
        raise Problem(f"{path} is not a list of rows")
    for number, row in enumerate(rows, 1):
        check_row(row, f"{path}: row {number}")
    ids = [row["id"] for row in rows]
    if len(set(ids)) != len(ids):
        raise Problem(f"{path}: two rows have the same id")
    if only and only not in ids:
        raise Problem(f"no row {only}; rows: {' '.join(ids)}")
    return [row for row in rows if not only or row["id"] == only]


def load_runs(path):
    """The runs of a record."""
    record = load_json(path)
    runs = record.get("runs", [record]) if isinstance(record, dict) else None
    if not isinstance(runs, list):
        raise Problem(f"{path} is not a record")
    for run in runs:
        need(run, ["provenance", "results"], f"{path}: a run")
        for result in run["results"]:
            need(result, ["suite", "filter", "counter", "verdict"], f"{path}: a result")
    return runs


# Running.


def benchmark_of(row, part):
    """Suite and filter of a part of a row: a baseline, its limit."""
    return part.get("suite", row.get("suite")), part.get("filter", row.get("filter"))


def parts_of(row):
    """(suite, filter, counter, target) of all that is measured for a row; the target decides how many pairs are
    timed."""
    if "untimed" in row:
        return []
    own = (row["suite"], row["filter"])
    parts = [(*own, row["speedup"], 1.0) if row["speedup"] else (*own, row["limit"]["counter"], 0.0)]
    parts += [
        (*benchmark_of(row, part), part["counter"], 1.0) for part in row["baselines"] if benchmark_of(row, part) != own
    ]
    if row["limit"] and benchmark_of(row, row["limit"]) != own:
        parts.append((*benchmark_of(row, row["limit"]), row["limit"]["counter"], 0.0))
    for figure in row.get("beside", []):
        if all(benchmark_of(row, figure) != part[:2] for part in parts):
            parts.append((*benchmark_of(row, figure), figure["counter"], 0.0))
    return parts


def claims_of(rows):
    """The rows as claims of benchmarks/claims: {suite: [claim...]}."""
    suites = {}
    for row in rows:
        for suite, pattern, counter, target in parts_of(row):
            claims = suites.setdefault(suite, [])
            if any((claim["filter"], claim["counter"]) == (pattern, counter) for claim in claims):
                continue
            source = row["published"]["source"] if row["published"] else "none published"
            claims.append(
                {
                    "id": f"{row['id']}.{suite}",
                    "claim": row["feature"],
                    "suite": suite,
                    "filter": pattern,
                    "counter": counter,
                    "direction": ">=",
                    "target": target,
                    "source": source,
                }
            )
    return suites


def run_suite(tool, programs, claims, arguments):
    """Runs one suite by the tool of claims; its record, and whether something failed."""
    with tempfile.TemporaryDirectory() as folder:
        listed, out = Path(folder, "claims.json"), Path(folder, "out.json")
        listed.write_text(json.dumps(claims), encoding="utf-8")
        command = [tool, "--claims", listed, "--programs", programs, "--json", out, *arguments]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
        if ended.returncode not in (0, 1) or not out.exists():
            raise Problem(f"{tool} ended with {ended.returncode}: {ended.stdout.strip()}")
        return load_runs(out)[0], ended.returncode != 0


def has_figures(result):
    return "counters" in result


def key_of(result):
    return result["suite"], result["filter"], result["counter"]


def merged(runs, new):
    """The recorded runs and a new one, whose results replace those of the same counter. What could not be measured this
    time (no such peer here) does not replace what was measured before."""
    measured = {key_of(result) for run in runs for result in run["results"] if has_figures(result)}

    def counts(result):
        return has_figures(result) or result["verdict"] == "FAILED" or key_of(result) not in measured

    results = [result for result in new["results"] if counts(result)]
    replaced = {key_of(result) for result in results}
    kept = [{**run, "results": [r for r in run["results"] if key_of(r) not in replaced]} for run in runs]
    return [run for run in [*kept, {**new, "results": results}] if run["results"]]


def record_path(folder, suite):
    return Path(folder, f"reproduce_{suite}.json")


def reproduce(options):
    rows = load_rows(options.rows, options.row)
    runs, any_failed = [], False
    for suite, claims in claims_of(rows).items():
        new, failed = run_suite(options.claims, options.programs, claims, options.arguments)
        any_failed = any_failed or failed
        path = record_path(options.records, suite)
        of_suite = merged(load_runs(path) if path.exists() else [], new)
        write_text(path, json.dumps({"runs": of_suite}, indent=1, ensure_ascii=False) + "\n")
        runs += of_suite
    for row in rows:
        print(line_of(row, outcome_of(row, runs)))
    return 1 if any_failed else 0


# What the records say of a row.


def interval_in(result, counter):
    """{median, low, high, pairs} of a counter; low and high are None where there is no interval."""
    counters = result.get("counters", {})
    if result["counter"] == counter and "median" in result:
        return {key: result[key] for key in ("median", "low", "high", "pairs")}
    if counter not in counters:
        return None
    return {
        "median": counters[counter],
        "low": counters.get(f"{counter}_low"),
        "high": counters.get(f"{counter}_high"),
        "pairs": counters.get("pairs", 0),
    }


def find(runs, benchmark, counter):
    """A counter of a benchmark: {figure, result, provenance, reason}; figure is None where there is none."""
    found = {"figure": None, "result": None, "provenance": None, "reason": "never run"}
    for run in runs:
        for result in run["results"]:
            if (result["suite"], result["filter"]) != benchmark:
                continue
            figure = interval_in(result, counter)
            if figure:
                return {"figure": figure, "result": result, "provenance": run["provenance"], "reason": ""}
            reason = result.get("reason") or f"no counter {counter}"
            found.update(result=result, provenance=run["provenance"], reason=reason)
    return found


def baselines_of(row, runs):
    """[(baseline, what is found of it, whether it is of the row's own benchmark)]."""
    own = (row["suite"], row["filter"])
    benchmarks = [(baseline, benchmark_of(row, baseline)) for baseline in row["baselines"]]
    return [
        (baseline, find(runs, benchmark, baseline["counter"]), benchmark == own) for baseline, benchmark in benchmarks
    ]


def best_of(row, runs, baselines):
    """The least speedup, which is over the fastest baseline, with its interval; None: nothing measured."""
    candidates = [(baseline["name"], found) for baseline, found, own in baselines if found["figure"] and not own]
    if row["speedup"]:
        found = find(runs, (row["suite"], row["filter"]), row["speedup"])
        own = [(b["name"], f["figure"]["median"]) for b, f, is_own in baselines if is_own and f["figure"]]
        if found["figure"]:
            candidates.append((min(own, key=lambda pair: pair[1])[0] if own else "the baseline", found))
    if not candidates:
        return None
    name, found = min(candidates, key=lambda candidate: candidate[1]["figure"]["median"])
    return {"over": name, "found": found, **found["figure"]}


def notes_on(best):
    """What limits the evidence."""
    notes = []
    unfit = re.search(r"unfit: ([^;]*)", best["found"]["result"].get("label", ""))
    if unfit:
        notes.append(f"this machine cannot show it: {unfit[1]}")
    if best["pairs"] < LEAST_PAIRS:
        notes.append(f"only {best['pairs']:.0f} pairs")
    if best["low"] is not None and best["low"] < 1 <= best["high"]:
        notes.append("the interval spans 1")
    return notes


def failure_in(found_ones):
    return next((f["reason"] for f in found_ones if f["result"] and f["result"]["verdict"] == "FAILED"), None)


def outcome_of(row, runs):
    """{word, reason, best, baselines, limit, notes, used}; `used` are the provenances."""
    outcome = {
        "word": "no time",
        "reason": "",
        "best": None,
        "baselines": [],
        "limit": None,
        "beside": [],
        "notes": [],
        "used": [],
    }
    if "untimed" in row:
        return {**outcome, "reason": row["untimed"]["reason"]}
    baselines = baselines_of(row, runs)
    limit = find(runs, benchmark_of(row, row["limit"]), row["limit"]["counter"]) if row["limit"] else None
    itself = find(runs, (row["suite"], row["filter"]), row["speedup"] or row["limit"]["counter"])
    best = best_of(row, runs, baselines)
    found_ones = [itself, *[found for _, found, _ in baselines], *([limit] if limit else [])]
    outcome.update(
        baselines=baselines,
        limit=limit,
        best=best,
        beside=[(f, find(runs, benchmark_of(row, f), f["counter"])) for f in row.get("beside", [])],
        used=[found["provenance"] for found in found_ones if found["figure"]],
    )
    failure = failure_in(found_ones + [found for _, found in outcome["beside"]])
    if failure:
        return {**outcome, "word": "FAILED", "reason": failure}
    if best:
        return {**outcome, "word": "WON" if best["median"] >= 1 else "LOST", "notes": notes_on(best)}
    if limit and limit["figure"]:
        return {**outcome, "word": "no baseline"}
    return {
        **outcome,
        "word": "never run",
        "reason": "" if itself["reason"] == "never run" else itself["reason"],
    }


# Words.


def number(value):
    size = abs(value)
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.2f}"


def times(value):
    return f"{number(value)}×"


def published_times(ratio):
    return f"{ratio}×" if isinstance(ratio, int) else f"{ratio:.2f}×"


def cell(text):
    return text.replace("|", "\\|")


def range_of(figure):
    return "" if figure["low"] is None else f"{number(figure['low'])} .. {number(figure['high'])}"


def published_ratios(row):
    """Each ratio, with its model or shape where there are several."""
    figures = row["published"]["figures"] if row["published"] else []
    if len(figures) == 1:
        return published_times(figures[0]["ratio"])
    return ", ".join(f"{published_times(figure['ratio'])} ({figure['what']})" for figure in figures) or "–"


def published_figures(row):
    if not row["published"]:
        return "nothing"
    words = []
    for figure in row["published"]["figures"]:
        measured = f"{figure['baseline']} to {figure['figure']} {figure['unit']}, " if "baseline" in figure else ""
        words.append(f"{figure['what']}: {measured}{published_times(figure['ratio'])}")
    return f"{'; '.join(words)}. {row['published']['hardware']} ({row['published']['source']})"


def greatest_published(row):
    return max((figure["ratio"] for figure in row["published"]["figures"]), default=None) if row["published"] else None


def share_of(outcome):
    limit = outcome["limit"]
    return number(limit["figure"]["median"]) if limit and limit["figure"] else "–"


def line_of(row, outcome):
    """A row on a terminal."""
    words = [f"{outcome['word']:<11} {row['id']:<20} published {published_ratios(row)}"]
    best = outcome["best"]
    if best:
        words.append(f"ours {times(best['median'])} [{range_of(best)}] over {best['over']}")
    if outcome["limit"] and outcome["limit"]["figure"]:
        words.append(f"{share_of(outcome)} of the limit ({row['limit']['name']})")
    words += [f"({note})" for note in [outcome["reason"], *outcome["notes"]] if note]
    words += [f"(no {b['name']}: {f['reason']})" for b, f, _ in outcome["baselines"] if best and not f["figure"]]
    return "  ".join(words)


# Provenance.


def machine_of(provenance):
    recorded = provenance.get("recorded")
    if recorded:
        return recorded[0].get("card", recorded[0].get("host_name", "another machine"))
    words = f"{provenance.get('cpu') or 'an unnamed CPU'}, {provenance.get('cores', '?')} CPUs"
    largest = max(provenance.get("caches", {}).values(), default=0)
    words += f", last-level cache {largest >> 20} MB" if largest else ""
    huge = provenance.get("pages", {}).get("huge")
    words += f", huge pages: {huge}" if huge else ""
    return words + (f", {provenance['kernel']}" if "kernel" in provenance else "")


def build_of(provenance):
    changes = " with changes" if provenance.get("dirty") else ""
    words = f"commit {provenance.get('commit', 'unknown')[:12]}{changes}, {provenance.get('date', 'no date')[:10]}"
    words += f", {provenance.get('compiler', 'unknown compiler')} {provenance.get('flags', '').strip()}".rstrip()
    peers = [f"{name} {version}" for name, version in provenance.get("peers", {}).items()]
    return words + (f". Peers: {', '.join(peers)}" if peers else "")


def provenance_of(rows, outcomes):
    """Machines, and under each its builds with their rows."""
    machines = {}
    for row, outcome in zip(rows, outcomes):
        for provenance in outcome["used"]:
            ids = machines.setdefault(machine_of(provenance), {}).setdefault(build_of(provenance), [])
            if row["id"] not in ids:
                ids.append(row["id"])
    lines = []
    for machine, builds in machines.items():
        lines += [
            f"{machine}:",
            "",
            *[f"- {', '.join(f'`{i}`' for i in ids)}: {build}." for build, ids in builds.items()],
            "",
        ]
    return lines or ["Nothing is recorded.", ""]


# The page.


def table_of(rows, outcomes, page=""):
    lines = [
        "| row | published | ours | 95 % of the median | share of the limit | |",
        "|---|---|---|---|---|---|",
    ]
    for row, outcome in zip(rows, outcomes):
        best = outcome["best"]
        lines.append(
            f"| [{cell(row['feature'])}]({page}#{row['id']}) | {cell(published_ratios(row))} | "
            f"{times(best['median']) if best else '–'} | {range_of(best) if best else '–'} | {share_of(outcome)} | "
            f"{outcome['word']} |"
        )
    return lines


def summary_of(outcomes):
    counts = {}
    for outcome in outcomes:
        counts[outcome["word"]] = counts.get(outcome["word"], 0) + 1
    order = ["WON", "LOST", "FAILED", "no baseline", "no time", "never run"]
    return f"{len(outcomes)} rows: " + ", ".join(f"{counts[word]} {word}" for word in order if word in counts) + "."


def own_times(found):
    """Of a framework's op: its time, what a run of it costs beside it, and ours."""
    counters = found["result"].get("counters", {}) if found["figure"] else {}
    if "op_overhead_us" not in counters:
        return ""
    theirs, overhead, ours = (number(counters[key]) for key in ("tensorflow_us", "op_overhead_us", "ours_us"))
    return f": {theirs} µs for the op, {overhead} µs beside it in a run, ours {ours} µs"


def baseline_line(baseline, found):
    figure = found["figure"]
    measured = f"{times(figure['median'])}" if figure else f"not measured, {found['reason']}"
    interval = f" ({range_of(figure)})" if figure and figure["low"] is not None else ""
    return f"  - {baseline['name']}: {measured}{interval}{own_times(found)}. {baseline['why']}"


def result_line(outcome):
    best = outcome["best"]
    if not best:
        return f"- Result: {outcome['word']}{': ' + outcome['reason'] if outcome['reason'] else ''}"
    why = "; ".join(note for note in [outcome["reason"], *outcome["notes"]] if note)
    return (
        f"- Result: **{outcome['word']}**, {times(best['median'])} over the fastest baseline ({best['over']}), "
        f"95 % of the median {range_of(best) or 'unknown'}, {best['pairs']:.0f} pairs" + (f"; {why}" if why else "")
    )


def limit_line(row, outcome):
    limit = outcome["limit"]
    if not row["limit"] or "untimed" in row:
        return "- Limit: none is measured"
    if not limit["figure"]:
        return f"- Limit: {row['limit']['name']}; not measured, {limit['reason']}"
    interval = range_of(limit["figure"])
    return f"- Limit: {row['limit']['name']}; share {share_of(outcome)}" + (f" ({interval})" if interval else "")


def beside_line(figure, found):
    return f"  - {figure['name']}: " + (
        f"{found['figure']['median']:.4g}" if found["figure"] else f"not measured, {found['reason']}"
    )


def section_of(row, outcome):
    lines = [
        f'<a id="{row["id"]}"></a>',
        "",
        f"### {row['feature']} (`{row['id']}`)",
        "",
        f"- Published: {published_figures(row)}",
        f"- Shape: {row['shape']}",
        f"- Ours: {row['ours']}",
        result_line(outcome),
    ]
    if outcome["baselines"]:
        lines += ["- Baselines, ours is so many times faster:"]
        lines += [baseline_line(baseline, found) for baseline, found, _ in outcome["baselines"]]
    if outcome["beside"]:
        lines += ["- Beside it:", *[beside_line(figure, found) for figure, found in outcome["beside"]]]
    if "untimed" in row:
        lines.append(f"- Test of the numerics: {row['untimed']['test']}")
    else:
        lines += [limit_line(row, outcome), f"- Benchmark: `{row['filter']}` of the suite `{row['suite']}`"]
    lines += [f"- Why the ratio differs: {row['difference']}", ""]
    if outcome["timeline"]:
        lines += [f"![{row['timeline']['text']}]({timeline_plot(row)})", "", row["timeline"]["text"], ""]
    return lines


def timeline_plot(row):
    return f"report_timeline_{row['id']}.svg"


def missing_peers(rows, outcomes):
    """Baselines of other suites without a figure, by the reason."""
    reasons = {}
    for row, outcome in zip(rows, outcomes):
        for baseline, found, own in outcome["baselines"]:
            if not own and not found["figure"]:
                reasons.setdefault(found["reason"], []).append(f"{baseline['name']} (`{row['id']}`)")
    return [f"- {', '.join(names)}: {reason}." for reason, names in reasons.items()] or ["None."]


def rows_never_run(rows, outcomes):
    lines = [
        f"- `{row['id']}`{': ' + outcome['reason'] if outcome['reason'] else ''}"
        for row, outcome in zip(rows, outcomes)
        if outcome["word"] == "never run"
    ]
    return lines or ["None."]


INTRODUCTION = """# Published figures and ours

Figures that DeepRec's documents publish for what this library has too, beside what was measured here.
`scripts/bench.sh reproduce [ROW]` measures and records them; `scripts/bench.sh report` writes this page from records.
[README.md](README.md#published-figures) explains the words.
"""


def page_of(rows, outcomes):
    lines = [
        INTRODUCTION,
        "## All rows",
        "",
        summary_of(outcomes),
        "",
        *table_of(rows, outcomes),
        "",
        f"![Speedup over the fastest baseline, beside the published one]({PLOTS['speedup']})",
        "",
        f"![Share of the limit]({PLOTS['limit']})",
        "",
        "## Rows",
        "",
    ]
    for row, outcome in zip(rows, outcomes):
        lines += section_of(row, outcome)
    lines += [
        "## Peers that were missing",
        "",
        *missing_peers(rows, outcomes),
        "",
        "## Rows that were never run",
        "",
        *rows_never_run(rows, outcomes),
        "",
        "## Provenance",
        "",
        *provenance_of(rows, outcomes),
    ]
    return "\n".join(lines).rstrip() + "\n"


def readme_part(rows, outcomes, folder):
    """The head of the table, rows that were measured first, and the first plot."""
    pairs = sorted(zip(rows, outcomes), key=lambda pair: pair[1]["best"] is None)[:ROWS_IN_README]
    head = table_of(*zip(*pairs), f"{folder}/report.md") if pairs else []
    return "\n".join(
        [
            "",
            summary_of(outcomes),
            "",
            *head,
            "",
            f"[All rows, with baselines, limits and machines]({folder}/report.md)",
            "",
            f"![Speedup over the fastest baseline, beside the published one]({folder}/{PLOTS['speedup']})",
            "",
            "",
        ]
    )


def replaced_part(path, text, part):
    begin, end = text.find(BEGIN), text.find(END)
    if begin < 0 or end < begin:
        raise Problem(f"{path} has no lines {BEGIN.strip()} and {END.strip()}")
    return text[: begin + len(BEGIN)] + part + text[end:]


def plot_points(rows, outcomes):
    """What plots.py draws."""
    return [
        {
            "id": row["id"],
            "word": outcome["word"],
            "published": greatest_published(row),
            "speedup": outcome["best"] and {key: outcome["best"][key] for key in ("median", "low", "high")},
            "share": outcome["limit"] and outcome["limit"]["figure"],
            "limit": row["limit"] and row["limit"]["name"],
        }
        for row, outcome in zip(rows, outcomes)
    ]


def write_plots(rows, outcomes, folder):
    sys.dont_write_bytecode = True  # no __pycache__ among the sources
    try:
        import plots
    except ImportError as problem:
        raise Problem(
            f"no matplotlib for {sys.executable} ({problem}); --no-plots leaves the plots as they are"
        ) from problem
    points = plot_points(rows, outcomes)
    drawn = [point for point in points if point["word"] != "no time" and (point["published"] or point["speedup"])]
    plots.speedups(drawn, folder / PLOTS["speedup"])
    plots.shares([point for point in points if point["share"]], folder / PLOTS["limit"])
    for row, outcome in zip(rows, outcomes):
        if outcome["timeline"]:
            plots.timeline(*outcome["timeline"], folder / timeline_plot(row))


def page(options):
    rows = load_rows(options.rows)
    records = options.record or sorted(Path(options.page).parent.glob(record_path("", "*").name))
    runs = [run for record in records for run in load_runs(record)]
    outcomes = [outcome_of(row, runs) for row in rows]
    target, readme = Path(options.page), Path(options.readme)
    for row, outcome in zip(rows, outcomes):
        trace = "timeline" in row and target.parent / row["timeline"]["file"]
        outcome["timeline"] = load_trace(trace) if trace and trace.exists() else None
    folder = Path(os.path.relpath(target.parent, readme.parent)).as_posix()
    try:
        text = readme.read_text(encoding="utf-8")
    except OSError as problem:
        raise Problem(f"{readme}: {problem.strerror}") from problem
    text = replaced_part(readme, text, readme_part(rows, outcomes, folder))  # before anything is written
    if not options.no_plots:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_plots(rows, outcomes, target.parent)
    write_text(target, page_of(rows, outcomes))
    write_text(readme, text)
    return 0


def load_trace(path):
    """The spans (thread, begin, length, name) of the ops in a trace, in microseconds, and the names of its threads."""
    trace = load_json(path)
    need(trace, ["traceEvents"], path)
    spans, threads = [], {}
    for event in trace["traceEvents"]:
        need(event, ["ph", "name", "tid"], f"{path}: an event")
        if event["ph"] == "M" and event["name"] == "thread_name":
            threads[event["tid"]] = event["args"]["name"]
        elif event["ph"] == "X" and event.get("cat") == "op":
            need(event, ["ts", "dur"], f"{path}: a span")
            spans.append((event["tid"], event["ts"], event["dur"], event["name"]))
    return spans, threads


def timeline(options):
    row = load_rows(options.rows, options.row)[0]
    need(row, ["timeline"], f"{options.rows}: row {options.row}")
    spans, threads = load_trace(options.trace)
    begins = sorted(begin for _, begin, _, name in spans if name == options.begin)
    first = len(begins) // 2
    if len(begins) <= first + options.steps:
        raise Problem(f"{options.trace}: {len(begins)} spans of {options.begin} are too few")
    begin, end = begins[first], begins[first + options.steps]
    numbers = {}  # of threads with spans, in order
    events = []
    for thread, at, took, name in sorted(spans):
        if begin <= at and at + took <= end:
            number = numbers.setdefault(thread, len(numbers))
            events.append(
                {"ph": "X", "cat": "op", "name": name, "pid": 1, "tid": number, "ts": round(at - begin, 3), "dur": took}
            )
    for thread, number in numbers.items():
        name = threads.get(thread, f"thread {number}")
        events.insert(number, {"ph": "M", "name": "thread_name", "pid": 1, "tid": number, "args": {"name": name}})
    lines = ",\n".join(json.dumps(event, sort_keys=True) for event in events)
    write_text(Path(options.records) / row["timeline"]["file"], f'{{"traceEvents": [\n{lines}\n]}}\n')
    return 0


def suites(options):
    print("\n".join(claims_of(load_rows(options.rows, options.row))))
    return 0


def options_of(argv):
    parser = argparse.ArgumentParser(prog="report.py", description="Rows of published comparisons")
    parser.add_argument("--rows", default=ROOT / "benchmarks/reproduce.json", help="the rows")
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("suites", help="print the suites that rows need")
    command.add_argument("row", nargs="?")
    command.set_defaults(run=suites)
    command = commands.add_parser("reproduce", help="run rows and record them; what follows -- goes to the tool")
    command.add_argument("row", nargs="?")
    command.add_argument("--claims", required=True, help="the tool of benchmarks/claims")
    command.add_argument("--programs", required=True, help="the folder of the programs bench_<suite>")
    command.add_argument("--records", default=ROOT / "docs/benchmarks", help="the folder of the records")
    command.set_defaults(run=reproduce)
    command = commands.add_parser("timeline", help="record some steps of a trace for the picture of a row")
    command.add_argument("row")
    command.add_argument("trace", help="a trace as train_ctr --trace writes it")
    command.add_argument("--begin", default="lookup", help="the op with which a step begins")
    command.add_argument("--steps", type=int, default=3)
    command.add_argument("--records", default=ROOT / "docs/benchmarks", help="the folder of the records")
    command.set_defaults(run=timeline)
    command = commands.add_parser("page", help="write the page from records")
    command.add_argument("record", nargs="*", help="those beside the page, unless they are named")
    command.add_argument("--page", default=ROOT / "docs/benchmarks/report.md")
    command.add_argument("--readme", default=ROOT / "README.md")
    command.add_argument("--no-plots", action="store_true", help="leave the plots as they are")
    command.set_defaults(run=page)
    at = argv.index("--") if "--" in argv else len(argv)
    options = parser.parse_args(argv[:at])
    options.arguments = argv[at + 1 :]
    return options


def main(argv):
    options = options_of(argv)
    try:
        return options.run(options)
    except Problem as problem:
        print(f"report: {problem}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
