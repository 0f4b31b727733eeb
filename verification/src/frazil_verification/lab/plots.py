"""Pictures of reports. matplotlib is imported only when one is asked for."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from frazil.errors import InvalidInput, Unsupported
from frazil_verification.lab.model import ARRIVALS, PUBLISHED, LabReport, Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's palette: distinguishable with every kind of colour vision.
_COLOURS = {"linear": "#D55E00", "exponential": "#0072B2", "jitter": "#009E73"}
_MARKERS = {"linear": "o", "exponential": "s", "jitter": "^"}
_LABELS = {"linear": "linear", "exponential": "exponential", "jitter": "exponential + jitter"}
_PATTERNS = {
    "independent": "Independent writers (random think time)",
    "clockwork": "Clockwork writers (equal think times)",
    "trigger": "Writers on one trigger",
}
_GREY = "#555555"


def plot(report: LabReport, path: str | os.PathLike[str]) -> None:
    """Write the report as a picture; the file name's extension selects the format (png, svg, pdf)."""
    figure_class, canvas_class = _matplotlib()
    figure = figure_class(figsize=(15, 9) if report.sweep else (15, 5), dpi=130, layout="constrained")
    canvas_class(figure)
    figure.suptitle(_title(report), fontsize=14, fontweight="bold")
    rows = 2 if report.sweep else 1
    axes = figure.subplots(rows, 3, squeeze=False)
    if report.sweep:
        for axis, arrivals in zip(axes[0], ARRIVALS, strict=True):
            _retry_rate_by_load(axis, report, arrivals)
    _share_by_retries(axes[-1][0], report)
    _mean_beside_published(axes[-1][1], report)
    if report.sweep:
        _throughput(axes[-1][2], report)
    else:
        _latency(axes[-1][2], report)
    try:
        figure.savefig(os.fspath(path))
    except ValueError as error:
        raise InvalidInput(f"Cannot draw {os.fspath(path)}", evidence=str(error), advice="End it in .png") from None


def _matplotlib() -> tuple[Any, Any]:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise Unsupported(
            "Drawing needs matplotlib, which is not installed", advice="Type: pip install 'frazil[verify]'"
        ) from None
    return Figure, FigureCanvasAgg


def _title(report: LabReport) -> str:
    load = report.load
    where = "virtual clock" if report.mode == "virtual" else "real processes on SQLite"
    return f"Waiting after a lost race: {load.writers} writers on one table ({where}, seed {report.seed})"


def _policies(report: LabReport) -> list[str]:
    return [row.policy for row in report.rows]


def _retry_rate_by_load(axis: Axes, report: LabReport, arrivals: str) -> None:
    for policy in _policies(report):
        points = _points(report, policy, arrivals)
        axis.plot([row.think_s for row in points], [100 * row.retry_rate for row in points], **_style(policy))
        published = 100 * PUBLISHED[policy].retry_rate
        axis.axhline(published, color=_COLOURS[policy], linestyle=":", linewidth=1.2, alpha=0.8)
        axis.annotate(
            f"published {published:g} %",
            (0.99, published),
            xycoords=("axes fraction", "data"),
            ha="right",
            va="bottom",
            fontsize=8,
            color=_COLOURS[policy],
        )
    _think_axis(axis)
    axis.set_ylim(0, 100)
    axis.set_ylabel("commits retried at least once (%)")
    axis.set_title(_PATTERNS[arrivals], fontsize=11)
    if arrivals == ARRIVALS[0]:
        axis.legend(frameon=False, loc="upper center")


def _share_by_retries(axis: Axes, report: LabReport) -> None:
    for policy in _policies(report):
        counts = report.histograms[policy]
        total = sum(counts)
        shares = [100 * sum(counts[n:]) / total for n in range(1, len(counts))]
        if shares:
            axis.plot(range(1, len(counts)), shares, **_style(policy))
    axis.axvspan(4.5, 7.5, color=_GREY, alpha=0.06)
    axis.axvspan(7.5, report.retry.tries, color=_GREY, alpha=0.12)
    for x, text in ((4.6, "above 4"), (7.6, "8 or more")):
        axis.annotate(text, (x, 0.98), xycoords=("data", "axes fraction"), va="top", fontsize=8, color=_GREY)
    axis.set_yscale("log")
    axis.set_xlim(0.5, report.retry.tries)
    axis.set_xlabel("retries")
    axis.set_ylabel("commits that needed at least so many (%)")
    load = report.load
    axis.set_title(f"How often, at {load.arrivals} arrivals, think time {load.think_s:g} s", fontsize=11)
    axis.grid(alpha=0.25, which="both")
    if not report.sweep:
        axis.legend(frameon=False)


def _mean_beside_published(axis: Axes, report: LabReport) -> None:
    names = _policies(report)
    ours = [report.row(name).mean_retries_of_retried for name in names]
    theirs = [PUBLISHED[name].mean_retries_of_retried for name in names]
    bars = axis.bar([i - 0.2 for i in range(len(names))], ours, 0.38, color=[_COLOURS[n] for n in names], label="lab")
    axis.bar_label(bars, fmt="%.2f", fontsize=9)
    for i, value in enumerate(theirs):
        if value is None:
            axis.annotate("not\nstated", (i + 0.2, 0.03), xycoords=("data", "axes fraction"), ha="center", fontsize=8)
            continue
        bar = axis.bar(i + 0.2, value, 0.38, facecolor="none", edgecolor=_COLOURS[names[i]], hatch="///")
        axis.bar_label(bar, labels=[f"{value:g}"], fontsize=9)
    axis.set_xticks(range(len(names)), [_LABELS[name] for name in names])
    axis.margins(y=0.15)
    axis.set_ylabel("mean retries of a retried commit")
    axis.set_title("Lab (filled) beside the published figure (hatched)", fontsize=11)


def _throughput(axis: Axes, report: LabReport) -> None:
    for policy in _policies(report):
        points = _points(report, policy, "independent")
        axis.plot([row.think_s for row in points], [row.per_second for row in points], **_style(policy))
    load = report.load
    ceiling = 1000 / (load.read_ms + load.prepare_ms + load.swap_ms)
    axis.axhline(ceiling, color=_GREY, linestyle="--", linewidth=1.2)
    axis.annotate(
        f"one attempt after the other: {ceiling:.0f}/s",
        (0.99, ceiling),
        xycoords=("axes fraction", "data"),
        ha="right",
        va="bottom",
        fontsize=9,
        color=_GREY,
    )
    _think_axis(axis)
    axis.set_ylim(0, ceiling * 1.2)
    axis.set_ylabel("commits per second, all writers")
    axis.set_title("Waiting cannot lift the ceiling (independent writers)", fontsize=11)


def _latency(axis: Axes, report: LabReport) -> None:
    names = _policies(report)
    for offset, share in ((-0.2, "p50"), (0.2, "p99")):
        values = [getattr(report.row(name), f"{share}_ms") for name in names]
        bars = axis.bar(
            [i + offset for i in range(len(names))],
            values,
            0.38,
            color=[_COLOURS[name] for name in names],
            alpha=0.55 if share == "p50" else 1.0,
        )
        axis.bar_label(bars, labels=[f"{share}\n{value:.0f}" for value in values], fontsize=8)
    axis.set_yscale("log")
    axis.margins(y=0.2)
    axis.set_xticks(range(len(names)), [_LABELS[name] for name in names])
    axis.set_ylabel("time to commit (ms)")
    axis.set_title("Latency", fontsize=11)


def _points(report: LabReport, policy: str, arrivals: str) -> list[Row]:
    return [row for row in report.sweep if row.policy == policy and row.arrivals == arrivals]


def _think_axis(axis: Axes) -> None:
    axis.set_xscale("symlog", linthresh=0.5)
    ticks = [0, 0.5, 1, 2, 5, 10, 30]
    axis.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axis.set_xticks([], minor=True)
    axis.set_xlim(0, 31)
    axis.set_xlabel("think time (s): heavy load left, light load right")
    axis.grid(alpha=0.25)


def _style(policy: str) -> dict[str, Any]:
    return {
        "color": _COLOURS[policy],
        "marker": _MARKERS[policy],
        "markersize": 4.5,
        "linewidth": 1.8,
        "label": _LABELS[policy],
    }
