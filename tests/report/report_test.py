#!/usr/bin/env python3
"""report_test.py page | plots | reproduce CLAIMS TINY   scripts/report on rows and records made up here.

page        the page, the part of the README, lines of rows, records and faults in files; no plots
plots       the plots, with matplotlib; exit code 77 where there is none
reproduce   runs rows by the tool CLAIMS on the suite TINY of tests/claims, whose clock is not the machine's, and on
            TensorFlow's suite where there is no TensorFlow
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).resolve().parents[2]
REPORT = ROOT / "scripts/report/report.py"
PEER = ROOT / "benchmarks/ops/tensorflow_peer.py"
MODELS = ROOT / "benchmarks/peers/peers.py"
FRAMEWORKS = ROOT / "benchmarks/frameworks/torch_suite.py"
FRAMEWORKS_TF = ROOT / "benchmarks/frameworks_tf/tensorflow_suite.py"
EMPTY_README = "# Title\nbefore\n<!-- reproduce: begin -->\nold\n<!-- reproduce: end -->\nafter\n"


def baseline(counter, **other):
    return {"name": f"over {counter}", "why": "It is fair.", "counter": counter, **other}


def row(name, **other):
    published = {
        "figures": [{"what": "(8, 8)", "baseline": 3.0, "figure": 1.5, "unit": "ms", "ratio": 2.0}],
        "hardware": "a machine",
        "source": "a document",
    }
    made = {
        "id": name,
        "feature": f"Feature {name}",
        "published": published,
        "shape": "(8, 8)",
        "ours": "verb",
        "suite": "s",
        "filter": f"s/{name}",
        "speedup": "speedup",
        "baselines": [baseline("speedup_o2"), baseline("speedup_native")],
        "limit": {"name": "the limit", "counter": "roofline"},
        "difference": f"Reason of {name}.",
    }
    return {**made, **other}


PEER_BASELINE = baseline("speedup", suite="peer", filter="peer/op")
ROWS = [
    row(
        "won",
        baselines=[baseline("speedup_o2"), baseline("speedup_native"), PEER_BASELINE],
        beside=[
            {"name": "AUC", "counter": "auc"},
            {"name": "that of share", "filter": "s/share", "counter": "roofline"},
            {"name": "AUC of none", "counter": "auc_none"},
        ],
    ),
    row("lost"),
    row("close", baselines=[baseline("speedup_o2")]),
    row("share", speedup=None, baselines=[], published=None),
    row("gone"),
    row("wrong"),
    row("never"),
]
UNTIMED = row("untimed", untimed={"reason": "No unit for it.", "test": "a_test.cpp"}, baselines=[], limit=None)
del UNTIMED["suite"], UNTIMED["filter"], UNTIMED["speedup"]
ROWS.append(UNTIMED)


def result(name, counters, suite="s", counter="speedup", **other):
    figures = {}
    if counters:
        counters = {"pairs": 21.0, **counters}
        figures = {
            "median": counters[counter],
            "low": counters.get(f"{counter}_low", 0),
            "pairs": counters["pairs"],
            "high": counters.get(f"{counter}_high", 0),
            "counters": counters,
        }
    return {
        "id": name,
        "suite": suite,
        "filter": f"{suite}/{name}",
        "counter": counter,
        "verdict": "holds",
        **figures,
        **other,
    }


def around(counter, value):
    return {counter: value, f"{counter}_low": value * 0.98, f"{counter}_high": value * 1.02}


RESULTS = [
    result("won", {**around("speedup", 2.5), "speedup_o2": 4.0, "speedup_native": 2.5, "auc": 0.81234, **around("roofline", 0.9)}),
    result(
        "lost",
        {**around("speedup", 0.8), "speedup_o2": 0.8, "speedup_native": 0.9, **around("roofline", 0.7)},
    ),
    result(
        "close",
        {**around("speedup", 1.01), "speedup_o2": 1.01, "pairs": 5.0},
        label="best of all; unfit: one CPU; more",
    ),
    result("share", around("roofline", 0.95), counter="roofline"),
    result("gone", None, verdict="ABSENT", reason="no program bench_s here"),
    result("wrong", None, verdict="FAILED", reason="wrong answer: row 3"),
    result("op", None, suite="peer", verdict="ABSENT", reason="no peer here"),
]
PROVENANCE = {
    "commit": "0123456789abcdef",
    "dirty": True,
    "date": "2026-01-02T03:04:05Z",
    "cpu": "A CPU",
    "cores": 4,
    "caches": {"L3": 33554432},
    "compiler": "GNU 12",
    "flags": "-O3",
    "peers": {"libeigen3-dev": "3.4"},
}


class Case(unittest.TestCase):
    plots = False

    def setUp(self):
        self.work = Path(tempfile.mkdtemp())
        self.addCleanup(shutil.rmtree, self.work)
        self.write("rows.json", ROWS)
        self.write("records.json", {"runs": [{"provenance": PROVENANCE, "results": RESULTS}]})
        self.write("README.md", EMPTY_README)

    def write(self, name, content):
        path = self.work / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
        return path

    def run_report(self, *arguments, rows="rows.json", environment=None):
        command = [sys.executable, REPORT, "--rows", self.work / rows, *arguments]
        return subprocess.run(
            command,
            capture_output=True,
            text=True,
            check=False,
            cwd=self.work,
            env={**os.environ, **(environment or {})},
        )

    def make_page(self, *records, rows="rows.json", plots=False):
        return self.run_report(
            "page",
            "--page",
            self.work / "docs/report.md",
            "--readme",
            self.work / "README.md",
            *([] if plots else ["--no-plots"]),
            *records,
            rows=rows,
        )

    def text(self, name="docs/report.md"):
        return (self.work / name).read_text(encoding="utf-8")

    def section(self, name):
        return self.text().split(f"(`{name}`)\n")[1].split("<a id=")[0]

    def expect(self, ended, code):
        self.assertEqual(ended.returncode, code, ended.stdout + ended.stderr)
        return ended.stdout + ended.stderr


class Page(Case):
    def setUp(self):
        super().setUp()
        self.expect(self.make_page("records.json"), 0)

    def test_headings_and_rows_are_in_order(self):
        headings = [line for line in self.text().splitlines() if line.startswith("#")]
        rows = [f"### Feature {r['id']} (`{r['id']}`)" for r in ROWS]
        self.assertEqual(
            headings,
            [
                "# Published figures and ours",
                "## All rows",
                "## Rows",
                *rows,
                "## Peers that were missing",
                "## Rows that were never run",
                "## Provenance",
            ],
        )
        table = [line.split("](#")[1].split(")")[0] for line in self.text().splitlines() if line.startswith("| [")]
        self.assertEqual(table, [r["id"] for r in ROWS])

    def test_each_row_has_its_result(self):
        words = {
            line.split("](#")[1].split(")")[0]: line.split(" | ")[-1].strip(" |")
            for line in self.text().splitlines()
            if line.startswith("| [")
        }
        self.assertEqual(
            words,
            {
                "won": "WON",
                "lost": "LOST",
                "close": "WON",
                "share": "no baseline",
                "gone": "never run",
                "wrong": "FAILED",
                "never": "never run",
                "untimed": "no time",
            },
        )
        self.assertIn("8 rows: 2 WON, 1 LOST, 1 FAILED, 1 no baseline, 1 no time, 2 never run.", self.text())

    def test_a_row_has_its_fields(self):
        won = self.section("won")
        for words in (
            "Published: (8, 8): 3.0 to 1.5 ms, 2.00×. a machine (a document)",
            "Shape: (8, 8)",
            "Ours: verb",
            "**WON**, 2.50× over the fastest baseline (over speedup_native), 95 % of the median 2.45 .. 2.55, 21 pairs",
            "over speedup_o2: 4.00×. It is fair.",
            "Limit: the limit; share 0.90 (0.88 .. 0.92)",
            "Beside it:\n  - AUC: 0.8123\n  - that of share: 0.95\n  - AUC of none: not measured, no counter auc_none\n",
            "`s/won` of the suite `s`",
            "Why the ratio differs: Reason of won.",
        ):
            self.assertIn(words, won)

    def test_a_lost_row_is_lost(self):
        self.assertIn("**LOST**, 0.80× over the fastest baseline (over speedup_o2)", self.section("lost"))

    def test_weak_evidence_is_named(self):
        self.assertIn("this machine cannot show it: one CPU; only 5 pairs; the interval spans 1", self.section("close"))

    def test_rows_without_figures_have_reasons(self):
        self.assertIn("Result: FAILED: wrong answer: row 3", self.section("wrong"))
        self.assertIn("Result: no time: No unit for it.", self.section("untimed"))
        self.assertIn("Test of the numerics: a_test.cpp", self.section("untimed"))
        never = self.text().split("## Rows that were never run\n")[1].split("##")[0]
        self.assertEqual(never.split("\n")[1:3], ["- `gone`: no program bench_s here", "- `never`"])

    def test_a_missing_peer_is_named(self):
        self.assertIn("over speedup: not measured, no peer here.", self.section("won"))
        missing = self.text().split("## Peers that were missing\n")[1].split("##")[0]
        self.assertEqual(missing.strip(), "- over speedup (`won`): no peer here.")

    def test_a_faster_peer_decides(self):
        peer = {
            "provenance": {**PROVENANCE, "cpu": "Another CPU"},
            "results": [result("op", around("speedup", 0.5), suite="peer")],
        }
        self.write("peer.json", peer)  # one run, as claims --json writes it
        self.expect(self.make_page("records.json", "peer.json"), 0)
        self.assertIn("**LOST**, 0.50× over the fastest baseline (over speedup)", self.section("won"))
        self.assertIn("Another CPU, 4 CPUs", self.text())
        self.assertTrue(self.text().split("## Peers that were missing\n")[1].strip().startswith("None."))

    def test_a_frameworks_cost_beside_the_op_is_shown_apart(self):
        counters = {**around("speedup", 3.0), "tensorflow_us": 30.0, "op_overhead_us": 120.4, "ours_us": 10.0}
        self.write("peer.json", {"provenance": PROVENANCE, "results": [result("op", counters, suite="peer")]})
        self.expect(self.make_page("records.json", "peer.json"), 0)
        self.assertIn(
            "3.00× (2.94 .. 3.06): 30.0 µs for the op, 120 µs beside it in a run, ours 10.0 µs. It", self.section("won")
        )

    def test_provenance(self):
        self.assertIn("A CPU, 4 CPUs, last-level cache 32 MB:", self.text())
        self.assertIn(
            "- `won`, `lost`, `close`, `share`: commit 0123456789ab with changes, 2026-01-02, GNU 12 -O3. Peers: "
            "libeigen3-dev 3.4.",
            self.text(),
        )

    def test_the_readme_gets_its_part_and_keeps_the_rest(self):
        readme = self.text("README.md")
        self.assertTrue(readme.startswith("# Title\nbefore\n<!-- reproduce: begin -->\n"))
        self.assertTrue(readme.endswith("<!-- reproduce: end -->\nafter\n"))
        self.assertNotIn("old", readme)
        self.assertIn("| [Feature lost](docs/report.md#lost) | 2.00× | 0.80× | 0.78 .. 0.82 | 0.70 | LOST |", readme)
        self.assertIn("(docs/report_speedup.svg)", readme)
        self.expect(self.make_page("records.json"), 0)
        self.assertEqual(self.text("README.md"), readme)

    def test_without_records_nothing_was_run(self):
        self.expect(self.make_page(), 0)
        self.assertIn("8 rows: 1 no time, 7 never run.", self.text())
        self.assertIn("Nothing is recorded.", self.text())

    def test_records_beside_the_page_are_read(self):
        shutil.copy(self.work / "records.json", self.work / "docs/reproduce_s.json")
        self.expect(self.make_page(), 0)
        self.assertIn("2 WON", self.text())


class Faults(Case):
    def fails(self, pattern, *records, rows="rows.json"):
        said = self.expect(self.make_page(*records, rows=rows), 2)
        self.assertRegex(said, pattern)
        self.assertEqual(len(said.splitlines()), 1)
        self.assertFalse((self.work / "docs").exists())
        self.assertEqual(self.text("README.md") if (self.work / "README.md").exists() else "", self.readme)

    def setUp(self):
        super().setUp()
        self.readme = EMPTY_README

    def test_records(self):
        self.write("cut.json", '{"runs": [\n{"provenance"')
        self.fails(r"^report: cut\.json: line 2, column 14: Expecting ':' delimiter", "cut.json")
        self.fails(r"^report: nowhere\.json: No such file", "nowhere.json")
        self.write("list.json", [1])
        self.fails(r"^report: list\.json is not a record", "list.json")
        self.write("run.json", {"runs": [{"results": []}]})
        self.fails(r"^report: run\.json: a run has no provenance", "run.json")
        self.write("result.json", {"runs": [{"provenance": {}, "results": [{"suite": "s"}]}]})
        self.fails(r"^report: result\.json: a result has no filter, counter, verdict", "result.json")

    def test_rows(self):
        def fails_with(rows, pattern):
            self.write("bad.json", rows)
            self.fails(pattern, rows="bad.json")

        fails_with({}, "is not a list of rows")
        fails_with([{}], r"row 1 has no id$")
        fails_with([row("a"), row("a")], "two rows have the same id")
        without = row("a")
        del without["shape"], without["ours"]
        fails_with([row("b"), without], r"row 2 \(a\) has no shape, ours$")
        fails_with([row("a", speedup=None, limit=None)], "neither a speedup nor a limit")
        fails_with([row("a", baselines=[{"name": "x", "counter": "y"}])], r"row 1 \(a\): a baseline has no why")
        fails_with([row("a", beside=[{"name": "x"}])], r"row 1 \(a\): a figure beside has no counter")
        fails_with(
            [row("a", published={"figures": [{"what": "x"}], "hardware": "", "source": ""})],
            "a published figure has no ratio",
        )

    def test_readme_without_markers(self):
        self.readme = "# Title\n"
        self.write("README.md", self.readme)
        self.fails(r"README\.md has no lines <!-- reproduce: begin -->", "records.json")

    def test_a_row_that_does_not_exist(self):
        self.assertIn("no row nothing; rows: won lost", self.expect(self.run_report("suites", "nothing"), 2))

    def test_suites(self):
        self.assertEqual(self.expect(self.run_report("suites"), 0), "s\npeer\n")
        self.assertEqual(self.expect(self.run_report("suites", "lost"), 0), "s\n")


class RowsOfTheRepository(Case):
    def test_they_are_rows_and_their_suites_are_known(self):
        shutil.copy(ROOT / "benchmarks/reproduce.json", self.work / "rows.json")
        self.expect(self.make_page(), 0)
        rows = {r["id"]: r for r in json.loads((ROOT / "benchmarks/reproduce.json").read_text(encoding="utf-8"))}
        for r in rows.values():
            self.assertTrue("untimed" in r or r["filter"].startswith(f"{r['suite']}/"), r["id"])

    def test_the_peers_benchmarks_exist(self):
        programs = {"tensorflow": PEER, "peers": MODELS, "frameworks": FRAMEWORKS, "frameworks_tf": FRAMEWORKS_TF}
        for suite, program in programs.items():
            listed = subprocess.run(
                [sys.executable, program, "--benchmark_list_tests"], capture_output=True, text=True, check=True
            ).stdout.split()
            rows = json.loads((ROOT / "benchmarks/reproduce.json").read_text(encoding="utf-8"))
            claims = json.loads((ROOT / "benchmarks/claims.json").read_text(encoding="utf-8"))
            parts = [part for r in rows for part in (r, *r["baselines"])] + claims
            wanted = {part["filter"] for part in parts if part.get("suite") == suite}
            self.assertTrue(wanted)
            self.assertEqual(wanted - set(listed), set())

    def test_the_interval_is_that_of_the_suites(self):
        sys.path.insert(0, str(ROOT / "benchmarks/support"))
        import peer_suite

        self.assertEqual(peer_suite.median_interval(list(range(21))), (5, 15))
        self.assertEqual(peer_suite.median_interval([3, 1, 2]), (1, 3))
        low, high = peer_suite.median_interval([i / 2000 for i in range(1, 20001)])
        self.assertEqual((round(low, 3), round(high, 2)), (4.931, 5.07))

    def expect_reason(self, reason, program, *arguments, **environment):
        """The program measures nothing and says why."""
        out = self.work / "out.json"
        ended = subprocess.run(
            [sys.executable, program, *arguments, "--benchmark_out", out],
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHONPATH": str(self.work), **environment},
            check=True,
        )
        self.assertIn(f"SKIPPED: {reason}", ended.stdout)
        entries = json.loads(out.read_text(encoding="utf-8"))["benchmarks"]
        self.assertEqual({entry["error_message"] for entry in entries}, {reason})

    def test_models_without_pytorch(self):
        self.write("torch.py", "raise ImportError('none in this test')")
        self.write("numpy.py", "")
        (self.work / "data/criteo").mkdir(parents=True)
        self.write("data/criteo/criteo_kaggle_merged_24k.tsv", "")
        reasons = {sys.executable: "PyTorch is not installed: none in this test", "": "train_ctr is not built"}
        for program, reason in reasons.items():
            self.expect_reason(reason, MODELS, "--train-ctr", program, DEEPREC_DATA_DIR=str(self.work / "data"))

    def test_frameworks_without_pytorch(self):
        self.write("torch.py", "raise ImportError('none in this test')")
        self.write("numpy.py", "")
        self.expect_reason("PyTorch is not installed: none in this test", FRAMEWORKS)

    def test_frameworks_without_tensorflow(self):
        self.write("tensorflow.py", "raise ImportError('none in this test')")
        self.expect_reason("TensorFlow is not installed: none in this test", FRAMEWORKS_TF)

    def test_frameworks_without_our_package_for_tensorflow(self):
        """A TensorFlow that has what modules need at their beginning."""
        self.write("tensorflow.py", "import types\n\ncompat = types.SimpleNamespace(v1=None)\n")
        for module in ("numpy", "deeprec_tf"):
            self.write(f"{module}.py", "" if module == "numpy" else "raise ImportError('none in this test')")
        self.expect_reason("deeprec_tf is not installed: none in this test", FRAMEWORKS_TF)

    def test_frameworks_without_our_package(self):
        """A PyTorch that has what modules need at their beginning."""
        nn = "nn = types.SimpleNamespace(Module=object, Sequential=object)"
        optim = "optim = types.SimpleNamespace(Optimizer=object)"
        no_grad = "def no_grad():\n    return lambda function: function"
        names = "Tensor = object\n\ndef set_flush_denormal(_):\n    pass\n"
        self.write("torch.py", "\n".join(["import types", nn, optim, no_grad, names]))
        for module in ("numpy", "fbgemm_gpu", "deeprec_torch"):
            self.write(f"{module}.py", "" if module == "numpy" else "raise ImportError('none in this test')")
        self.expect_reason("deeprec_torch is not installed: none in this test", FRAMEWORKS)

    def test_figures_end_where_the_suites_do(self):
        sys.path.insert(0, str(ROOT / "benchmarks/support"))
        import peer_suite

        def rounds_of(values, least=21, seconds="300"):
            """How many rounds are measured, and the counters; the claim is `over_them` >= 1."""
            self.write("targets", "suite/other over_them 1\nsuite/it over_them 1\n")
            settings = {"TARGETS": str(self.work / "targets"), "PAIRS": str(least), "SECONDS": seconds}
            ours, theirs = [], itertools.cycle(values)
            environment = {f"DEEPREC_BENCH_{name}": value for name, value in settings.items()}
            with mock.patch.dict(os.environ, environment):
                figures = peer_suite.Figures("suite/it")
                sides = {"ours": lambda: ours.append(1) or 1.0, "them": lambda: next(theirs)}
                figures.sample(lambda: figures.compare(sides, "case"))
            self.assertEqual(len(ours), figures.rounds + 1)  # the first is not counted
            return figures.rounds, figures.counters()

        rounds, counters = rounds_of([1.5])
        self.assertEqual(rounds, 21)
        self.assertEqual([counters[f"{c}_low"] for c in ("over_them", "over_them_case", "speedup")], [1.5] * 3)
        self.assertEqual((counters["them_us_case"], counters["pairs"]), (1.5e6, 21))
        undecided = [0.9, 1.1]
        self.assertEqual(rounds_of(undecided, seconds="0")[0], 21)
        self.assertEqual(rounds_of(undecided, least=5, seconds="0")[0], 5)
        self.assertGreater(rounds_of(undecided, seconds="0.05")[0], 31)

    def test_the_least_case_counts(self):
        sys.path.insert(0, str(ROOT / "benchmarks/support"))
        import peer_suite

        figures = peer_suite.Figures("suite/it")
        for value in range(1, 22):
            figures.add("over_a", value, "one")
            figures.add("over_a", value + 1, "two")
            figures.add("over_b", value - 0.5)
        self.assertEqual(figures.of("over_a"), (11, 6, 16))
        self.assertEqual(figures.of("speedup"), (10.5, 5.5, 15.5))
        self.assertIsNone(figures.of("over_c"))

    def test_partners_are_no_other_processes(self):
        sys.path.insert(0, str(ROOT / "benchmarks/support"))
        import peer_suite

        program = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"
        with subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as partner:
            before = peer_suite.OtherProcesses().seconds()[2]
            partner.stdout.readline()
            own = [peer_suite.OtherProcesses(ids).seconds()[2] for ids in ([], [partner.pid])]
            partner.communicate(b"\n")
        self.assertLess(own[0] - before, 0.4)
        self.assertGreater(own[1] - own[0], 0.4)


class Plots(Case):
    def test_plots_are_text_and_the_same_twice(self):
        self.expect(self.make_page("records.json", plots=True), 0)
        names = ["docs/report_speedup.svg", "docs/report_limit.svg"]
        first = [self.text(name) for name in names]
        for name in names:
            (self.work / name).unlink()
        self.expect(self.make_page("records.json", plots=True), 0)
        self.assertEqual(first, [self.text(name) for name in names])
        for words in ("published 2.00×", "ours 2.50× WON", "ours 0.80× LOST", "never run"):
            self.assertIn(words, first[0])
        self.assertIn("the limit", first[1])
        for svg in first:
            self.assertIn("<text", svg)
            self.assertNotIn("<dc:date>", svg)

    def test_another_figure_is_another_plot(self):
        self.expect(self.make_page("records.json", plots=True), 0)
        before = self.text("docs/report_speedup.svg")
        self.write("records.json", json.dumps({"provenance": PROVENANCE, "results": RESULTS}).replace("2.5", "2.6"))
        self.expect(self.make_page("records.json", plots=True), 0)
        self.assertNotEqual(before, self.text("docs/report_speedup.svg"))

    def test_a_timeline_is_recorded_and_drawn(self):
        rows = [row("won", timeline={"file": "trace.json", "text": "A staged step."})]
        self.write("rows.json", rows)
        spans = [
            {"ph": "X", "cat": "op", "name": name, "pid": 1, "tid": thread, "ts": 100.0 * step + at, "dur": 30.0}
            for step in range(10)
            for thread, at, name in ((7, 0.0, "lookup"), (7, 40.0, "loss"), (9, 10.0, "hash C1"))
        ]
        names = {"ph": "M", "name": "thread_name", "pid": 1, "tid": 9, "args": {"name": "ahead"}}
        self.write("all.json", {"traceEvents": [names, *spans]})
        self.expect(self.make_page("records.json", plots=True), 0)  # not recorded yet
        self.assertNotIn("report_timeline_won.svg", self.text())
        record = ["timeline", "won", self.work / "all.json", "--records", self.work / "docs"]
        self.assertIn("too few", self.expect(self.run_report(*record, "--steps", "6"), 2))
        self.expect(self.run_report(*record, "--steps", "2"), 0)
        events = json.loads(self.text("docs/trace.json"))["traceEvents"]
        self.assertEqual(sum(event["ph"] == "X" for event in events), 2 * 3)
        self.assertEqual(min(event["ts"] for event in events if event["ph"] == "X"), 0)
        self.expect(self.make_page("records.json", plots=True), 0)
        self.assertIn("![A staged step.](report_timeline_won.svg)", self.text())
        for words in ("ahead", "thread 0", "hash", "loss"):
            self.assertIn(words, self.text("docs/report_timeline_won.svg"))

    def test_nothing_recorded(self):
        self.expect(self.make_page(plots=True), 0)
        self.assertTrue((self.work / "docs/report_limit.svg").exists())


class Reproduce(Case):
    claims = tiny = ""
    environment = {"DEEPREC_BENCH_PAIRS": "", "DEEPREC_BENCH_SECONDS": "", "DEEPREC_BENCH_CACHE": ""}

    def setUp(self):
        super().setUp()
        programs = self.work / "programs"
        programs.mkdir()
        (programs / "bench_tiny").symlink_to(Path(self.tiny).resolve())
        self.write(
            "programs/bench_tensorflow", f'#!/bin/sh\nexec "{sys.executable}" "{PEER}" --library "" "$@"\n'
        ).chmod(0o755)
        tiny = {"suite": "tiny", "limit": None, "baselines": []}
        peer = baseline("speedup", suite="tensorflow", filter="tensorflow/tile")
        self.rows = [
            row("ahead", **{**tiny, "baselines": [peer]}, filter="tiny/ahead"),
            row("behind", **tiny, filter="tiny/behind"),
            row("absent", **{**tiny, "suite": "absent"}),
            UNTIMED,
        ]
        self.write("rows.json", self.rows)

    def reproduce(self, *arguments, code=0, **environment):
        ended = self.run_report(
            "reproduce",
            "--claims",
            self.claims,
            "--programs",
            "programs",
            "--records",
            "records",
            *arguments,
            "--",
            "--commit",
            "abc",
            "--dirty",
            "false",
            environment={**self.environment, **environment},
        )
        self.assertEqual(ended.returncode, code, ended.stdout + ended.stderr)
        return ended.stdout

    def record(self, suite):
        return json.loads(self.text(f"records/reproduce_{suite}.json"))

    def test_rows_are_run_printed_and_recorded(self):
        said = self.reproduce().splitlines()
        self.assertRegex(
            said[0],
            r"^WON +ahead +published 2\.00×  ours 1\.50× \[1\.50 \.\. 1\.50\] over the baseline  "
            r"\(no over speedup: libdeeprec_ops_peer\.so is not built\)$",
        )
        self.assertRegex(said[1], r"^LOST +behind +published 2\.00×  ours 0\.94× \[")
        self.assertRegex(said[2], r"^never run +absent +published 2\.00×  \(no program bench_absent here\)$")
        self.assertRegex(said[3], r"^no time +untimed +published 2\.00×  \(No unit for it\.\)$")
        run = self.record("tiny")["runs"][0]
        self.assertEqual((run["provenance"]["commit"], run["provenance"]["dirty"]), ("abc", False))
        self.assertEqual([r["filter"] for r in run["results"]], ["tiny/ahead", "tiny/behind"])
        self.assertEqual(
            self.record("tensorflow")["runs"][0]["results"][0]["reason"],
            "libdeeprec_ops_peer.so is not built",
        )
        self.expect(self.make_page(*sorted((self.work / "records").iterdir())), 0)
        self.assertIn("4 rows: 1 WON, 1 LOST, 1 no time, 1 never run.", self.text())

    def test_a_figure_beside_a_row_is_run_with_it(self):
        self.rows[0]["beside"] = [
            {"name": name, "filter": f"tiny/{name}", "counter": "speedup"} for name in ("ahead", "behind")
        ]
        self.write("rows.json", self.rows)
        self.reproduce("ahead")
        results = self.record("tiny")["runs"][0]["results"]
        self.assertEqual([r["filter"] for r in results], ["tiny/ahead", "tiny/behind"])

    def test_one_row_keeps_the_others(self):
        self.reproduce()
        before = self.record("tiny")["runs"][0]["results"]
        self.assertEqual(len(self.reproduce("behind", DEEPREC_BENCH_PAIRS="5").splitlines()), 1)
        runs = self.record("tiny")["runs"]
        self.assertEqual([r["filter"] for run in runs for r in run["results"]], ["tiny/ahead", "tiny/behind"])
        self.assertEqual(runs[0]["results"], before[:1])
        self.assertEqual(runs[1]["results"][0]["pairs"], 5)

    def test_what_is_absent_now_does_not_replace_what_was_measured(self):
        self.reproduce("behind")
        before = self.record("tiny")
        (self.work / "programs/bench_tiny").unlink()
        self.assertIn("LOST", self.reproduce("behind"))
        self.assertEqual(self.record("tiny"), before)

    def test_a_wrong_answer_fails_and_replaces(self):
        self.rows[1]["filter"] = "tiny/wrong_answer"
        self.write("rows.json", self.rows)
        self.assertRegex(self.reproduce("behind", code=1), r"^FAILED +behind .*wrong answer")

    def test_a_crash_replaces_what_was_measured(self):
        self.reproduce("ahead")
        (self.work / "programs/bench_tiny").unlink()
        crash = '#!/bin/sh\n[ "$1" != --benchmark_list_tests ] || { echo tiny/ahead; exit 0; }\nexit 3\n'
        self.write("programs/bench_tiny", crash).chmod(0o755)
        self.assertRegex(self.reproduce("ahead", code=1), r"^FAILED +ahead .*the program failed")

    def test_a_tool_that_fails(self):
        said = self.expect(
            self.run_report("reproduce", "--claims", "/bin/false", "--programs", "programs", "--records", "records"),
            2,
        )
        self.assertIn("report: /bin/false ended with 1", said)

    def test_without_tensorflow(self):
        self.write("tensorflow.py", "raise ImportError('none in this test')")
        self.write("numpy.py", "")
        self.write(
            "programs/bench_tensorflow",
            f'#!/bin/sh\nPYTHONPATH="{self.work}" exec "{sys.executable}" "{PEER}" --library libc.so.6 "$@"\n',
        ).chmod(0o755)
        self.assertIn("TensorFlow is not installed: none in this test", self.reproduce("ahead"))


def with_matplotlib():
    """Goes on in the first python3 that has matplotlib."""
    test = "import matplotlib"
    for python in (sys.executable, "/usr/bin/python3"):
        if subprocess.run([python, "-c", test], capture_output=True, check=False).returncode == 0:
            if python != sys.executable:
                os.execv(python, [python, *sys.argv])
            return
    print("no matplotlib here: the plots are NOT TESTED")
    sys.exit(77)


def main(argv):
    cases = {"page": [Page, Faults, RowsOfTheRepository], "plots": [Plots], "reproduce": [Reproduce]}[argv[0]]
    if argv[0] == "plots":
        with_matplotlib()
    if argv[0] == "reproduce":
        Reproduce.claims, Reproduce.tiny = argv[1:]
    suite = unittest.TestSuite(unittest.defaultTestLoader.loadTestsFromTestCase(case) for case in cases)
    return 0 if unittest.TextTestRunner().run(suite).wasSuccessful() else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
