"""The rules under test: the committed files as they are, or built for a config that a test needs."""

from dataclasses import replace
from pathlib import Path

from tests.rules.tools import RULES
from vllm_vitals.config.alerts import Batch, Config
from vllm_vitals.config.objectives import OutputLength, Slo
from vllm_vitals.rules.build import outputs

DAEMON = [str(RULES / "recording.yml"), str(RULES / "alerts.yml")]
NATIVE = [str(RULES / "native.yml"), *DAEMON]

SLO = Slo("first_token", "ttft", 10, 0.99, OutputLength(mean=300, p99=1200))
WITH_SLO = replace(Config(), slos=(SLO,))
WITH_BATCH = replace(Config(), batch=Batch(models=("nightly-.+",)), slos=(SLO,))


def build(config: Config, folder: Path) -> list[str]:
    """Write the rules of ``config`` to ``folder``; the files of `DAEMON`."""
    for name, text in outputs(config).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return [str(folder / "recording.yml"), str(folder / "alerts.yml")]
