"""The section review: of the config file."""

from pathlib import Path

import pytest

from vllm_vitals.config.errors import ConfigError
from vllm_vitals.config.review import ReviewSettings
from vllm_vitals.planner.options import review_section as load


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    return path


def test_a_file_without_the_section_gives_defaults(tmp_path: Path) -> None:
    for text in ("", "targets: []\n", "review:\n", "targets: [this is not checked here]\n"):
        assert load(written(tmp_path, text)) == ReviewSettings()


def test_prices_and_objectives_by_model(tmp_path: Path) -> None:
    found = load(written(tmp_path, """
review:
  currency: EUR
  gpus: 2
  gpu_hour_price: 1.5
  identity_labels: [cluster]
  slos:
    - {name: first, indicator: ttft, threshold: 1s, share: 0.99, models: "chat.*", output_tokens: {mean: 300, p99: 900}}
  models:
    code: {gpus: 4, gpu_hour_price: 3, settings: {max_num_seqs: 8}}
"""))  # fmt: skip
    assert (found.gpus_of("chat-a"), found.price_of("chat-a")) == (2, 1.5)
    assert (found.gpus_of("code"), found.price_of("code")) == (4, 3)
    assert [slo.name for slo in found.slos_of("chat-a")] == ["first"]
    assert found.slos_of("code") == ()


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("review: {gpu_hour_prise: 1}", r"review\.gpu_hour_prise: unknown key; did you mean gpu_hour_price"),
        ("review: {gpus: 0}", r"review\.gpus: .*0"),
        ("review: {slos: [{name: a, indicator: ttft, threshold: 1s, share: 99}]}", r"review\.slos\[0\]\.share"),
        ("review: {slos: [{name: a, indicator: ttfb, threshold: 1s, share: 0.9}]}", r"review\.slos\[0\]\.indicator"),
        (
            "review: {slos: [{name: a, indicator: ttft, threshold: 1s, share: 0.9, models: '('}]}",
            "not a regular expression",
        ),
        ("review: {a: 1, a: 2}", "given twice"),
        ("review: 5", r"config\.yaml: review: expected keys and values, got 5"),
        ("reviews: {gpus: 2}", r"config\.yaml: reviews: unknown key; did you mean review\?"),
    ],
)
def test_mistakes_name_the_key(tmp_path: Path, text: str, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        load(written(tmp_path, text))


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match="/nowhere: No such file"):
        load(Path("/nowhere"))
