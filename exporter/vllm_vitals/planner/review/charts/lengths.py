"""How long prompts and answers were, with what it means for max_tokens."""

from math import log10
from typing import Any

from vllm_vitals.core.sample import Histogram
from vllm_vitals.planner.review import words
from vllm_vitals.planner.review.charts import style
from vllm_vitals.planner.review.charts.style import BLUE, GREEN, ORANGE, RED, Chart
from vllm_vitals.planner.review.report import ModelReview


def draw(model: ModelReview, salt: str) -> Chart | None:
    """None where no request finished."""
    inputs, outputs = model.shape.inputs, model.shape.outputs
    if inputs.histogram is None or outputs.histogram is None or not inputs.count:
        return None
    drawing, axes = style.figure(3.2, 1, 2, left=0.7)
    _bars(axes[0], inputs.histogram, BLUE)
    _bars(axes[1], outputs.histogram, ORANGE)
    lowest, highest = axes[0].get_xlim()
    if lowest < log10(32_000) < highest:
        axes[0].axvline(log10(32_000), color=RED, linewidth=1.2, linestyle="--", label="32,000 tokens")
    cap = model.shape.max_tokens
    if cap.low is not None and cap.high is not None:
        axes[1].axvspan(
            log10(max(1, cap.low)),
            log10(max(1, cap.high)),
            color=GREEN,
            alpha=0.2,
            linewidth=0,
            label="max_tokens by the rule",
        )
    for axis, title in ((axes[0], "Prompts"), (axes[1], "Answers")):
        style.labels(axis, "% of requests", "tokens (log scale; bars are the histogram's buckets)", title)
        style.legend(axis, loc="upper left")
    return Chart("lengths", "How long requests are", style.svg(drawing, salt), _sentence(model))


def _bars(axis: Any, histogram: Histogram, colour: str) -> None:
    """Draw the share of requests by bucket, on a logarithmic axis of 1-2-5 buckets."""
    edges = (0.5, *histogram.bounds)
    before, last = 0.0, 0
    for index, count in enumerate(histogram.counts[:-1]):
        share = 100 * (count - before) / histogram.count
        if share > 0:
            low, high = log10(max(0.5, edges[index])), log10(edges[index + 1])
            axis.bar(
                low, share, width=high - low, align="edge", color=colour, alpha=0.75, edgecolor="white", linewidth=0.8
            )
            last = index
        before = count
    over = 100 * (histogram.counts[-1] - before) / histogram.count
    if over > 0:
        axis.bar(
            log10(edges[-1]), over, width=0.3, align="edge", color=colour, alpha=0.4, label="above the last bucket"
        )
        last = len(histogram.bounds) - 1
    ticks = [10**power for power in range(8) if 10**power <= 10 * edges[last + 1]]
    axis.set_xticks([log10(tick) for tick in ticks], [f"{tick:,}" for tick in ticks])
    axis.set_xlim(0, log10(edges[last + 1]) + 0.4)


def _sentence(model: ModelReview) -> str:
    inputs, cap = model.shape.inputs, model.shape.max_tokens
    over = inputs.share_over.get(32_000)
    long = f" {words.share(over[1])} of prompts are over 32,000 tokens." if over else ""
    rule = f" Answers: {cap.arithmetic}." if cap.arithmetic else ""
    half = f"Half of the prompts are longer than {words.reading(inputs.p50, 'number')} tokens"
    return f"{half}: benchmark with lengths like these, not with short ones.{long}{rule}"
