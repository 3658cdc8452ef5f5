"""Many mixed requests to a server, all from one seed: what each must come to, and what it came to.

Whoever reads an answer to its end must find each of its results ended exactly once, whoever is wrong must be refused,
and who leaves is heard of no more; anything else is an AssertionError with the request in it.
"""

from __future__ import annotations

import asyncio
import json
import random
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.helpers.serving import ServerProcess

CALLERS = 24
PATIENCE = 60.0  # s without a byte, which is a hang
LONG = 600  # tokens of what somebody leaves, aborts or names twice
GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
WEIGHTS = {"whole": 30, "stream": 30, "bad": 14, "abort": 8, "twice": 4, "leave": 8, "leave unread": 4, "half": 2}
BAD: list[tuple[str, Any, int]] = [  # path, fields or bytes, status
    (GENERATE, {}, 400),
    (GENERATE, {"text": ""}, 400),
    (GENERATE, {"text": "x" * 5000}, 400),
    (GENERATE, {"text": "a", "input_ids": [1]}, 400),
    (GENERATE, {"input_ids": [-1]}, 400),
    (GENERATE, {"input_ids": [10**6]}, 400),
    (GENERATE, {"text": "a", "sampling_params": {"temperature": -1}}, 400),
    (GENERATE, {"text": ["a", "b"], "sampling_params": [{}, {"n": 0}], "stream": True}, 400),
    (GENERATE, {"text": "a", "sampling_params": {"n": 129}}, 400),
    (GENERATE, {"text": "a", "sampling_params": {"max_tokens": 5}}, 400),
    (GENERATE, {"text": "a", "image_data": "not base64!"}, 400),
    (GENERATE, {"text": ["a", "b"], "rid": ["same", "same"]}, 400),
    (GENERATE, b"{", 400),
    (GENERATE, b'{"text": "\xff"}', 400),
    (GENERATE, b'{"text": "\\ud83d"}', 400),
    (COMPLETIONS, {"prompt": []}, 400),
    (COMPLETIONS, {"prompt": [1, "a"], "stream": True}, 400),
    (COMPLETIONS, {"prompt": "a", "max_tokens": -1}, 400),
    (CHAT, {"messages": []}, 400),
    (CHAT, {"messages": [{"role": "bot", "content": "a"}], "stream": True}, 400),
    (CHAT, {"messages": [{"role": "user", "content": "a"}], "tools": [{"type": "function"}]}, 400),
    ("/abort_request", {}, 400),
    ("/v1/embeddings", {"input": "a"}, 404),
    ("/health", {}, 405),
]


@dataclass(frozen=True)
class Planned:
    """results: that a right answer holds. tokens: that each must have, where nothing can end it sooner."""

    kind: str
    path: str
    body: Any  # fields, or bytes
    results: int = 1
    tokens: int | None = None
    status: int = 200
    events: int = 0  # that are read before it leaves
    after: float = 0.0  # s before it leaves


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


# ---------------------------------------------------------------------------- what is planned


def plan(count: int, seed: int) -> list[Planned]:
    rng = random.Random(seed)
    kinds = rng.choices(list(WEIGHTS), list(WEIGHTS.values()), k=count)
    return [_draw(rng, kind, index) for index, kind in enumerate(kinds)]


def _draw(rng: random.Random, kind: str, index: int) -> Planned:
    if kind == "bad":
        path, body, status = rng.choice(BAD)
        return Planned(kind, path, body, status=status)
    if kind in ("whole", "stream"):
        draw = rng.choice((_native, _native, _completion, _chat))
        return draw(rng, kind)
    params = {"max_new_tokens": LONG, "temperature": rng.choice((0, 1)), "ignore_eos": True}
    fields = {"text": _text(rng), "sampling_params": params, "stream": True}
    if kind in ("abort", "twice"):
        return Planned(kind, GENERATE, {**fields, "rid": f"{kind}-{index}"}, tokens=LONG)
    if kind == "leave":
        path = rng.choice((GENERATE, COMPLETIONS))
        if path == COMPLETIONS:
            fields = {"prompt": _text(rng), "max_tokens": LONG, "ignore_eos": True, "stream": True}
        return Planned(kind, path, fields, events=rng.randint(1, 12))
    return Planned(kind, GENERATE, {**fields, "stream": rng.random() < 0.5}, after=rng.choice((0.0, 0.005, 0.05)))


def _text(rng: random.Random) -> str:
    shared = "You are asked one question, and answer it in one sentence. " * rng.choice((0, 1, 1, 4))
    return shared + "".join(rng.choices("abcdefgh é漢", k=rng.choice((1, 8, 40, 150))))


def _native(rng: random.Random, kind: str) -> Planned:
    prompts, n, tokens = rng.choice((0, 0, 0, 1, 2, 4)), rng.choice((1, 1, 1, 2, 3)), rng.choice((0, 1, 5, 20, 60))
    params: dict[str, Any] = {"max_new_tokens": tokens, "temperature": rng.choice((0, 1)), "ignore_eos": True, "n": n}
    may_stop = rng.random() < 0.3
    if may_stop:
        params |= {"stop": ["e", "zz"], "frequency_penalty": 0.5, "top_p": 0.9}
    texts = [_text(rng) for _ in range(prompts or 1)]
    body: dict[str, Any] = {"text": texts if prompts else texts[0], "sampling_params": params}
    if rng.random() < 0.2:
        body = {"input_ids": [list(text.encode()) for text in texts], "sampling_params": params}
        prompts = prompts or 1
    if rng.random() < 0.2:
        body |= {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    body["stream"] = kind == "stream"
    return Planned(kind, GENERATE, body, max(1, prompts) * n, None if may_stop else tokens)


def _completion(rng: random.Random, kind: str) -> Planned:
    prompts, n = rng.choice((1, 1, 3)), rng.choice((1, 1, 2))
    texts = [_text(rng) for _ in range(prompts)]
    fields = {"prompt": texts[0] if prompts == 1 else texts, "n": n, "max_tokens": rng.choice((0, 1, 16, 40))}
    if rng.random() < 0.3:
        fields |= {"logprobs": 2, "echo": True}
    return Planned(kind, COMPLETIONS, fields | _streamed(rng, kind), prompts * n)


def _chat(rng: random.Random, kind: str) -> Planned:
    n = rng.choice((1, 1, 2))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": _text(rng)}]
    fields = {"messages": messages, "n": n, "max_completion_tokens": rng.choice((1, 16, 40))}
    return Planned(kind, CHAT, fields | _streamed(rng, kind), n)


def _streamed(rng: random.Random, kind: str) -> dict[str, Any]:
    if kind == "whole":
        return {}
    return {"stream": True, "stream_options": {"include_usage": rng.random() < 0.5}}


# ---------------------------------------------------------------------------- what comes of it


def send_all(server: ServerProcess, planned: list[Planned]) -> Tally:
    return asyncio.run(_send_all(server, planned))


def check_outcomes(outcomes: Counter[tuple[str, str]], planned: list[Planned]) -> None:
    """One for each, of the kind that was meant: nearly all that were to leave or to be aborted came to it in time."""
    assert outcomes.total() == len(planned)
    sent = Counter(each.kind for each in planned)
    meant = {"bad": "refused", "abort": "aborted", "leave": "left", "leave unread": "left", "half": "left"}
    for kind in WEIGHTS:
        assert outcomes[kind, meant.get(kind, "finished")] >= sent[kind] * 0.9 > 0, outcomes


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
    seen = 0
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
            if seen == 1 and each.kind == "abort":
                await client.post("/abort_request", json={"rid": each.body["rid"]})
            if seen == 1 and each.kind == "twice":
                again = await client.post(each.path, json=each.body)
                assert again.status_code == 400 and "pending" in again.json()["message"], again.text[:500]
    assert sorted(ends) == list(range(each.results)), f"results that have ended: {ends}"
    aborts = sum(end == "abort" for end in ends.values())
    assert not aborts or each.kind == "abort", f"aborted unasked: {ends}"
    tally.aborts += aborts
    return "aborted" if aborts else "finished"


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
