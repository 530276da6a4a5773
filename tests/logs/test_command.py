import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from vllm_vitals.logs.command import logs

DATA = Path(__file__).parents[1] / "data"
MIX = DATA / "recordings" / "truncation_mix" / "vllm.log.gz"


def run(*arguments: object, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(logs, [str(one) for one in arguments], input=stdin)


def report(*arguments: object, stdin: bytes | None = None) -> dict[str, Any]:
    result = run(*arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def response(**what: Any) -> str:
    return json.dumps({"id": "chatcmpl-1", "model": "m", "usage": {"completion_tokens": 256}} | what) + "\n"


def test_json_has_exactly_the_promised_shape() -> None:
    found = report(MIX)
    assert list(found) == [
        "lines",
        "results",
        "settings",
        "overrides",
        "responses",
        "truncated",
        "errors",
        "stats_lines",
    ]
    assert found["lines"] == sum(found["results"].values()) == 2086
    assert found["settings"]["max_num_seqs"] == 16
    assert found["overrides"] == {"max_new_tokens": {"configured": 256, "confirmed": True}}
    assert (found["responses"], found["truncated"], found["errors"], found["stats_lines"]) == (0, None, {}, 26)


def test_a_gateway_log_is_judged_by_the_settings_of_the_server_log_before_it(tmp_path: Path) -> None:
    gateway = tmp_path / "gw.jsonl"
    gateway.write_text(response(choices=[{"finish_reason": "length"}], max_tokens=2000) + response(max_tokens=256))
    found = report(MIX, gateway)
    assert (found["responses"], found["truncated"]) == (2, {"server_default": 1, "request": 1})
    assert report(gateway)["truncated"] == {"request": 1, "unknown": 1}


def test_stdin_and_plain_files_and_a_last_line_without_newline(tmp_path: Path) -> None:
    plain = tmp_path / "plain.log"
    plain.write_bytes(gzip.decompress(MIX.read_bytes()).removesuffix(b"\n"))
    assert report(plain) == report(MIX)
    assert report("-", stdin=plain.read_bytes()) == report(MIX)


def test_what_a_log_without_responses_cannot_tell_is_not_known(tmp_path: Path) -> None:
    """The server cut two thirds of its answers at a cap; its log holds no response of that route."""
    text = run(MIX).stdout
    assert "no response in it, so truncated at cap: not known" in text
    assert "none" not in text.partition("engine errors")[0]
    gateway = tmp_path / "gw.jsonl"
    gateway.write_text(response(choices=[{"finish_reason": "stop"}]))
    assert "1 responses, truncated at cap: none" in run(gateway).stdout


def test_a_file_that_breaks_off_is_read_up_to_the_break(tmp_path: Path) -> None:
    cut = tmp_path / "cut.gz"
    cut.write_bytes(MIX.read_bytes()[:5000])
    result = run(cut, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["lines"] == 54
    assert json.loads(result.stdout)["results"].get("malformed", 0) == 0
    said = f"vllm-vitals: {cut}: cut off or damaged after line 54 (Compressed file ended"
    assert result.stderr.startswith(said)
    assert len(result.stderr.strip().splitlines()) == 1


def test_one_file_that_cannot_be_read_costs_no_other_file(tmp_path: Path) -> None:
    result = run(tmp_path / "missing.log", MIX, "--json")
    assert result.exit_code == 2
    assert json.loads(result.stdout)["lines"] == 2086
    assert "missing.log: No such file" in result.stderr


@pytest.mark.parametrize(
    ("content", "said", "code"),
    [
        (b"", "empty: there is nothing to read", 2),
        (b"\x7fELF\x02\x01\x01\0\0\0\n" * 9, "not text: it holds NUL bytes", 2),
        (b"once upon a time\n", "no line was understood: vLLM's lines hold a header", 2),
        (b'{"answer": 42}\n', "no line was understood: --show 5 prints", 2),
        (b"[" + b'{"message": "INFO 04-28"},' * 99_999 + b"{}]\n", "jq -c '.[]' FILE` makes a line of each record", 2),
        (b"\n \n", "nothing but blank lines", 2),
        (gzip.compress(b"", mtime=0), "empty: there is nothing to read", 2),
        (
            response().encode() * 99 + b"\0" * 512 + b"\n" + response().encode(),
            "",
            0,
        ),  # what a power cut leaves in a log
    ],
)
def test_what_is_no_log_is_told_so(tmp_path: Path, content: bytes, said: str, code: int) -> None:
    file = tmp_path / "file"
    file.write_bytes(content)
    result = run(file)
    assert result.exit_code == code
    assert said in result.stderr
    assert bool(result.stderr) is bool(said)


def test_a_table_for_people(tmp_path: Path) -> None:
    text = run(MIX).stdout
    assert "2086 lines" in text
    assert "max_num_seqs = 16" in text
    assert "default max_new_tokens = 256: confirmed by the start-up log" in text


def test_lines_that_nobody_understood_can_be_shown(tmp_path: Path) -> None:
    odd = tmp_path / "odd.log"
    odd.write_text('{"answer": 42}\n{"torn\n')
    result = run(odd, "--show", "1")
    assert '{"answer": 42}' in result.stderr
    assert "torn" not in result.stderr


def test_nothing_is_claimed_of_lines_that_were_not_understood(tmp_path: Path) -> None:
    strange, plain = tmp_path / "strange.log", tmp_path / "plain.log"
    strange.write_text("once upon a time\n")
    plain.write_text("INFO 04-28 22:50:00 [loggers.py:257] Nothing of interest\nonce upon a time\n")
    result = run(strange, "--json")
    found = json.loads(result.stdout)
    assert (result.exit_code, found["errors"], found["truncated"]) == (2, None, None)
    assert "engine errors: not known, no line was understood" in run(strange).stdout
    assert "engine errors: none in the 1 lines that were understood (1 were not)" in run(plain).stdout
    both = run(plain, strange, "--json")
    assert (both.exit_code, json.loads(both.stdout)["errors"]) == (2, {})
    assert both.stderr.startswith(f"vllm-vitals: {strange}: no line was understood")
    assert f"{strange}: text: once upon a time" in run(strange, "--show", "1").stderr


@pytest.mark.parametrize("option", ["--schema", "--config"])
def test_a_mapping_of_ones_own(tmp_path: Path, option: str) -> None:
    log = tmp_path / "own.log"
    log.write_text('{"who": "m", "n": 7, "cap": 7}\n')
    mapping = {
        "name": "own",
        "keys": ["who", "n"],
        "fields": {"model": "who", "completion_tokens": "n", "max_tokens": "cap"},
    }
    file = tmp_path / "x.yaml"
    file.write_text(json.dumps(mapping if option == "--schema" else {"targets": [], "logs": {"mappings": [mapping]}}))
    assert run(log).exit_code == 2
    assert report(log, option, file)["truncated"] == {"request": 1}


def test_errors_are_one_line_and_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "bad.yaml").write_text("name: x\n")
    (tmp_path / "typo.yaml").write_text("log: {}\n")
    (tmp_path / "cut.gz").write_bytes(MIX.read_bytes()[:50])
    (tmp_path / "junk.gz").write_bytes(b"\x1f\x8b\x08\x00junkjunkjunkjunk")
    for arguments, said, code in (
        ([tmp_path / "missing.log"], "No such file", 2),
        ([tmp_path], "Is a directory", 2),
        ([tmp_path / "cut.gz"], "end-of-stream", 2),
        ([tmp_path / "junk.gz"], "junk.gz", 2),
        ([MIX, "--schema", tmp_path / "bad.yaml"], "needs keys and fields", 1),
        ([MIX, "--schema", tmp_path / "none.yaml"], "none.yaml", 1),
        ([MIX, "--config", tmp_path / "none.yaml"], "none.yaml", 1),
        ([MIX, "--config", tmp_path / "typo.yaml"], "log: unknown key; did you mean logs?", 1),
    ):
        result = run(*arguments)
        assert result.exit_code == code  # 2 for all of them from a shell
        assert result.stdout == ""
        assert said in result.stderr
        assert len(result.stderr.strip().splitlines()) == 1
