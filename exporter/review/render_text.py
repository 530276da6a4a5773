"""The review as Markdown, drawn by a template from the same value as the HTML.

Input: a `Review`. Output: text. Invariant: model names and other foreign text cannot break the document's structure.
"""

from jinja2 import Environment, PackageLoader, StrictUndefined

from exporter.review import words
from exporter.review.report import Review

_SPECIAL = str.maketrans({c: f"\\{c}" for c in "\\`*_{}[]<>#|"})


def markdown(review: Review) -> str:
    """The whole report."""
    environment = Environment(
        loader=PackageLoader("exporter.review"), undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
        autoescape=False,  # noqa: S701 - Markdown; foreign text goes through `text`
    )  # fmt: skip
    environment.filters.update(words.FILTERS, text=escape)
    return environment.get_template("report.md.j2").render(review=review)


def escape(text: object) -> str:
    """Foreign text in one line, with Markdown's own signs made harmless."""
    return " ".join(str(text).split()).translate(_SPECIAL)
