"""What each field may be, in JSON Schema's words, for the OpenAPI document. What checks it, and says in its own words
what is allowed, is common/sampling_params.py."""

from __future__ import annotations

from typing import Any

from common.sampling_params import (
    DEFAULTS,
    GRAMMARS,
    INT32_MAX,
    INT64_MAX,
    INT64_MIN,
    MAX_N,
    MAX_STOP_CHARS,
    MAX_STOP_TOKEN_IDS,
    MAX_STOPS,
    NEUTRAL,
)

# Keys that say nothing of null, which is as good as absent: they stand beside a field's types.
RANGES: dict[str, dict[str, Any]] = {
    "max_new_tokens": {"minimum": 0, "maximum": INT32_MAX},
    "min_new_tokens": {"minimum": 0, "maximum": INT32_MAX},
    "temperature": {"minimum": 0},
    "top_p": {"exclusiveMinimum": 0, "maximum": 1},
    "top_k": {"minimum": -1, "not": {"const": 0}},
    "min_p": {"minimum": 0, "maximum": 1},
    "n": {"minimum": 1, "maximum": MAX_N},
    "seed": {"minimum": INT64_MIN, "maximum": INT64_MAX - MAX_N},
    "repetition_penalty": {"exclusiveMinimum": 0, "maximum": 2},
    "frequency_penalty": {"minimum": -2, "maximum": 2},
    "presence_penalty": {"minimum": -2, "maximum": 2},
    "stop": {
        "minLength": 1,
        "maxLength": MAX_STOP_CHARS,
        "maxItems": MAX_STOPS,
        "items": {"type": "string", "minLength": 1, "maxLength": MAX_STOP_CHARS},
    },
    "stop_token_ids": {"maxItems": MAX_STOP_TOKEN_IDS, "items": {"type": "integer", "minimum": 0}},
}
IDS = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": INT32_MAX}, "minItems": 1}
TEXT = {"type": "string", "minLength": 1}
TEXTS = {"minLength": 1, "minItems": 1, "items": TEXT}
NOT_SUPPORTED: dict[str, Any] = {"enum": [None]}

_JSON_TYPES = {bool: "boolean", int: "integer", float: "number", str: "string"}


def one_or_list(schema: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [schema, {"type": "array", "items": schema, "minItems": 1}]}


def sampling_schema() -> dict[str, Any]:
    """Of `sampling_params`, where a name that is not known is refused."""
    properties: dict[str, dict[str, Any]] = {
        name: {"type": [_JSON_TYPES[type(default)], "null"], "default": default, **RANGES.get(name, {})}
        for name, default in DEFAULTS.items()
        if type(default) in _JSON_TYPES
    }
    properties["stop"] = {"type": ["string", "array", "null"], **RANGES["stop"]}
    properties["stop_token_ids"] = {"type": ["array", "null"], **RANGES["stop_token_ids"]}
    properties |= {name: {"enum": list(dict.fromkeys((neutral, None)))} for name, neutral in NEUTRAL.items()}
    properties |= dict.fromkeys(GRAMMARS, NOT_SUPPORTED)
    return {"type": "object", "properties": properties, "additionalProperties": False}
