"""Many mixed calls of a server, all from one seed, and what each must come to."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

LONG = 600  # tokens of what somebody leaves, aborts or names twice
GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
WEIGHTS = {"whole": 28, "stream": 28, "bad": 18, "abort": 8, "twice": 4, "leave": 8, "leave unread": 4, "half": 2}
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


def _make_texts(rng: random.Random) -> list[str]:
    texts = []
    for _ in range(500):
        shared = "You are asked one question, and answer it in one sentence. " * rng.choice((0, 1, 1, 4))
        texts.append(shared + "".join(rng.choices("abcdefgh é漢", k=rng.choice((1, 8, 40, 150)))))
    return texts


# Not another one each time: tokenizers keeps the last 10,000 that it saw.
TEXTS = _make_texts(random.Random(0))


def _text(rng: random.Random) -> str:
    return rng.choice(TEXTS)


def _native(rng: random.Random, kind: str) -> Planned:
    prompts, n, tokens = rng.choice((0, 0, 0, 0, 1, 3)), rng.choice((1, 1, 1, 1, 3)), rng.choice((0, 1, 5, 12, 40))
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
    prompts, n = rng.choice((1, 1, 1, 3)), rng.choice((1, 1, 1, 2))
    texts = [_text(rng) for _ in range(prompts)]
    fields = {"prompt": texts[0] if prompts == 1 else texts, "n": n, "max_tokens": rng.choice((0, 1, 8, 24))}
    if rng.random() < 0.3:
        fields |= {"logprobs": 2, "echo": True}
    return Planned(kind, COMPLETIONS, fields | _streamed(rng, kind), prompts * n)


def _chat(rng: random.Random, kind: str) -> Planned:
    n = rng.choice((1, 1, 1, 2))
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": _text(rng)}]
    fields = {"messages": messages, "n": n, "max_completion_tokens": rng.choice((1, 8, 24))}
    return Planned(kind, CHAT, fields | _streamed(rng, kind), n)


def _streamed(rng: random.Random, kind: str) -> dict[str, Any]:
    if kind == "whole":
        return {}
    return {"stream": True, "stream_options": {"include_usage": rng.random() < 0.5}}
