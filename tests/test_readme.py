"""What the README shows is what happens."""

import re
from pathlib import Path

from click.testing import CliRunner

from vllm_vitals.cli.main import cli

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_verdict_that_it_shows_is_the_verdict_that_is_given() -> None:
    command, shown = re.search(r"\$ vllm-vitals (.+)\n((?:.+\n)+)```", README).groups()  # type: ignore[union-attr]
    said = CliRunner().invoke(cli, command.split(), catch_exceptions=False).output
    assert shown in said


def test_every_file_that_it_names_exists() -> None:
    linked = re.findall(r"\]\(([^)#:]+)\)", README)
    named = re.findall(r"`((?:exporter|alerts|dashboards|deploy|tests)/[\w./*-]+)`", README)
    assert linked
    for name in [*linked, *named]:
        assert list(ROOT.glob(name.rstrip("/"))), name


def test_every_command_is_listed() -> None:
    listed = set(re.findall(r"`(?:vllm-vitals )?([a-z]+)[ `]", README[README.index("## Commands") :]))
    assert set(cli.list_commands(None)) <= listed  # type: ignore[arg-type]


def test_every_make_target_that_it_names_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert set(re.findall(r"^make ([a-z]+)", README, re.MULTILINE)) <= targets
