"""What every runbook needs: find the server, cap, drain and shed at the gateway, capture a hang, silence, escalate.

Output: `HANDLING.md` beside the runbooks, and the lines at the end of each. What a gateway cannot do is said.
Sources: the documentation of the projects that it names; none of its commands was run against them.
"""

from pathlib import Path

from vllm_vitals.rules.model import Alert, Severity

NAME = "HANDLING.md"

TEXT = Path(__file__).with_name("handling.md").read_text(encoding="utf-8")


def closing(name: str, rules: list[Alert]) -> str:
    """Return the last lines of a runbook: how to silence this alert, and whom to call when."""
    scope = {label for rule in rules for label in ("target", "model_name") if f"$labels.{label}" in _text(rule)}
    matchers = " ".join([f"alertname={name}", *(f"{x}={x.removesuffix('_name').upper()}" for x in sorted(scope))])
    both = len({rule.scope for rule in rules}) > 1
    note = "\n\nThe page is about the model: to silence it too, leave `target` out." if both else ""
    pages = any(rule.severity is Severity.PAGE for rule in rules)
    when = (
        "If the first mitigation shows no effect within 15 minutes, call the owner of the model; at once where a node "
        "is gone or several models page."
        if pages
        else "Nobody tonight. If it comes back within a day after it was mended, the owner of the model."
    )
    return (
        f"## Silence\n\n```console\n$ amtool silence add --alertmanager.url=http://alertmanager:9093 --duration=2h "
        f"--comment='WHY' {matchers}\n```{note}\n\n## Escalate\n\n{when}\n\nHow to find the server, cap, drain, "
        f"shed and capture: [{NAME}]({NAME})."
    )


def _text(rule: Alert) -> str:
    return rule.summary + rule.description
