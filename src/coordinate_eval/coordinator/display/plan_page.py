"""A plan as one HTML page that needs no other file, to send or to keep."""

from collections.abc import Mapping, Sequence

from coordinate_eval import __version__
from coordinate_eval.coordinator.display import gantt
from coordinate_eval.coordinator.display.drawing import (
    COLUMNS,
    LEFT,
    STYLES,
    WIDTH,
    ascii_text,
    colors_of,
    draw,
    template,
)
from coordinate_eval.coordinator.display.risks import risks
from coordinate_eval.coordinator.display.summary import (
    Review,
    by_work,
    dataset_table,
    node_table,
    summary,
    what_if_table,
)

MARK = '<meta name="generator" content="coordinate-eval plan">'
"""Marks a page that another one may replace."""

_METRICS_HEIGHT = 56.0


def render(review: Review) -> str:
    """Return the page."""
    drawn = review.timeline
    end = drawn.end or 1.0
    lanes = gantt.lanes(drawn)
    colors = colors_of(lanes)
    used = gantt.cores(drawn, COLUMNS, end) if drawn.on_cores else []
    text = template("page.html.j2").render(
        mark=MARK,
        version=__version__,
        plan=review.plan,
        review=review,
        risks=risks(review),
        summary=summary(review),
        drawing=draw(lanes, end, colors),
        bound=LEFT + min(end, review.plan.estimate.lower_bound_seconds) * WIDTH / end,
        metrics=_area(used, review.offer.metric_cpus),
        most_cores=max((step.cores for step in drawn.cores()), default=0),
        colors=colors,
        phases=[(STYLES[phase], phase.value) for phase in gantt.PLANNED],
        nodes=node_table(review),
        datasets=dataset_table(review),
        shares=_shares(review, colors),
        what_if=what_if_table(review),
        left=LEFT,
        right=LEFT + WIDTH,
        metrics_height=_METRICS_HEIGHT,
    )
    return ascii_text(text)


def _shares(review: Review, colors: Mapping[str, str]) -> list[tuple[str, float]]:
    """Return each dataset's style and its GPU time in percent of the longest one's.

    They are in the order of the table of datasets.
    """
    ordered = by_work(review.plan)
    longest = max(cost.gpu_seconds for cost in ordered)
    return [(colors.get(c.name, "c"), 100 * c.gpu_seconds / longest) for c in ordered]


def _area(used: Sequence[float], metric_cpus: int) -> str:
    """Return the points of a polygon: cores in use, above a line; empty without metrics."""
    if not used:
        return ""
    width = WIDTH / len(used)
    points = [(LEFT, _METRICS_HEIGHT)]
    for column, cores in enumerate(used):
        y = _METRICS_HEIGHT * (1 - min(1.0, cores / metric_cpus))
        points += [(LEFT + column * width, y), (LEFT + (column + 1) * width, y)]
    points.append((LEFT + WIDTH, _METRICS_HEIGHT))
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
