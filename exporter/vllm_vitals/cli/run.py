"""``vllm-vitals run``: the daemon."""

import asyncio
from pathlib import Path

import click

from vllm_vitals import log
from vllm_vitals.cli.options import FILE, SHARD, Access, access_options, as_typed, configured
from vllm_vitals.config import loader
from vllm_vitals.config.errors import ConfigError
from vllm_vitals.config.loader import Config
from vllm_vitals.daemon import Daemon
from vllm_vitals.scrape.shards import Shard
from vllm_vitals.serve import web_config
from vllm_vitals.serve.web_config import WebConfig


@click.command()
@click.argument("urls", nargs=-1, metavar="[URL]...")
@access_options
@click.option("--listen", help='Address to listen on, such as "127.0.0.1:9840".')
@click.option("--interval", callback=as_typed, help='Scrape interval, such as "5s".')
@click.option("--histograms", type=click.Choice(["all", "latency", "none"]), help="Histograms of vLLM to pass through.")
@click.option("--shard", type=SHARD, default="1/1", help='Scrape only a share of the targets, such as "2/5".')
@click.option(
    "--web.config.file", "web_file", type=FILE, help="TLS and basic auth, in the format of Prometheus' web config file."
)
@click.option(
    "--web.allowed-hosts",
    "hosts",
    default="",
    help="Host names to answer to besides the listen address, comma-separated; * for any.",
)
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
    help="Least severe log level to write.",
)
def run(
    urls: tuple[str, ...],
    file: Path | None,
    access: Access,
    listen: str | None,
    interval: str | None,
    histograms: str | None,
    shard: Shard,
    web_file: Path | None,
    hosts: str,
    log_level: str,
) -> None:
    """Run the daemon: scrape vLLM servers; serve metrics, a status page and JSON.

    Without a config file: vllm-vitals run http://localhost:8000
    """
    if not urls and file is None:
        raise click.UsageError("nothing to watch: give a URL such as http://localhost:8000, or --config FILE")
    log.configure(log_level)
    overrides = {"listen": listen, "interval": interval, "histograms": histograms}

    def load() -> Config:
        config = configured(file, urls, overrides, access)
        if not (config.targets or config.discovery or config.logs.sources):
            why = "no targets, discovery or logs.sources, and no URL on the command line: there is nothing to watch"
            raise ConfigError(f"{file}: {why}")
        if lacking := loader.missing_packages(config):
            raise ConfigError("\n".join(f"{file}: {what}" for what in lacking))
        for note in config.notes:
            log.get_logger().info("config", note=note)
        return config

    def load_web() -> WebConfig:
        return WebConfig() if web_file is None else web_config.load(web_file)

    names = {host.strip().lower().rstrip(".") for host in hosts.split(",") if host.strip()}
    asyncio.run(Daemon(load, shard=shard, load_web=load_web, names=names).run())
