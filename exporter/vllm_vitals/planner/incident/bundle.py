"""What a bug report about a page needs, without a name of anybody's: the post-mortem and the scrapes, in one file.

Input: the document, an API client, pasts. Output: a zip file: ``incident.json`` and a recording a server, which
`check --replay` reads. Invariant: addresses, model names and every label that Prometheus added are replaced or left
out; prompts and outputs are in no metric.
"""

import json
import re
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from io import BytesIO
from pathlib import Path
from typing import Any

from vllm_vitals.core.snapshot import Scrape
from vllm_vitals.planner.incident.episodes import Incident
from vllm_vitals.planner.incident.past import Past
from vllm_vitals.prometheus.raw import Ask, Reader
from vllm_vitals.recordings import recording

BEFORE_S, AFTER_S = 900.0, 300.0
MAX_SERVERS = 10
# Values of labels that name a model, an adapter or a place; all that vLLM has beside numbers and closed sets.
_NAMING = re.compile(
    rb"\b(model_name|model|served_model_name|lora_name|lora_adapter|running_lora_adapters|waiting_lora_adapters"
    rb"|instance|pod|node|host|hostname|namespace|WorkerId|ReplicaId|SessionName|remote|url|path|handler)"
    rb'="((?:[^"\\]|\\.)*)"'
)
README = """A post-mortem by `vllm-vitals incident` and the scrapes that it rests on.
Addresses and model names are replaced; there are no prompts or outputs in metrics.
Replay: vllm-vitals check --replay server-1.jsonl.gz
"""


class Names:
    """Gives each foreign name the same short one, wherever it stands."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, kind: str, name: str) -> str:
        """Return the short name of ``name``."""
        if not name:
            return name
        count = sum(each.startswith(f"{kind}-") for each in self._known.values())
        return self._known.setdefault(name, f"{kind}-{count + 1}")

    def text(self, text: str) -> str:
        """Return a text with every known name replaced, the longest first."""
        for name in sorted(self._known, key=len, reverse=True):
            text = text.replace(name, self._known[name])
        return text

    def body(self, body: bytes) -> bytes:
        """Return a page without names."""

        def short(match: "re.Match[bytes]") -> bytes:
            label, value = match[1].decode(), match[2].decode(errors="replace")
            kind = "model" if "model" in label else "name"
            return f'{label}="{self.of(kind, value)}"'.encode()

        return _NAMING.sub(short, body)


def write(path: Path, document: Mapping[str, Any], ask: Ask, pasts: Sequence[Past], chosen: Iterable[Incident]) -> int:
    """Write the file; return how many servers' scrapes are in it. Raises OSError, `PromError`."""
    incidents = list(chosen)
    names = Names()
    with zipfile.ZipFile(path, "x", zipfile.ZIP_DEFLATED) as file:
        concerned = [past for past in pasts if any(each.key.target == past.server.name for each in incidents)]
        for past in concerned[:MAX_SERVERS]:
            own = [each for each in incidents if each.key.target == past.server.name]
            for _, value in past.server.labels:
                names.of("server" if value == past.server.name else "label", value)
            for model in past.server.models:
                names.of("model", model)
            start, end = min(each.start for each in own) - BEFORE_S, max(each.end for each in own) + AFTER_S
            scrapes = (_redacted(scrape, names) for scrape in Reader(ask, past.server).scrapes(start, end))
            file.writestr(f"{names.of('server', past.server.name)}.jsonl.gz", _recorded(scrapes))
        # what stands beside names pods and nodes of others
        told = [{**each, "beside": []} for each in document["incidents"]]
        plain = json.dumps({**document, "incidents": told, "source": "a Prometheus"}, indent=2, ensure_ascii=False)
        file.writestr("incident.json", names.text(plain))
        file.writestr("README.txt", README)
    return len(concerned[:MAX_SERVERS])


def _redacted(scrape: Scrape, names: Names) -> Scrape:
    return replace(
        scrape, body=None if scrape.body is None else names.body(scrape.body), detail=names.text(scrape.detail)
    )


def _recorded(scrapes: Iterable[Scrape]) -> bytes:
    into = BytesIO()
    with recording.Writer(into) as writer:
        for scrape in scrapes:
            writer.write(scrape)
    return into.getvalue()
