"""What log collectors put around a line: Cloud Logging, journald, Loki, OpenTelemetry, CloudWatch, Splunk and others.

Input: one JSON record. Output: what it carries: lines as text, or records. Invariant: each step goes one level down and
gives each part of the record once, so that opening costs no more than the record's size.
"""

import base64
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

MAX_ELEMENTS = 20_000
Content = str | dict[str, Any]


@dataclass(frozen=True, slots=True)
class Carrier:
    """One key under which collectors keep a line or a record, and the JSON types that count there.

    ``sure``: nothing else has such a key, so a line without a record in it is a line of text and not a foreign record.
    """

    key: str
    types: tuple[type, ...]
    sure: bool = False


_LINE, _RECORD, _MANY = (str,), (dict,), (list,)
_EITHER = (str, dict)

# Keys that only collectors write; they go before a record's own "message".
SURE = (
    Carrier("textPayload", _LINE, True),  # Google Cloud Logging: text,
    Carrier("jsonPayload", _RECORD, True),  # and what it parsed
    Carrier("MESSAGE", (str, list), True),  # journalctl -o json, syslog-ng; a list of bytes where colours are in it
    Carrier("_raw", _LINE, True),  # Splunk
    Carrier("_msg", _LINE, True),  # VictoriaLogs
    Carrier("@message", _LINE, True),  # CloudWatch Logs Insights
    Carrier("LogMessage", _EITHER, True),  # Azure ContainerLogV2
    Carrier("LogEntry", _LINE, True),  # Azure ContainerLog
    Carrier("full_message", _LINE, True),  # GELF
    Carrier("short_message", _LINE, True),
    Carrier("resourceLogs", _MANY, True),  # OpenTelemetry's own JSON
    Carrier("scopeLogs", _MANY, True),
    Carrier("logRecords", _MANY, True),
    Carrier("logEvents", _MANY, True),  # CloudWatch subscriptions
)
# Keys that others write too; they come after a record's own "message".
UNSURE = (
    Carrier("Message", _EITHER),
    Carrier("Msg", _LINE),
    Carrier("Log", _EITHER),
    Carrier("record", _RECORD),
    Carrier("original", _LINE),  # Elastic's event.original
    Carrier("event.original", _LINE),
    Carrier("json", _RECORD),  # Filebeat with a parsed message
    Carrier("line", _LINE),  # logcli -o jsonl, Grafana
    Carrier("Body", _EITHER),  # OpenTelemetry's data model, as its exporters spell it
    Carrier("body", _EITHER),
    Carrier("event", _EITHER),  # Splunk HEC
    Carrier("log", _RECORD),  # Fluent Bit with a parsed log
    Carrier("message", _RECORD),  # Vector with a parsed message
    Carrier("structured", _RECORD),  # OpenShift
    Carrier("_source", _RECORD),  # Elasticsearch
    Carrier("hits", (dict, list)),
    Carrier("attributes", _RECORD),  # Datadog
    Carrier("content", _RECORD),
    Carrier("payload", _EITHER),
    Carrier("raw", _LINE),
    Carrier("events", _MANY),  # aws logs filter-log-events
    Carrier("streams", _MANY),  # Loki's push format
    Carrier("values", _MANY),
    Carrier("result", (dict, list)),  # Loki's answers, Splunk's exports
    Carrier("results", _MANY),
    Carrier("data", (dict, list)),
)


def carriers(keys: Collection[str], among: tuple[Carrier, ...]) -> tuple[Carrier, ...]:
    """Choose the carriers that a record with these keys may use, in order."""
    return tuple(one for one in among if one.key in keys)


def contents(record: Mapping[str, Any], carrier: Carrier) -> Iterator[Content] | None:
    """Say what the record carries there; None where that is not what collectors write."""
    value = record.get(carrier.key)
    if type(value) not in carrier.types:
        return None
    if isinstance(value, str):
        return iter((value,))
    if isinstance(value, dict):
        return iter((_any_value(value),))
    return _elements(value) if isinstance(value, list) else None


def _elements(value: list[Any]) -> Iterator[Content]:
    if value and type(value[0]) is int:
        text = _bytes(value)
        if text is not None:
            yield text
        return
    for one in islice(value, MAX_ELEMENTS):
        if isinstance(one, str | dict):
            yield one
        elif isinstance(one, list):
            pair = _pair(one)
            if pair is not None:
                yield pair


def _pair(one: list[Any]) -> Content | None:
    """Loki's [time, line], or the fields of one row of CloudWatch Logs Insights."""
    if len(one) >= 2 and isinstance(one[0], str) and isinstance(one[1], str):
        return one[1]
    cells = [cell for cell in one if isinstance(cell, dict) and isinstance(cell.get("field"), str)]
    return {cell["field"]: cell.get("value") for cell in cells} if cells else None


def _bytes(value: list[Any]) -> str | None:
    try:
        return bytes(value).decode("utf-8", "replace")
    except (TypeError, ValueError):
        return None


def _any_value(value: dict[str, Any]) -> Content:
    """Open OpenTelemetry's AnyValue; any other record stays as it is."""
    if len(value) != 1:
        return value
    (kind, inner), *_ = value.items()
    match kind, inner:
        case (("stringValue" | "string_value" | "Str" | "string" | "text"), str()):
            return inner
        case "bytesValue", str():
            return _base64(inner)
        case (("kvlistValue" | "kvlist_value"), {"values": [*pairs]}):
            return {
                str(one["key"]): _scalar(one.get("value")) for one in pairs if isinstance(one, dict) and "key" in one
            }
    return value


def _base64(text: str) -> str:
    try:
        return base64.b64decode(text, validate=True).decode("utf-8", "replace")
    except ValueError:
        return ""


def _scalar(value: Any) -> Any:
    if isinstance(value, dict) and len(value) == 1:
        (kind, inner), *_ = value.items()
        if kind == "intValue" and isinstance(inner, str) and inner.isdecimal() and len(inner) < 20:
            return int(inner)
        if kind in ("stringValue", "boolValue", "doubleValue", "intValue"):
            return inner
        return _any_value(value)
    return value
