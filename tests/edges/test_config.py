"""Every mistake in a config file is one exact line; what is accepted means one thing."""

from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from vllm_vitals.config import loader, schema, strict_yaml, thresholds
from vllm_vitals.config.errors import ConfigError
from vllm_vitals.config.loader import Config
from vllm_vitals.config.strict_yaml import YamlError, load
from vllm_vitals.core.snapshot import Role
from vllm_vitals.core.thresholds import Thresholds
from vllm_vitals.scrape.target import parse_address, shown


def build(text: str) -> Config:
    try:
        return loader.build("c.yaml", load("c.yaml", text.encode()))
    except YamlError as error:
        raise ConfigError(str(error)) from None


MISTAKES = [
    ("interva: 5s", "c.yaml: interva: unknown key; did you mean interval?"),
    ("interval: 5s\ninterval: 6s", "c.yaml:2:1: the key 'interval' is given twice"),
    ("targets:\n- url: a\n  url: b", "c.yaml:3:3: the key 'url' is given twice"),
    ("interval: 1:30", "c.yaml: interval: 90 is no duration: write 90s"),
    ("interval: 5", "c.yaml: interval: 5 is no duration: write 5s"),
    ("interval: '45'", 'c.yaml: interval: "45" is no duration: write 45s'),
    ("interval: 1.5h", 'c.yaml: interval: "1.5h" is no duration: write 1h30m'),
    ("interval: 30s1m", 'c.yaml: interval: "30s1m" is no duration: write 1m30s'),
    ("interval: 10 minutes", 'c.yaml: interval: "10 minutes" is no duration: write 10m'),
    ("interval: true", "c.yaml: interval: true is no duration: write one such as 30s, 5m or 1h30m"),
    ("interval: soon", 'c.yaml: interval: "soon" is no duration: write one such as 30s, 5m or 1h30m'),
    ("interval: 99y", 'c.yaml: interval: "99y" is longer than 10000d'),
    ("interval: 0s", 'c.yaml: interval: expected more than 0s, got "0s"'),
    ("on: 1", "c.yaml:1:1: a key must be text, got True: quote it"),
    ("listen: 9840",
     'c.yaml: listen: 9840 is a port without a host: write "127.0.0.1:9840" to be read from this machine, ":9840" to be'
     " read from everywhere"),
    ("listen: here", 'c.yaml: listen: expected host:port such as "127.0.0.1:9840", got "here"'),
    ("listen: h:99999", 'c.yaml: listen: expected host:port such as "127.0.0.1:9840", got "h:99999"'),
    ("histograms: some", "c.yaml: histograms: expected 'all', 'latency' or 'none', got \"some\""),
    ("limits: {body: 5}", "c.yaml: limits.body: 5 is no size: write 5B"),
    ("limits: {body: 16777216}", "c.yaml: limits.body: 16777216 is no size: write 16MiB"),
    ("limits: {body: 16 MB}", 'c.yaml: limits.body: "16 MB" is no size: write 16MiB'),
    ("limits: {body: big}", 'c.yaml: limits.body: "big" is no size: write one such as 512KiB, 16MiB or 1GiB'),
    ('limits: {targets: "200"}',
     'c.yaml: limits.targets: expected a whole number, got "200": write 200 without quotes'),
    ("targets: ['http://${VLLM}:8000']",
     "c.yaml: targets[0]: ${VLLM} is not filled in: write the value, or run the file through envsubst first"),
    ("targets: [{url: a, bearer_token_file: '${TOKEN}'}]",
     "c.yaml: targets[0].bearer_token_file: ${TOKEN} is not filled in: write the value, or run the file through "
     "envsubst first"),
    ("targets: ['http://$VLLM:8000']",
     "c.yaml: targets[0].url: a variable in the address is not filled in: write the address itself"),
    ("targets: [{url: a, headers: {Authorization: x}}]",
     "c.yaml: targets[0].headers.Authorization: a secret stands in a file: give bearer_token_file or basic_auth"),
    ("flight_recorder: {directory: a, max_bytes: 1GiB}",
     'c.yaml: flight_recorder.max_bytes: is called max_size now: write max_size: "1GiB" or such'),
    ("targets: a", 'c.yaml: targets: expected a list, got "a"'),
    ("targets: [5]", "c.yaml: targets[0]: expected keys and values, got 5"),
    ("targets: [{name: a}]", "c.yaml: targets[0].url: is needed"),
    ("targets: [{url: 8000}]", "c.yaml: targets[0].url: expected an address such as http://localhost:8000, got 8000"),
    ("targets: ['ftp://x']", "c.yaml: targets[0].url: expected http or https, got ftp"),
    ("targets: ['http://h:99999']", "c.yaml: targets[0].url: the port of the address is not a number from 1 to 65535"),
    ("targets: [{url: a, rol: serve}]", "c.yaml: targets[0].rol: unknown key; did you mean role?"),
    ("targets: [{url: a, role: 1}]",
     "c.yaml: targets[0].role: expected 'serve', 'prefill', 'decode' or 'pooling', got 1"),
    ("targets: [a, 'http://a:8000/metrics']",
     'c.yaml: targets[0] and targets[1] are both called "a:8000": remove one or give it a name'),
    ("targets: [{url: a, timeout: 9s}]", "c.yaml: targets[0].timeout: 9 s is longer than the interval of 5 s"),
    ("targets: [{url: a, tls: {cert_file: x}}]",
     "c.yaml: targets[0].tls.key_file: cert_file and key_file belong together: give both"),
    ("targets: [{url: a, bearer_token_file: x, basic_auth: {username: u, password_file: p}}]",
     "c.yaml: targets[0].basic_auth: give either bearer_token_file or basic_auth, not both"),
    ("targets: [{url: a, basic_auth: {username: u, password: p}}]",
     "c.yaml: targets[0].basic_auth.password_file: is needed\n"
     "c.yaml: targets[0].basic_auth.password: unknown key; did you mean password_file?"),
    ("targets: [{url: a, labels: {target: x}}]",
     "c.yaml: targets[0].labels: target would hide a label that vllm-vitals sets itself"),
    ("thresholds: {hold: 30}", "c.yaml: thresholds.hold: 30 is no duration: write 30s"),
    ("thresholds: {kv_pressure_ratio: 90}",
     "c.yaml: thresholds.kv_pressure_ratio: expected a share from 0 to 1 (0.9 for 90 %), got 90"),
    ("thresholds: {failures: 0}", "c.yaml: thresholds.failures: expected at least 1, got 0"),
    ("thresholds: {fast_window: 1h, slow_window: 10m}\ntargets: [a]",
     "c.yaml: targets[0].thresholds: fast_window 3600 s is longer than slow_window 600 s"),
    ("thresholds: {failures: 2.5}", "c.yaml: thresholds.failures: expected a whole number, got 2.5"),
    ("targets: [{url: a, thresholds: {holds: 3s}}]",
     "c.yaml: targets[0].thresholds.holds: unknown key; did you mean hold?"),
    ("a: &x [1]\nb: *x", "c.yaml:2:4: aliases are not accepted"),
    ("a: b: c", "c.yaml:1:5: mapping values are not allowed here"),
    ("[1]", "c.yaml: expected keys and values at the top, got a list"),
    ("logs: {sources: [{name: a, push: true, path: [x]}]}",
     "c.yaml: logs.sources[0].path: unknown key; did you mean paths?"),
    ("logs: {limits: {window: 600}}", "c.yaml: logs.limits.window: 600 is no duration: write 600s"),
    ("logs: {limits: {window_s: 600}}",
     'c.yaml: logs.limits.window_s: is called window now: write window: "10m" or such'),
    ('logs: {limits: {max_series: "200"}}',
     'c.yaml: logs.limits.max_series: expected a whole number, got "200": write 200 without quotes'),
    ("logs: {limits: {max_line: 10B}}", 'c.yaml: logs.limits.max_line: expected at least 1024B, got "10B"'),
    ("alerts: {limits: {queue_for: 15}}", "c.yaml: alerts.limits.queue_for: 15 is no duration: write 15s"),
    ("review: {slos: [{name: 'a|b', indicator: ttft, threshold: 1s, share: 0.9}]}",
     'c.yaml: review.slos[0].name: expected a name of letters, digits, spaces and _./:-, got "a|b"'),
    ("targets: [{url: a, headers: {'X Y': z}}]",
     'c.yaml: targets[0].headers.X Y: expected a header\'s name such as X-Scope-OrgID, got "X Y"'),
    ("targets: [{url: a, headers: {X-Y: 'z\u00e9'}}]",
     'c.yaml: targets[0].headers.X-Y: expected a header\'s value, in ASCII, got "z\u00e9"'),
    ("targets: [{url: a, labels: {a-b: z}}]",
     'c.yaml: targets[0].labels.a-b: expected a label name such as cluster, got "a-b"'),
    ("logs: {sources: [{name: 'a b', push: true}]}",
     'c.yaml: logs.sources[0].name: expected up to 64 letters, digits and _.-, got "a b"'),
    ("review: {gpus: '2'}", 'c.yaml: review.gpus: expected a number, got "2": write 2 without quotes'),
]  # fmt: skip


@pytest.mark.parametrize(("text", "message"), MISTAKES, ids=[case[0][:40] for case in MISTAKES])
def test_a_mistake_is_named_exactly(text: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        build(text)
    assert str(raised.value) == message


def test_nothing_is_needed_but_targets_may_say_much() -> None:
    assert build("").targets == ()
    found = build("""
interval: 10s
thresholds: {hold: 1m}
targets:
  - llm-1
  - url: https://h/prefix/metrics
    name: chat
    role: decode
    service_class: batch
    interval: 1m30s
    timeout: 500ms
    bearer_token_file: /run/token
    settings: {max_model_len: 8192}
    labels: {cluster: a}
    thresholds: {failures: 5}
""")
    first, second = found.targets
    assert (first.name, first.url) == ("llm-1:8000", "http://llm-1:8000/metrics")
    assert (first.interval, first.timeout, first.thresholds.hold) == (10.0, 9.0, 60.0)
    assert (second.name, second.url) == ("chat", "https://h:443/prefix/metrics")
    assert (second.role, second.service_class, second.interval, second.timeout) == (Role.DECODE, "batch", 90.0, 0.5)
    assert (second.thresholds.hold, second.thresholds.failures) == (60.0, 5)
    assert (second.settings, second.labels) == ({"max_model_len": "8192"}, {"cluster": "a"})


def test_every_threshold_can_be_set_and_times_are_durations() -> None:
    for field in fields(Thresholds):
        number = field.default
        assert isinstance(number, int | float)
        text = f'"{number:g}s"' if field.name in thresholds.TIMES else f"{number}"
        found = build(f"thresholds: {{{field.name}: {text}}}\ntargets: [a]")
        assert found.targets[0].thresholds == Thresholds()
    names = {field.name for field in fields(Thresholds)}
    assert names > thresholds.TIMES | thresholds.SHARES
    times = ("hold", "release", "span", "window", "after", "start", "silence", "budget")
    assert {name for name in names if name.split("_")[-1] in times} == thresholds.TIMES
    assert {name for name in names if name.endswith(("_share", "_ratio"))} <= thresholds.SHARES


def test_windows_hold_at_least_four_scrapes_unless_the_file_says_otherwise() -> None:
    (rare,) = build("interval: 30s\ntargets: [a]").targets
    assert (rare.thresholds.fast_window, rare.thresholds.slow_window) == (120.0, 600.0)
    (told,) = build("interval: 30s\nthresholds: {fast_window: 1m}\ntargets: [a]").targets
    assert told.thresholds.fast_window == 60.0


ADDRESSES = [
    ("http://localhost:8000", "http://localhost:8000/metrics", "localhost:8000"),
    ("localhost:8000", "http://localhost:8000/metrics", "localhost:8000"),
    ("localhost", "http://localhost:8000/metrics", "localhost:8000"),
    ("https://h", "https://h:443/metrics", "h:443"),
    ("http://h:1/metrics/", "http://h:1/metrics", "h:1"),
    ("http://h:1/a/metrics", "http://h:1/a/metrics", "h:1/a"),
    ("http://[::1]:8000", "http://[::1]:8000/metrics", "[::1]:8000"),
    ("http://u:p@h:1", "http://h:1/metrics", "h:1"),
    ("u:p@h:1", "http://h:1/metrics", "h:1"),
    ("http://h:1/metrics?token=s", "http://h:1/metrics?token=s", "h:1"),
]


@pytest.mark.parametrize(("text", "url", "name"), ADDRESSES)
def test_addresses_as_people_write_them(text: str, url: str, name: str) -> None:
    address = parse_address(text)
    assert (address.url, address.name) == (url, name)


def test_credentials_in_an_address_are_used_and_never_shown() -> None:
    target = build("targets: ['http://user:S3CRET@h:1/metrics?token=S3CRET']").targets[0]
    assert (target.credentials.username, target.credentials.password) == ("user", "S3CRET")
    assert "S3CRET" not in repr(target)
    assert "S3CRET" not in target.name
    assert shown("http://user:S3CRET@h:1/a?token=S3CRET#S3CRET") == "http://h:1/a"


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_one_line(text: str) -> None:
    said = shown(text)
    try:
        said += parse_address(text).name.split("/")[0]
    except ValueError as error:
        said += str(error)
    assert not {"\n", "@"} & set(said.replace(shown(text), "")), said
    assert "\n" not in said


@given(st.binary(max_size=200))
def test_any_bytes_are_a_config_or_a_config_error(content: bytes) -> None:
    said = "c: fine"
    try:
        loader.build("c", load("c", content))
    except (ConfigError, YamlError) as error:
        said = str(error)
    assert said.startswith("c")


def test_a_file_that_is_missing_a_folder_or_huge_is_one_line(tmp_path: Path) -> None:
    big = tmp_path / "big.yaml"
    big.write_bytes(b"#" * (strict_yaml.MAX_BYTES + 1))
    for path, says in ((tmp_path / "none", "No such file"), (tmp_path, "Is a directory"), (big, "larger than")):
        with pytest.raises(ConfigError, match=says) as raised:
            loader.load(path)
        assert "\n" not in str(raised.value)


def test_the_example_config_is_usable_and_mentions_every_key() -> None:
    path = Path(__file__).parent.parent.parent / "config.example.yaml"
    loaded = loader.load(path)
    assert loaded.targets
    text = path.read_text()
    models = (
        schema.File,
        schema.TargetConfig,
        schema.DiscoveryConfig,
        schema.FlightConfig,
        schema.CanaryConfig,
        schema.Limits,
    )
    for key in [key for model in models for key in model.model_fields]:
        assert f"{key}:" in text, key
