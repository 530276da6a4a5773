"""Each concept of a config has one definition: another base model, duration, size, share or SLO is found here."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "exporter" / "vllm_vitals"
VALUES, OBJECTIVES, OPTIONS = "config/values.py", "config/objectives.py", "cli/options.py"
DURATIONS = "config/durations.py"
# What may be defined under these names, and where.
HOME = {
    "Share": (VALUES, "core/thresholds.py"),  # there it marks what a number is, and checks nothing
    **dict.fromkeys(("Strict", "Size", "Positive", "LabelName", "Pattern", "TargetAddress"), (VALUES,)),
    **dict.fromkeys(("parse_size", "parse_listen"), (VALUES,)),
    **dict.fromkeys(("parse_duration", "duration_text", "DurationError"), (DURATIONS,)),
    **dict.fromkeys(("Slo", "OutputLength", "Indicator"), (OBJECTIVES,)),
    "Duration": (VALUES, OPTIONS),  # the type of a key, and that of an option, which reads it with the same function
    "ConfigError": ("config/errors.py",),
}
ACCESS = {"--bearer-token-file", "--user", "--password-file", "--ca-file", "--header"}
UNITS = {"s", "m", "h"}


def defined(tree: ast.Module) -> Iterator[str]:
    """Names that a module defines at its top."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef):
            yield node.name
        elif isinstance(node, ast.Assign):
            yield from (target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield node.target.id


def again(name: str, source: str) -> list[str]:
    """What a module defines that has its home elsewhere."""
    tree, found = ast.parse(source), []
    found += [each for each in defined(tree) if name not in HOME.get(each.lstrip("_"), (name,))]
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and name != VALUES:
            found += ["a base model" for base in node.bases if isinstance(base, ast.Name) and base.id == "BaseModel"]
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "ConfigDict":
            found += ["a model config"] if name != VALUES else []
        if isinstance(node, ast.Dict) and name != DURATIONS:
            keys = {key.value for key in node.keys if isinstance(key, ast.Constant) and isinstance(key.value, str)}
            found += ["units of durations"] if keys >= UNITS else []
        if isinstance(node, ast.Constant) and node.value in ACCESS and name != OPTIONS:
            found.append(f"the option {node.value}")
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and name != DURATIONS:
            units = [letters for letters in ("smhd", "mhd", "s|m|h") if letters in node.value]
            found += ["a pattern of durations"] if r"\d" in node.value and units else []
    return found


@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_is_defined_a_second_time(path: Path) -> None:
    assert again(str(path.relative_to(PACKAGE)), path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    "source",
    [
        "class _Model(BaseModel): ...",
        "CONFIG = ConfigDict(extra='forbid')",
        "def parse_duration(text): ...",
        "_UNITS = {'s': 1, 'm': 60, 'h': 3600}",
        "re.findall(r'(\\d+)([smhd])', text)",
        "Share = Annotated[float, Field(gt=0, lt=1)]",
        "class Slo: ...",
        "class _Duration(click.ParamType): ...",
        "class ConfigError(Exception): ...",
        "option = click.option('--ca-file')",
    ],
)
def test_a_second_definition_is_found(source: str) -> None:
    assert again("planner/new.py", source)
