"""Documents: every link leads somewhere, every word that a page uses is explained once, every make target exists."""

import re
from pathlib import Path

import pytest
import yaml

from vllm_vitals.core.states import State

ROOT = Path(__file__).parent.parent
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "alerts").glob("*.md")])
TARGETS = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def anchors(path: Path) -> set[str]:
    """The fragments of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#{1,6} (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_to_a_heading_in_it(document: Path) -> None:
    links = re.findall(r"\]\((?!https?:|mailto:)([^)\s]*)\)", document.read_text())
    for link in links:
        name, _, fragment = link.partition("#")
        target = (document.parent / name).resolve() if name else document
        assert target.exists(), link
        assert not fragment or fragment in anchors(target), link


def test_every_decision_is_in_the_index() -> None:
    folder = ROOT / "docs" / "adr"
    index = (folder / "README.md").read_text()
    records = sorted(path.name for path in folder.glob("[0-9]*.md"))
    assert re.findall(r"\]\((\d{4}-[a-z-]+\.md)\)", index) == records
    assert [int(name[:4]) for name in records] == list(range(1, len(records) + 1))


def test_the_glossary_is_in_order_and_explains_what_pages_say() -> None:
    text = (ROOT / "docs" / "glossary.md").read_text()
    words = [word.lower() for word in re.findall(r"^\*\*([^*]+)\*\*:", text, re.MULTILINE)]
    assert words == sorted(words)
    needed = {
        "preemption", "kv cache", "ttft", "tpot", "inter-token latency (itl)", "recompute tax", "r", "window", "target",
        "engine", "native mode", State.DEATH_SPIRAL.spec.label, State.THRASHING.spec.label, "hold, release", "knob",
    }  # fmt: skip
    assert needed <= set(words)


@pytest.mark.parametrize("workflow", sorted((ROOT / ".github" / "workflows").glob("*.yml")), ids=lambda path: path.name)
def test_a_workflow_runs_what_anyone_can_run(workflow: Path) -> None:
    jobs = yaml.safe_load(workflow.read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert [command for command in commands if re.match(r"make \w+$|\.ci/run$", command)]
    for command in commands:
        for target in re.findall(r"^make (\w+)", command):
            assert target in TARGETS, command
        for program in re.findall(r"^\.\w[\w./]+", command):
            assert (ROOT / program).exists(), command


def test_every_file_that_a_commit_hook_names_exists() -> None:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    local = [hook for repo in config["repos"] if repo["repo"] == "local" for hook in repo["hooks"]]
    assert local
    for hook in local:
        program, *words = hook["entry"].split()
        assert program != "make" or set(words) - {"-s"} <= TARGETS


def test_every_file_that_a_contributor_is_sent_to_exists() -> None:
    named = re.findall(r"^\| `([^`]+)`", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    assert len(named) > 20
    for name in named:
        pattern = re.sub(r"<\w+>", "*", name)
        assert list(ROOT.glob(pattern)) or list((ROOT / "exporter" / "vllm_vitals").glob(pattern)), name
