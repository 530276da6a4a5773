"""Markdown: the review, a comparison, a what-if, a tuning session; drawn by templates from the values of all else.

Input: a `Review`, a `Comparison`, a `WhatIf` or a `Journal`. Output: text. Invariant: model names and other foreign
text cannot break the document's structure.
"""

import re
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from vllm_vitals.planner.experiment.baseline import Baseline
from vllm_vitals.planner.experiment.compare import Comparison
from vllm_vitals.planner.review import words
from vllm_vitals.planner.review.report import Review
from vllm_vitals.planner.tune.journal import Journal
from vllm_vitals.planner.whatif.calibrate import NAMES
from vllm_vitals.planner.whatif.measured import Bars
from vllm_vitals.planner.whatif.whatif import WhatIf

_SPECIAL = re.compile(r"[\\`*{}\[\]<>#|]|(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])")


def markdown(review: Review) -> str:
    """Return the whole report."""
    return _render("report.md.j2", review=review)


def comparison(before: Baseline, after: Baseline, found: Comparison) -> str:
    """Return two snapshots side by side, and the decision."""
    return _render("compare.md.j2", before=before, after=after, found=found)


def experiment(found: WhatIf) -> str:
    """Return a what-if alone."""
    return _render("whatif.md.j2", m=SimpleNamespace(whatif=found))


def tuning(journal: Journal, bars: Bars, title: str, following: str) -> str:
    """Return a tuning session so far; ``following`` is what is next."""
    return _render("tune.md.j2", journal=journal, bars=bars, title=title, next=following, names=NAMES)


def settings(given: Mapping[str, str]) -> str:
    """Return settings as they are written."""
    return ", ".join(f"{name}={value}" for name, value in given.items()) or "as it is"


def _render(template: str, **values: Any) -> str:
    environment = Environment(
        loader=PackageLoader("vllm_vitals.planner"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - Markdown; foreign text goes through `text`
    )  # fmt: skip
    environment.filters.update(
        words.FILTERS,
        text=escape,
        settings=settings,
        prediction=lambda each, name: words.prediction(each.value, each.error, name),
    )
    return environment.get_template(template).render(**values)


def escape(text: object) -> str:
    """Foreign text in one line, with Markdown's own signs made harmless; within a word ``_`` is none of them."""
    return _SPECIAL.sub(r"\\\g<0>", " ".join(str(text).split()))
