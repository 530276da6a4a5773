"""The one table of what vLLM says: against the pages of real releases, and against a second definition elsewhere."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import pytest

import vllm_vitals
from vllm_vitals.catalog import BY_NAME
from vllm_vitals.core.sample import EngineSample
from vllm_vitals.vllm.families import FAMILIES, HTTP, PROCESS_START, UNREAD
from vllm_vitals.vllm.family import release
from vllm_vitals.vllm.lookup import KNOWN_STEMS, PREFIXES, era, served, stem, wire

DATA = Path(__file__).parents[1] / "data"
PACKAGE = Path(vllm_vitals.__file__).parent
ROWS = (*FAMILIES, *UNREAD)
VERSIONS = sorted(path.name for path in (DATA / "versions").iterdir())


def exposed(version: str) -> set[str]:
    """The families of a real page of this release, as declared, without prefix."""
    said = json.loads((DATA / "versions" / version / "families.json").read_text())["families"]
    return {name.removeprefix("vllm:") for name in said}


@pytest.mark.parametrize("version", [version for version in VERSIONS if version != "0.8.5"])
def test_the_table_says_of_each_release_what_it_exposes(version: str) -> None:
    """0.8.5 is recorded with the V0 engine, which made a series at its first event."""
    promised = {name for row in ROWS if not row.when and row.kind != "series" for name in served(row.field, version)}
    may_be = {name for row in ROWS for name in served(row.field, version)} | {"cache_config_info"}
    assert promised <= exposed(version)
    assert exposed(version) <= may_be


def test_the_table_knows_what_a_v0_engine_exposes() -> None:
    ours = {name for row in ROWS for name in served(row.field, "0.6.6")} | {"cache_config_info"}
    assert {name for name in exposed("0.8.5") if not name.startswith("spec_decode_")} <= ours


def test_fields_and_names_stand_in_the_table_once() -> None:
    assert len({row.field for row in ROWS}) == len(ROWS)
    names = [name for row in ROWS for name in row.wire()]
    assert len(set(names)) == len(names)
    for row in ROWS:
        assert row.names, row.field
        for name in row.names:
            assert not name.until or release(name.since) < release(name.until)


def test_a_newer_sign_means_a_newer_era_and_v0_is_never_taken_for_v1() -> None:
    seen = [
        era(frozenset(stem(name) for row in ROWS for name in served(row.field, version)), frozenset())
        for version in ("0.8.2", "0.9.2", "0.11.2", "0.16.0", "0.20.2", "0.30.0", "0.32.0")
    ]
    assert seen == ["v1", "v1>=0.9.2", "v1>=0.11.1", "v1>=0.16", "v1>=0.20", "v1>=0.30", "v1>=0.32"]
    assert era(frozenset(stem(name) for row in ROWS for name in served(row.field, "0.6.6")), frozenset()) == "v0"
    assert era(frozenset(), frozenset({"engine"})) == "v1>=0.8.3"
    assert era(frozenset({"brand_new"}), frozenset()) == "unknown"


# Words that are ours too: a name of the catalogue, or a field of a sample.
OURS = {
    *(name + end for name in BY_NAME for end in ("", "_bucket", "_sum", "_count")),
    *(field.name for field in fields(EngineSample)),
    *(row.field for row in FAMILIES),
}
# Where one of vLLM's words stands for another thing: (file, word): why.
ALLOWED: dict[tuple[str, str], str] = {
    (
        "simulator/exposed_families.py",
        "time_per_output_token_seconds",
    ): "vLLM's own HELP text, which names a function argument",
}


def words_of(path: Path) -> Iterator[str]:
    """Every word in a file's strings, docstrings apart."""
    tree = ast.parse(path.read_text())
    prose = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in prose:
            yield from re.findall(r"[a-zA-Z_][a-zA-Z0-9_:]*", node.value)


def test_no_name_of_vllms_is_written_anywhere_else() -> None:
    """A rename in vLLM is one line of one file: what reads, queries or simulates takes names from the table."""
    names = {name.text for row in (*ROWS, HTTP, PROCESS_START) for name in row.names if "_" in name.text}
    theirs = {name + end for name in names for end in ("", "_total", "_bucket", "_sum", "_count", "_created")}
    theirs |= {"cache_config_info"}
    found = {
        (str(path.relative_to(PACKAGE)), word)
        for path in PACKAGE.rglob("*.py")
        if path.parent.name != "vllm"
        for word in words_of(path)
        if (bare := next((word[len(p) :] for p in PREFIXES if word.startswith(p)), word)) in theirs
        and (bare not in OURS or bare != word)
    }
    assert found == set(ALLOWED)


def test_the_check_for_second_definitions_would_see_one(tmp_path: Path) -> None:
    file = tmp_path / "second.py"
    file.write_text(
        '"""vllm:num_requests_running in prose."""\n'
        'x = f"rate(vllm:num_requests_waiting{{}})"\ny = ("gpu_cache_usage_perc",)\n'
    )
    assert {"vllm:num_requests_waiting", "gpu_cache_usage_perc"} <= set(words_of(file))
    assert "vllm:num_requests_running" not in words_of(file)


def test_names_are_asked_for_by_field() -> None:
    assert wire("kv_usage") == ("kv_cache_usage_perc", "gpu_cache_usage_perc")
    assert wire("inter_token_latency_seconds", "sum")[0] == "inter_token_latency_seconds_sum"
    assert wire("preemptions") == ("num_preemptions_total",)
    assert "num_preemptions" in KNOWN_STEMS
    with pytest.raises(KeyError):
        wire("nothing")
