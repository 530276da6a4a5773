"""``vllm-vitals kubernetes build`` and ``kubernetes check``: what runs vllm-vitals in a cluster."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from vllm_vitals import __version__
from vllm_vitals.generated import drift, mode_option, needing_packages, out_option, report, write

if TYPE_CHECKING:
    from vllm_vitals.kubernetes.presets import Chosen

# the others only wrap what alerts/ and dashboards/ hold
COMMITTED = (
    "vllm-vitals.yml", "chart/recording.yml", "chart/alerts.yml", "chart/native.yml", "chart/alerts-native.yml",
    "chart/alertmanagerconfig.yml", "chart/presets.yml",
)  # fmt: skip


def _labels(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    if not all(name and value for name, _, value in pairs):
        raise click.BadParameter("expected NAME=VALUE, such as release=kube-prometheus-stack")
    return {name: value for name, _, value in pairs}


def _presets(_: click.Context, __: click.Parameter, given: tuple[str, ...]) -> tuple["Chosen", ...]:
    from vllm_vitals.kubernetes.presets import parse  # noqa: PLC0415

    try:
        chosen = tuple(parse(text) for text in given)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    if len(set(chosen)) < len(chosen):
        raise click.BadParameter("the same pods twice: give each platform, port and namespace once")
    return chosen


def _options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options that build and check share."""
    for option in reversed(
        (
            click.option(
                "--config", "file", type=click.Path(path_type=Path), help="Config file of the daemon to deploy."
            ),
            click.option(
                "--preset",
                "chosen",
                multiple=True,
                callback=_presets,
                metavar="NAME[:PORT][@NAMESPACE]",
                help="Platform whose vLLM pods to find (kserve, llm-d, production-stack, ray-serve, aibrix, dynamo), "
                "or LABEL=VALUE of the pods (repeatable).",
            ),
            click.option(
                "--discover-by",
                type=click.Choice(["dns", "api"]),
                default="dns",
                show_default=True,
                help="Pods of presets by DNS; or by the cluster's API, with their names and nodes: needs a Role.",
            ),
            click.option(
                "--alerts",
                "limits",
                type=click.Path(path_type=Path),
                help="Alert config (YAML) of rules and dashboards.",
            ),
            click.option("--namespace", default="vllm-vitals", show_default=True, help="Namespace of the objects."),
            click.option(
                "--image", default=f"vllm-vitals:{__version__}", show_default=True, help="Image of the daemon."
            ),
            click.option(
                "--shards",
                type=click.IntRange(1, 100),
                default=1,
                show_default=True,
                help="Number of Deployments that share the targets.",
            ),
            click.option(
                "--replicas",
                type=click.IntRange(1, 5),
                default=1,
                show_default=True,
                help="Replicas of each shard, for high availability.",
            ),
            click.option(
                "--label",
                "labels",
                multiple=True,
                callback=_labels,
                help="Label that the operator selects: NAME=VALUE (repeatable).",
            ),
            click.option(
                "--for",
                "operator",
                type=click.Choice(["prometheus-operator", "victoria-metrics"]),
                default="prometheus-operator",
                show_default=True,
                help="Operator whose objects scrape, judge and route.",
            ),
            mode_option("daemon"),
            out_option("kubernetes"),
        )
    ):
        command = option(command)
    return command


@click.group()
def kubernetes() -> None:
    """Generate Kubernetes objects: the daemon, its rules and its dashboards."""


@kubernetes.command()
@_options
def build(out: Path, **site: Any) -> None:
    """Write the objects, for kubectl apply -f DIR or kubectl apply -k DIR."""
    write(out, _generated(**site))


@kubernetes.command()
@_options
def check(out: Path, **site: Any) -> None:
    """Compare vllm-vitals.yml and chart/ with what build would write; exit 1 and print a diff if they differ."""
    texts = {name: text for name, text in _generated(**site).items() if name in COMMITTED}
    report(drift(out, texts), f"vllm-vitals kubernetes build -o {out}")


def _generated(
    file: Path | None, limits: Path | None, namespace: str, image: str, shards: int, replicas: int,
    labels: dict[str, str], modes: frozenset[str], operator: str, chosen: tuple["Chosen", ...],
    discover_by: str,
) -> dict[str, str]:  # fmt: skip
    with needing_packages():
        from vllm_vitals.config import section  # noqa: PLC0415
        from vllm_vitals.kubernetes.build import outputs, watched  # noqa: PLC0415 - needs the generators' extras
        from vllm_vitals.kubernetes.objects import Site  # noqa: PLC0415
    if file is not None and chosen:
        raise click.UsageError("give either --config, which has a discovery of its own, or --preset")
    if discover_by == "api" and not chosen:
        raise click.UsageError("--discover-by api is for a --preset; a --config has kubernetes_sd for it")
    config = watched(file, chosen, discover_by == "api")
    site = Site(config, namespace, image, shards, replicas, labels=labels, operator=operator, presets=chosen)
    source = limits or file
    return outputs(site, modes, None if source is None else section.alerts(source))
