"""What the words on pages and in the demo mean, and where that is said."""

import re
from pathlib import Path

from vllm_vitals.serve import web
from vllm_vitals.serve.vitals import Vital
from vllm_vitals.terms import TERMS, Explained, anchor, term_of

GLOSSARY = (Path(__file__).parent.parent.parent / "docs" / "glossary.md").read_text()


def test_every_term_stands_in_the_glossary_of_the_documentation() -> None:
    assert set(TERMS) <= set(re.findall(r"^\*\*([^*]+)\*\*", GLOSSARY, re.MULTILINE))


def test_values_lead_to_terms_that_the_glossary_page_holds() -> None:
    page = web.glossary()
    names = ("KV cache, max", "preemptions", "TPOT p99", "first token p99", "recomputed work", "truncated at cap")
    for name in names:
        assert f'id="{anchor(term_of(name))}"' in page
        assert Vital(name, "1").about == f"glossary#{anchor(term_of(name))}"
    assert Vital("running", "1").about == ""
    assert "Preemption loop" in page  # states, too


def test_a_term_is_explained_where_it_first_appears_and_never_again() -> None:
    explained = Explained()
    assert [term for term, _ in explained.new_in(["TPOT p99", "running"])] == ["TPOT"]
    assert [term for term, _ in explained.new_in(["TPOT p50", "death spiral"])] == ["death spiral"]
    assert not list(explained.new_in(["TPOT p50", "death spiral", "Running"]))
