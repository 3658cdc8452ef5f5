"""Sends a server what soak_plan.py has planned, and sees what each call came to.

Whoever reads an answer to its end must find each of its results ended exactly once, whoever is wrong must be refused,
and who leaves is heard of no more; anything else is an AssertionError with the call in it.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.helpers.serving import ServerProcess
from tests.helpers.soak_plan import GENERATE, WEIGHTS, Planned

CALLERS = 24
PATIENCE = 60.0  # s without a byte, which is a hang


@dataclass
class Tally:
    """outcomes: of each planned request, by its kind and how it ended. accepted: requests that were in the engine for
    certain, each of n counted; perhaps: those of who left before anything came; aborts: that ended in an abort which
    somebody read."""

    outcomes: Counter[tuple[str, str]] = field(default_factory=Counter)
    accepted: int = 0
    perhaps: int = 0
    aborts: int = 0

    def add(self, other: Tally) -> None:
        self.outcomes += other.outcomes
        self.accepted += other.accepted
        self.perhaps += other.perhaps
        self.aborts += other.aborts


def send_all(server: ServerProcess, planned: list[Planned]) -> Tally:
    return asyncio.run(_send_all(server, planned))


def check_outcomes(outcomes: Counter[tuple[str, str]], planned: list[Planned]) -> None:
    """One for each, of the kind that was meant; a client on a busy machine may come too late to leave or to abort."""
    assert outcomes.total() == len(planned)
    sent = Counter(each.kind for each in planned)
    meant = {
        "bad": "refused",
        "abort": "aborted",
        "twice": "aborted",
        "leave": "left",
        "leave unread": "left",
        "half": "left",
    }
    for kind in WEIGHTS:
        assert outcomes[kind, meant.get(kind, "finished")] >= sent[kind] * 0.5 > 0, outcomes


async def _send_all(server: ServerProcess, planned: list[Planned]) -> Tally:
    tally, queue = Tally(), iter(planned)
    limits = httpx.Limits(max_connections=4 * CALLERS)
    async with httpx.AsyncClient(base_url=server.url, timeout=PATIENCE, limits=limits) as client:

        async def call() -> None:
            for each in queue:
                try:
                    tally.outcomes[each.kind, await _send(client, server.port, each, tally)] += 1
                except (AssertionError, httpx.HTTPError, OSError, TimeoutError) as error:
                    raise AssertionError(f"{each}: {error!r}") from error

        async with asyncio.TaskGroup() as group:
            for _ in range(CALLERS):
                group.create_task(call())
    return tally


async def _send(client: httpx.AsyncClient, port: int, each: Planned, tally: Tally) -> str:
    """How it ended, in a word."""
    if each.kind in ("leave unread", "half"):
        await _leave_unread(port, each)
        tally.perhaps += each.kind == "leave unread"
        return "left"
    if each.kind in ("whole", "bad"):
        raw = each.body if isinstance(each.body, bytes) else json.dumps(each.body).encode()
        response = await client.post(each.path, content=raw, headers={"content-type": "application/json"})
        assert response.status_code == each.status, f"{response.status_code}: {response.text[:500]}"
        if each.kind == "bad":
            assert response.json()["object"] == "error" and response.json()["message"]
            return "refused"
        _check_whole(each, response.json())
        tally.accepted += each.results
        return "finished"
    return await _stream(client, each, tally)


async def _stream(client: httpx.AsyncClient, each: Planned, tally: Tally) -> str:
    ends: dict[int, str] = {}
    seen, last = 0, {}
    began, again_at = time.monotonic(), None
    async with client.stream("POST", each.path, json=each.body) as response:
        assert response.status_code == 200, (await response.aread())[:500]
        tally.accepted += each.results
        async for event in _events(response):
            seen += 1
            if each.kind == "leave" and seen == each.events:
                return "left"
            for index, end, tokens in _news(each, event):
                assert index not in ends, f"result {index} has ended, and goes on"
                if end:
                    ends[index] = end
                    assert end == "abort" or each.tokens in (None, tokens), f"{tokens} tokens"
            last = event
            if seen == 1 and each.kind == "twice":
                again_at = await _name_again(client, each, tally)
            if seen == 1 and each.kind in ("abort", "twice"):
                await client.post("/abort_request", json={"rid": each.body["rid"]})
    assert sorted(ends) == list(range(each.results)), f"results that have ended: {ends}"
    aborts = sum(end == "abort" for end in ends.values())
    assert not aborts or each.kind in ("abort", "twice"), f"aborted unasked: {ends}"
    tally.aborts += aborts
    if again_at:
        assert began + last["meta_info"]["e2e_latency"] <= again_at, "two of a name were out at once"
    return "aborted" if aborts else "finished"


async def _name_again(client: httpx.AsyncClient, each: Planned, tally: Tally) -> float | None:
    """Refused, or taken because the first has ended while we were slow to read: then when it was taken."""
    async with client.stream("POST", each.path, json=each.body) as response:
        if response.status_code == 200:
            tally.accepted += 1
            return time.monotonic()
        message = json.loads(await response.aread())["message"]
    assert response.status_code == 400 and "pending" in message, f"{response.status_code}: {message}"
    return None


async def _events(response: httpx.Response) -> AsyncIterator[dict[str, Any]]:
    """Its form is checked: nothing but `data: ` lines with one object each, and at the end, once, [DONE]."""
    over = False
    async for line in response.aiter_lines():
        if not line:
            continue
        assert not over and line.startswith("data: "), line[:200]
        over = line == "data: [DONE]"
        if not over:
            event = json.loads(line.removeprefix("data: "))
            assert "error" not in event, event
            yield event
    assert over, "the stream broke off"


def _news(each: Planned, event: dict[str, Any]) -> list[tuple[int, str | None, int]]:
    """(index, why it ended, tokens so far; not told for OpenAI's) of what an event brings news of."""
    if each.path != GENERATE:
        return [(choice["index"], choice["finish_reason"], 0) for choice in event["choices"]]
    meta = event["meta_info"]
    finish = meta["finish_reason"]
    return [(event.get("index", 0), finish and finish["type"], meta["completion_tokens"])]


def _check_whole(each: Planned, answer: Any) -> None:
    if each.path != GENERATE:
        assert [choice["index"] for choice in answer["choices"]] == list(range(each.results))
        ends = [choice["finish_reason"] for choice in answer["choices"]]
    else:
        results = answer if isinstance(answer, list) else [answer]
        ends = [result["meta_info"]["finish_reason"]["type"] for result in results]
        lengths = {result["meta_info"]["completion_tokens"] for result in results}
        assert each.tokens is None or lengths == {each.tokens}, lengths
    assert len(ends) == each.results and set(ends) <= {"stop", "length"}, ends


async def _leave_unread(port: int, each: Planned) -> None:
    body = json.dumps(each.body).encode()
    sent = body[: len(body) // 2] if each.kind == "half" else body
    lines = [f"POST {each.path} HTTP/1.1", "Host: x", "Content-Type: application/json", f"Content-Length: {len(body)}"]
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write("\r\n".join([*lines, "", ""]).encode() + sent)
    await writer.drain()
    await asyncio.sleep(each.after)
    writer.close()
    await writer.wait_closed()
