"""Cases that schemathesis makes of the server's own OpenAPI document, right ones and wrong ones, to every operation:
none is a 500, a hang or a death, and every answer is one that the document knows."""

from __future__ import annotations

from collections import Counter

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.helpers.server_state import check_pool
from tests.helpers.serving import CHAT_TEMPLATE, serving

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
PATIENCE = 30  # s, of an answer that takes milliseconds
# So little context that whatever is asked for is soon over, and few requests at once.
OPTIONS = ["--tp-size", "2", "--context-length", "64", "--max-total-tokens", "512", "--max-running-requests", "8"]


@pytest.mark.parametrize(
    ("served", "cases"),
    [
        ("peer", 60),
        *[
            pytest.param(stage, 2000, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])
            for stage in ("rpyc", "broadcast", "peer")
        ],
    ],
)
def test_every_case_is_answered_as_the_document_says(served, cases):
    with serving("--stage", served, *OPTIONS, "--chat-template", str(CHAT_TEMPLATE)) as server:
        schema = schemathesis.openapi.from_url(f"{server.url}/openapi.json")
        operations = [found.ok() for found in schema.get_all_operations()]
        with_body = [operation for operation in operations if operation.body]
        seen: Counter[tuple[str, int]] = Counter()
        with requests.Session() as session:
            for operation in operations:
                # A body can be wrong in most ways; where nothing is taken, nothing can be.
                count = 1 + cases // (2 * len(with_body)) if operation.body else 10
                can_be_wrong = bool(operation.body or operation.query)  # in a path any text goes
                for mode in GenerationMode if can_be_wrong else [GenerationMode.POSITIVE]:
                    _send_cases(operation, mode, count, session, seen)
        print(dict(seen))
        assert server.process.poll() is None and server.client.get("/health").status_code == 200
        check_pool(server)
    assert seen.total() >= cases
    assert {status for _, status in seen} >= {200, 400}
    assert {label for label, _ in seen} == {operation.label for operation in operations}


def _send_cases(operation, mode, count, session, seen) -> None:
    @seed(1)
    @settings(
        max_examples=count,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def send(case) -> None:
        response = case.call(session=session, timeout=PATIENCE)
        seen[operation.label, response.status_code] += 1
        case.validate_response(response, checks=CHECKS)

    send()
