"""Whatever a body holds, it is answered, or refused by a 400 in words; never by a 500."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evolution.serve.app import BODIES
from evolution.serve.native import SAMPLING_SCHEMA
from tests.helpers.serving import ScriptedEngine
from tests.unit.test_serve_app import GOOD, error_of, make_client

NAMES = sorted({name for body in BODIES for name in body.model_fields})
SAMPLING_NAMES = sorted(SAMPLING_SCHEMA["properties"]) + ["regex", "json_schema", "dtype", "no_stop_trim", "max_tokens"]
NUMBERS = st.integers() | st.integers(-3, 3) | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = st.none() | st.booleans() | NUMBERS | st.sampled_from([10**400, 2**63, 2**31, -1e308]) | st.text(max_size=8)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)
SAMPLING = st.dictionaries(st.sampled_from(SAMPLING_NAMES) | st.text(max_size=8), VALUES, max_size=4)
PARTS = st.lists(st.dictionaries(st.sampled_from(["type", "text", "image_url"]), VALUES | st.just("text"), max_size=3))
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": VALUES | st.sampled_from(["user", "system", "assistant", "bot"]), "content": VALUES | PARTS}
    ),
    max_size=3,
)
FIELDS = {"sampling_params": SAMPLING | st.lists(SAMPLING, max_size=3), "messages": MESSAGES}
PAIRS = st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), FIELDS.get(name, VALUES) | VALUES))
ANY_BODY = st.lists(PAIRS, max_size=5).map(dict)


@pytest.fixture(scope="module")
def post():
    async def start() -> httpx.AsyncClient:
        return make_client(ScriptedEngine())

    with asyncio.Runner() as runner:
        client = runner.run(start())
        yield lambda path, content: runner.run(
            client.post(path, content=content, headers={"content-type": "application/json"})
        )
        runner.run(client.aclose())


def check(post, path: str, fields: dict[str, Any]) -> None:
    content = json.dumps(fields, ensure_ascii=True)
    response = post(path, content)
    if response.status_code != 200:
        error_of(response, 400)


@pytest.mark.parametrize("path", list(GOOD))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=ANY_BODY, good=st.booleans())
def test_any_body(post, path: str, fields: dict[str, Any], good: bool) -> None:
    check(post, path, {**(GOOD[path] if good else {}), **fields})


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("path", list(GOOD))
@settings(max_examples=2000, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=ANY_BODY, good=st.booleans())
def test_two_thousand_bodies(post, path: str, fields: dict[str, Any], good: bool) -> None:
    check(post, path, {**(GOOD[path] if good else {}), **fields})


@pytest.mark.parametrize("path", list(GOOD))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=40))
def test_any_bytes(post, path: str, content: bytes) -> None:
    error_of(post(path, content), 400)
