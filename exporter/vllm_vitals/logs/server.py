"""What the logs say about one server: its settings, and which configured defaults really took.

Input: `ServerSetting` events in order. Output: name -> value, and an audit. Invariant: a new start forgets the old one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from vllm_vitals.logs.events import ServerSetting

MAX_SETTINGS = 200
# vLLM renames this one before it prints the defaults in force (config/model.py get_diff_sampling_param).
_PRINTED_AS = {"max_new_tokens": "max_tokens"}
# The line that prints the defaults in force exists since this release; before it nothing can be confirmed.
_AUDITABLE_SINCE = (0, 8, 2)


@dataclass(frozen=True, slots=True)
class Override:
    """One configured default: its value, and whether the start-up log confirms it (None: it has not said yet)."""

    configured: Any
    confirmed: bool | None


@dataclass(slots=True)
class ServerState:
    """Mutable, and plain data throughout: it is stored in the checkpoint as it is."""

    values: dict[str, Any] = field(default_factory=dict)
    given: list[str] = field(default_factory=list)
    in_force: dict[str, Any] | None = None
    started: bool = False

    def apply(self, event: ServerSetting) -> None:
        """Take in one setting."""
        match event.name:
            case "restart":
                version = self.values.get("version")
                self.values = {} if version is None else {"version": version}
                self.given, self.in_force, self.started = [], None, False
            case "started":
                self.started = True
            case "default_sampling_params":
                self.in_force = dict(event.value) if isinstance(event.value, Mapping) else {}
                if "max_tokens" in self.in_force:
                    self.values["default_max_tokens"] = self.in_force["max_tokens"]
            case name if name in self.values or len(self.values) < MAX_SETTINGS:
                if event.given:
                    self.given.append(name)
                elif name in self.given and self.values[name] not in (None, -1, "auto"):
                    return
                self.values[name] = event.value

    def overrides(self) -> dict[str, Override]:
        """Compare each configured default with the defaults in force."""
        configured = self.values.get("override_generation_config")
        if not isinstance(configured, Mapping):
            return {}
        return {str(name): Override(value, self._confirmed(str(name), value)) for name, value in configured.items()}

    def _confirmed(self, name: str, value: Any) -> bool | None:
        if self.in_force is not None:
            return bool(self.in_force.get(_PRINTED_AS.get(name, name)) == value)
        if not self.started or not _auditable(self.values.get("version")):
            return None
        return False


def _auditable(version: Any) -> bool:
    numbers = [int(part) if part.isdigit() else 0 for part in str(version or "").split(".")[:3]]
    return not version or tuple(numbers) >= _AUDITABLE_SINCE
