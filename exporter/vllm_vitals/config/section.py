"""One section of the config file, for commands that need no targets: the review's, the log reader's.

Input: a file and the section's name. Output: the section, checked. Invariant: what the daemon would refuse there is
refused here with the same words, and so is a key at the top that nobody reads: a misspelt section is not an empty one.
"""

from pathlib import Path
from typing import Any

from pydantic import ValidationError

from vllm_vitals.config import strict_yaml
from vllm_vitals.config.errors import explain
from vllm_vitals.config.schema import File


class SectionError(Exception):
    """The file or the section cannot be used. One line a problem, each with the file and the key's path."""


def read(path: Path, name: str) -> Any:
    """The section ``name``; its defaults where the file has none. Raises `SectionError`."""
    try:
        document = strict_yaml.read(path)
    except strict_yaml.YamlError as error:
        raise SectionError(str(error)) from None
    ours = {key: value for key, value in document.items() if key == name or key not in File.model_fields}
    if name in ours and ours[name] is None:
        del ours[name]  # a section with nothing in it
    try:
        return getattr(File.model_validate(ours), name)
    except ValidationError as error:
        raise SectionError(explain(str(path), "", error, File)) from None
