"""What an engine does, from how its requests end."""

from vllm_vitals.core import quantile
from vllm_vitals.core.snapshot import Role
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.window import Span


def infer_role(span: Span, limits: Thresholds) -> Role | None:
    """Return what an engine does, from its finishes: prefill answers with one token, pooling with none.

    Where the span holds too few finishes, from all since the server started; None where those are too few as well.
    """
    outputs, short = span.observed("request_output_tokens"), span.observed_at_most("request_output_tokens", 1.0)
    failed = span.increase("errors") or 0.0
    if outputs is not None and short is not None:
        outputs, short = (outputs[0] - failed, outputs[1]), max(0.0, short - failed)
    lately = _role(
        span.increase("completions"), span.increase("generation_tokens"), span.increase("prompt_tokens"),
        None if outputs is None or short is None or outputs[0] <= 0 else short / outputs[0], limits,
    )  # fmt: skip
    if lately is not None:
        return lately
    ever = span.last
    lengths = ever.histograms.get("request_output_tokens")
    share = None if lengths is None else quantile.share_at_most(lengths, 1.0)
    return _role(ever.completions, ever.generation_tokens, ever.prompt_tokens, share, limits)


def _role(
    finished: float | None, generated: float | None, prompts: float | None, one_token: float | None, limits: Thresholds
) -> Role | None:
    """``one_token`` is the share of the finished that have no more."""
    if finished is None or finished < limits.min_completions:
        return None
    if generated == 0 and (prompts or 0.0) > 0:
        return Role.POOLING
    return Role.PREFILL if one_token is not None and one_token >= limits.prefill_share else Role.SERVE
