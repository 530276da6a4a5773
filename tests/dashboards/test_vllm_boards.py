"""Where docs/vllm-boards.md sends the readers of vLLM's own boards there is a panel."""

import json

from tests.dashboards import lint
from tests.programs import ROOT
from vllm_vitals.dashboards import links
from vllm_vitals.dashboards.build import build
from vllm_vitals.dashboards.site import Site


def test_every_panel_that_the_table_names_is_there() -> None:
    boards = {
        links.TITLES[name.removesuffix(".json")].rpartition(" · ")[2]: {
            panel["title"] for panel in lint.panels(json.loads(text))
        }
        for name, text in build(Site()).items()
    }
    text = (ROOT / "docs" / "vllm-boards.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    named = [(board, panel) for _, board, panel, _ in rows[1:] if board != "–"]
    assert len(named) > 30
    assert [(board, panel) for board, panel in named if panel not in boards.get(board, ())] == []
