"""One look at an engine: its windows at one poll, and every reading and ratio that needs no memory beyond them."""

from collections.abc import Mapping
from dataclasses import dataclass

from vllm_vitals.core import outcomes, recompute_tax, vital_signs
from vllm_vitals.core.inferred_role import infer_role
from vllm_vitals.core.outcomes import Completions
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.core.snapshot import Reading, Role, absent
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.core.vital_signs import Gauges
from vllm_vitals.core.window import Span, Window


@dataclass(frozen=True, slots=True)
class WindowView:
    """What one poll sees.

    ``later`` is the second half of the fast window, ``finished`` where R is taken. ``paced`` is where the rate of
    completions is taken: there, or where too few finish the slow window as far back as there was work throughout.
    """

    at: float
    sample: EngineSample
    settings: Mapping[str, str]
    limits: Thresholds
    fast: Span
    later: Span | None
    slow: Span
    samples: list[EngineSample]
    means: Gauges
    finished: Completions | None
    paced: Span | None
    role: Role
    logged_capacity: float | None = None  # tokens of one engine, by the server's log or the config
    capacity_trusted: bool = True

    @property
    def context(self) -> recompute_tax.Context | None:
        """Tokens that a running request holds."""
        span = self.finished.span if self.finished else self.slow
        capacity = self.sample.kv_capacity_tokens
        return recompute_tax.resident_context(self.means, capacity, span, trusted=self.capacity_trusted)

    def lost(self, context: recompute_tax.Context | None) -> recompute_tax.LostShare:
        """Return the share of it that a preempted request computes again."""
        block, tokens = vital_signs.setting(self.settings, "block_size"), None if context is None else context.tokens
        return recompute_tax.lost_share(self.sample, self.finished, tokens, block, self.limits)


def view_at(
    at: float,
    sample: EngineSample,
    settings: Mapping[str, str],
    window: Window,
    limits: Thresholds,
    role: Role | None = None,
    logged_capacity: float | None = None,
) -> WindowView | None:
    """Look at the windows at ``at``, or None while the window is too short to say anything. ``role`` None: inferred."""
    fast, slow = window.span(limits.fast_window), window.span(limits.slow_window)
    if fast is None or slow is None or fast.seconds < limits.min_span:
        return None
    samples, finished = window.within(limits.fast_window), outcomes.completions(window, limits)
    return WindowView(
        at=at,
        sample=sample,
        settings=settings,
        limits=limits,
        fast=fast,
        later=window.span(limits.fast_window / 2),
        slow=slow,
        samples=samples,
        means=vital_signs.gauges(samples),
        finished=finished,
        paced=finished.span if finished else window.working(limits.slow_window),
        role=role or infer_role(slow, limits) or Role.SERVE,
        logged_capacity=logged_capacity,
    )


def readings(view: WindowView) -> dict[str, Reading]:
    """Return every derived number that the windows alone give, by the catalogue's name."""
    fast, slow, samples, finished = view.fast, view.slow, view.samples, view.finished
    useful, preemption_rate = vital_signs.useful_rate(fast), fast.rate("preemptions")
    few = f"fewer than {view.limits.min_completions:g} requests finished in the {slow.seconds:.0f} s seen"
    uncounted = "the server has no preemption counter"
    return {
        "preemptions_per_second": vital_signs.value(preemption_rate, uncounted),
        "preemptions_per_completion": vital_signs.value(
            finished.ratio if finished else None, uncounted if finished else few
        ),
        "repeat_preemption_ratio": vital_signs.value(
            finished.repeat_ratio if finished else None, "needs vLLM 0.30 or later" if finished else few
        ),
        "recompute_tax_ratio": _tax(view, preemption_rate, useful),
        "kv_cache_usage_max_ratio": vital_signs.largest_usage(samples),
        "kv_cache_demand_ratio": vital_signs.demand(view.means),
        "kv_cache_full_windows": vital_signs.full_windows(view.sample, view.settings),
        **vital_signs.tails(slow, view.role),
        **vital_signs.lengths(slow, view.role),
        "stall_gaps_per_second": vital_signs.stall_gaps(fast),
        "truncated_ratio": vital_signs.truncated(slow, view.role),
        "prefix_cache_hit_ratio": vital_signs.prefix_hit_ratio(fast),
        "abandoned_requests_per_second": vital_signs.abandoned(fast),
        "expected_wait_seconds": expected_wait(view),
        "useful_tokens_per_second": vital_signs.value(useful, "needs token counters"),
    }


def _tax(view: WindowView, preemption_rate: float | None, useful: float | None) -> Reading:
    if not preemption_rate:  # how much a victim loses does not matter
        return recompute_tax.recompute_tax(preemption_rate, useful, None, recompute_tax.UNKNOWN_CACHING)
    context = view.context
    return recompute_tax.recompute_tax(preemption_rate, useful, context, view.lost(context))


def busy(view: WindowView) -> bool:
    """Return whether there was work or progress anywhere in the fast window."""
    if any(sample.work > 0 for sample in reversed(view.samples)):  # the newest first: most have some
        return True
    return any(map(view.fast.increase, ("generation_tokens", "prompt_tokens", "completions")))


def draining(view: WindowView) -> bool | None:
    """Return whether the later half of the window waits less than 90 % of its earlier half."""
    half = len(view.samples) // 2
    waiting = [sample.waiting for sample in view.samples]
    earlier, later = vital_signs.mean(waiting[:half]), vital_signs.mean(waiting[half:])
    return None if earlier is None or later is None else later < 0.9 * earlier


def running_full(view: WindowView) -> float | None:
    """Return the mean running over the scrapes that found the cache full: about what fits."""
    full = view.limits.kv_pressure_ratio
    return vital_signs.mean([s.running for s in view.samples if s.kv_usage is not None and s.kv_usage >= full])


def queued_share(view: WindowView) -> float | None:
    """Return the share of the window's scrapes with a queue; one scrape, as after a gap, is no share."""
    if len(view.samples) < 2:
        return None
    return vital_signs.mean([None if s.waiting is None else float(s.waiting >= 1) for s in view.samples])


def deferred_share(view: WindowView) -> float | None:
    """Return the share of waiting that is not for scheduling capacity, over the window; None without reasons."""
    now = view.sample.waiting_by_reason
    if not now:
        return None
    if not now.get("deferred"):
        return 0.0
    deferred = total = 0.0
    for sample in view.samples:
        reasons = sample.waiting_by_reason
        deferred += reasons.get("deferred", 0.0)
        total += sum(reasons.values())
    return deferred / total if total > 0 else None


def prefill_factor(span: Span) -> float | None:
    """Prefill work over generation: computed prompt tokens, plus KV growth that neither of the two explains.

    vLLM counts a prompt only at its first output, so during a long prefill KV usage alone moves.
    """
    prompts, generated = vital_signs.computed_prompt_tokens(span), span.increase("generation_tokens")
    if prompts is None or generated is None:
        return None
    grown = (span.last.kv_usage or 0.0) - (span.first.kv_usage or 0.0)
    hidden = max(0.0, grown * (span.last.kv_capacity_tokens or 0.0) - generated - prompts)
    return (prompts + hidden) / max(generated, 1.0)


def prefill_lasts(view: WindowView) -> bool | None:
    """Return whether both halves of the window show prefill work: one prompt at its edge starves no decode."""
    fast, later = view.fast, view.later
    if later is None or later.start <= fast.start:
        return None
    earlier = Span(fast.start, later.start, fast.first, later.first)
    factors = [prefill_factor(half) for half in (earlier, later)]
    level = view.limits.starved_prefill_factor / 2
    return None if None in factors else all(factor is not None and factor >= level for factor in factors)


def expected_wait(view: WindowView) -> Reading:
    """Return waiting requests over the completion rate: how long the newest of them waits.

    Where few finish, the rate is that of the time since something runs: a minute in which one happens to finish, or
    none, says little.
    """
    waiting = view.sample.waiting
    if waiting is None:
        return absent("needs the waiting gauge")
    if waiting == 0:
        return Reading(0.0)
    if (deferred_share(view) or 0.0) > vital_signs.DEFERRED:
        return absent("most waiting requests are deferred: their wait depends on what defers them, not on the queue")
    rate = None if view.paced is None else view.paced.rate("completions")
    return Reading(waiting / rate) if rate else absent("nothing finishes, so the wait has no end in sight")
