"""`vllm-vitals config init`: typed against servers that answer, refuse, speak TLS or are something else."""

import asyncio
import socket
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
import trustme

from tests.edges.servers import Reply, bodies, http, says, serving
from tests.typed import Done, typed
from vllm_vitals.cli import first_config
from vllm_vitals.cli.probe import Log, Seen
from vllm_vitals.config import loader
from vllm_vitals.scrape.target import Target

LOG = Path(__file__).parents[1] / "data" / "recordings" / "spiral_chunked" / "vllm.log.gz"


def vllm(model: str = "tiny") -> Reply:
    """Answers as the recorded server did."""
    pages = {
        b"/metrics": bodies()[0].replace(b'model_name="tiny"', b'model_name="%b"' % model.encode()),
        b"/version": b'{"version": "0.32.0"}',
        b"/v1/models": b'{"data": [{"id": "tiny", "max_model_len": 4096}]}',
    }

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        page = pages.get(request.split(b" ")[1])
        writer.write(http(page) if page is not None else http(b"", "404 Not Found"))
        await writer.drain()

    return reply


def closed_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{free.getsockname()[1]}"


def against(reply: Reply, use: Callable[[str], Done], tls: ssl.SSLContext | None = None) -> Done:
    async def run() -> Done:
        async with serving(reply, tls=tls) as url:
            return await asyncio.to_thread(use, url)

    return asyncio.run(run())


def test_the_config_that_is_written_works_and_says_what_was_seen(tmp_path: Path) -> None:
    file = tmp_path / "vitals.yml"
    done = against(vllm(), lambda url: typed("config", "init", url, "-o", file))
    assert done.exit_code == 0, done.output
    assert done.stdout == f"{file}: 1 target; next: vllm-vitals run --config {file}\n"
    text = file.read_text()
    assert "  # vLLM 0.32.0, 1 engine, max_model_len 4096" in text
    (target,) = loader.load(file).targets
    assert (target.name, target.model_name) == ("tiny", "tiny")
    assert typed("config", "check", file).exit_code == 0
    again = typed("config", "init", "localhost:1", "-o", file)
    assert again.exit_code == 2
    assert "exists already" in again.stderr
    assert file.read_text() == text


def test_proposals_in_comments_are_a_valid_config_too() -> None:
    seen = Seen(Target("h:8000", "http://h:8000/metrics"), "tls", "not trusted")
    text = first_config.text([seen], [], {}, "f.yml")
    lines = text.splitlines()
    bare = [line.replace("# ", "", 1) if line.startswith(("# canary", "# flight", "# state", "# alerts", "# logs"))
            or "# tls" in line else line for line in lines]  # fmt: skip
    assert bare != lines
    assert len(bare) == len(lines)
    import yaml

    config = loader.build("f.yml", yaml.safe_load("\n".join(bare)))
    assert config.targets[0].tls.ca_file
    assert config.flight is not None
    assert config.targets[0].canary is not None


def test_a_server_that_speaks_tls_is_asked_so_and_its_ca_is_kept(tmp_path: Path) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost", "127.0.0.1").configure_cert(context)
    ca = tmp_path / "ca.pem"
    authority.cert_pem.write_to_path(str(ca))

    def use(url: str) -> Done:
        plain = url.replace("https:", "http:")
        unknown = typed("config", "init", plain)
        assert unknown.exit_code == 1
        assert f"url: {url}" in unknown.stdout
        assert "# tls: {ca_file: " in unknown.stdout
        assert "not read yet: " in unknown.stderr
        return typed("config", "init", plain, "--ca-file", ca)

    done = against(vllm(), use, context)
    assert done.exit_code == 0, done.output
    assert "plain http was refused: it speaks TLS" in done.stdout
    assert f"ca_file: {ca}" in done.stdout


def test_a_token_stays_in_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("token").write_text("secret-word\n")
    knows = vllm()

    async def reply(request: bytes, writer: asyncio.StreamWriter) -> None:
        await (knows if b"Bearer secret-word" in request else says(http(b"", "401 Unauthorized")))(request, writer)

    def use(url: str) -> Done:
        without = typed("config", "init", url)
        assert without.exit_code == 1
        assert "# bearer_token_file: " in without.stdout
        return typed("config", "init", url, "--bearer-token-file", "token", "--header", "X-Team: a")

    done = against(reply, use)
    assert done.exit_code == 0, done.output
    assert f"bearer_token_file: {tmp_path}/token" in done.stdout  # whole: in the file it would begin elsewhere
    assert "X-Team: a" in done.stdout
    assert "secret-word" not in done.output


def test_a_server_that_does_not_answer_yet_is_kept_and_one_that_is_no_vllm_is_not() -> None:
    down = closed_port()

    async def other(_: bytes, writer: asyncio.StreamWriter) -> None:
        writer.write(http(b"node_load1 1\n"))

    def use(url: str) -> Done:
        alone = typed("config", "init", url)
        assert alone.exit_code == 2
        assert alone.stdout == ""
        assert alone.stderr.splitlines()[-1].startswith("vllm-vitals: none of the addresses is a vLLM server")
        return typed("config", "init", url, down)

    done = against(other, use)
    assert done.exit_code == 1
    assert f"url: http://{down}" in done.stdout
    assert done.stdout.count("url: ") == 1
    assert "left out: " in done.stderr
    assert f"{down}: not read yet: " in done.stderr


@pytest.mark.parametrize(
    "model",
    [
        "a: b # c",
        'x\\" y',
        "${HOME}",
        "ключ-модель",
        "- [",
        "yes",
        "12",
        "{{ x }}",
        "a\u2028b",
        "m" * 300,
        "\U0001f600",
    ],
)
def test_no_name_of_a_model_breaks_out_of_its_place(model: str) -> None:
    seen = Seen(Target("127.0.0.1:8000", "http://127.0.0.1:8000/metrics"), version="0.32\n- url: evil", models=(model,))
    import yaml

    config = loader.build("", yaml.safe_load(first_config.text([seen], [], {}, "f\ng")))
    assert len(config.targets) == 1
    assert config.targets[0].model_name in (model, "")


def test_targets_are_called_after_what_tells_them_apart() -> None:
    def seen(url: str, *models: str) -> Seen:
        return Seen(Target(url, f"http://{url}/metrics"), models=models)

    assert first_config.names([seen("gpu-1.example:8000", "a"), seen("gpu-2.example:8000")]) == ["gpu-1", "gpu-2"]
    assert first_config.names([seen("10.0.0.1:8000", "org/Big-7B"), seen("10.0.0.2:8000", "org/Big-7B")]) == [
        "big-7b-1", "big-7b-2",
    ]  # fmt: skip
    assert first_config.names([seen("gpu:8000", "a", "b"), seen("gpu:8001", "c")]) == ["", "c"]
    assert first_config.names([seen("c.example:8000"), seen("10.0.0.1:8001", "c")]) == ["c-1", "c-2"]


def test_a_log_is_read_and_belongs_to_its_server(tmp_path: Path) -> None:
    import gzip

    log = tmp_path / "vllm.log"
    log.write_bytes(gzip.decompress(LOG.read_bytes())[: 64 * 1024])
    strange = tmp_path / "strange.log"
    strange.write_text("a b c\nd e f\n")
    done = against(vllm(), lambda url: typed("config", "init", url, closed_port(), "--log", log, "--log", strange))
    assert done.exit_code == 1
    assert f"paths: [{log}]" in done.stdout
    assert "      target: tiny\n" in done.stdout
    assert f"{strange}: none of its first lines is understood" in done.stderr
    (tmp_path / "c.yml").write_text(done.stdout)
    assert loader.load(tmp_path / "c.yml").logs.sources[0].target == "tiny"
    missing = against(vllm(), lambda url: typed("config", "init", url, "--log", tmp_path / "none-*.log"))
    assert missing.exit_code == 1
    assert "there is no such file yet" in missing.stderr


def test_a_log_without_an_answer_is_said_of_no_server() -> None:
    text = first_config.text([Seen(Target("h:8000", "http://h:8000/metrics"))], [Log("/l", 2, 10, 9)], {}, "f")
    assert "# 2 files; 9 of 10 lines are understood" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["http://user:pw@h:8000"], "give --user and --password-file"),
        (["ftp://h:8000"], "expected http or https, got ftp"),
        (["h:99999"], "the port of the address is not a number"),
        (["h:8000", "http://h:8000/metrics"], "two of the URLs are one server"),
        (["h:8000", "--log", "a", "--log", "b"], "2 times --log for 1 URLs"),
        (["h:8000", "--user", "u"], "--user and --password-file belong together"),
        (["h:8000", "--header", "Authorization: x"], "a secret stands in a file"),
        ([], "Missing argument"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_asked(arguments: list[str], said: str) -> None:
    done = typed("config", "init", *arguments)
    assert done.exit_code == 2
    assert said in done.stderr
    assert "pw" not in done.output
    assert len([line for line in done.stderr.splitlines() if line.startswith("vllm-vitals: ")]) == 1
