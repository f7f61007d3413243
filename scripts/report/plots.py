"""The plots of report.py, by matplotlib: the same bytes for the same figures."""

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot  # noqa: E402

matplotlib.rcParams.update(
    {
        "svg.hashsalt": "deeprec",
        "svg.fonttype": "none",
        "font.family": "DejaVu Sans",
        "font.size": 9,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.axisbelow": True,
    }
)
COLORS = {
    "WON": "#2a6fb0",
    "LOST": "#c0392b",
    "no baseline": "#2a6fb0",
    "FAILED": "#7f8c8d",
    "published": "#c9ced6",
}


def figure_for(count, bars):
    figure, axes = pyplot.subplots(figsize=(8, 1.2 + 0.22 * bars * max(count, 1)))
    axes.grid(axis="x", color="#e4e7eb", linewidth=0.8)
    return figure, axes


def finish(figure, axes, labels, path):
    axes.set_yticks(range(len(labels)), labels)
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})
    pyplot.close(figure)


def error_of(value):
    """Lengths of an interval to both sides of its median."""
    if value["low"] is None:
        return None
    return [[max(0, value["median"] - value["low"])], [max(0, value["high"] - value["median"])]]


def bar(axes, at, value, height, color, text, error=None):
    axes.barh(at, value, height=height, color=color, xerr=error, error_kw={"elinewidth": 1, "ecolor": "#333333"})
    end = value + (error[1][0] if error else 0)
    axes.annotate(text, (end, at), xytext=(4, 0), textcoords="offset points", va="center", fontsize=8)


def speedups(points, path):
    """For each row the greatest published ratio and ours over the fastest baseline."""
    figure, axes = figure_for(len(points), 2)
    for at, point in enumerate(points):
        if point["published"] is not None:
            bar(
                axes,
                at - 0.2,
                point["published"],
                0.36,
                COLORS["published"],
                f"published {point['published']:.2f}×",
            )
        value = point["speedup"]
        if value:
            bar(
                axes,
                at + 0.2,
                value["median"],
                0.36,
                COLORS[point["word"]],
                f"ours {value['median']:.2f}× {point['word']}",
                error_of(value),
            )
        else:
            axes.annotate(
                point["word"],
                (1, at + 0.2),
                xytext=(4, 0),
                textcoords="offset points",
                va="center",
                fontsize=8,
            )
    axes.axvline(1, color="#333333", linewidth=1)
    axes.set_xlabel(
        "times as fast as the fastest baseline, here one thread (published: whole ops or models on their hardware)"
    )
    axes.margins(x=0.15)
    finish(figure, axes, [point["id"] for point in points], path)


def shares(points, path):
    """For each row with a limit the share of it that ours reaches."""
    figure, axes = figure_for(len(points), 2)
    for at, point in enumerate(points):
        value = point["share"]
        bar(axes, at, value["median"], 0.5, COLORS["WON"], f"{value['median']:.2f}", error_of(value))
        axes.annotate(
            point["limit"],
            (0, at + 0.25),
            xytext=(4, -7),
            textcoords="offset points",
            va="center",
            fontsize=7,
        )
    axes.axvline(1, color="#333333", linewidth=1)
    axes.annotate("limit", (1, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=8)
    axes.set_xlabel("share of the limit that was measured in the same run")
    axes.set_ylim(-0.6, max(len(points), 1) - 0.2)
    axes.margins(x=0.1)
    finish(figure, axes, [point["id"] for point in points], path)


KINDS = pyplot.get_cmap("tab20").colors


def timeline(spans, threads, path):
    """The spans of each thread on a line of its own, a colour for each kind of op: the first word of its name."""
    lines = sorted({thread for thread, *_ in spans})
    kinds = sorted({name.split()[0] for *_, name in spans})
    figure, axes = pyplot.subplots(figsize=(8, 1.3 + 0.5 * len(lines)))
    for kind_number, kind in enumerate(kinds):
        color = KINDS[kind_number % len(KINDS)]
        for at, thread in enumerate(lines):
            bars = [(begin, took) for t, begin, took, name in spans if t == thread and name.split()[0] == kind]
            axes.broken_barh(bars, (at - 0.35, 0.7), facecolors=[color], label=kind if at == 0 else None)
    axes.set_yticks(range(len(lines)), [threads.get(thread, f"thread {thread}") for thread in lines])
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_xlabel("µs")
    axes.legend(ncols=6, fontsize=7, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.35))
    figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None}, bbox_inches="tight")
    pyplot.close(figure)
