"""The HTTP side alone, in process: what comes in, what goes out, and how every mistake is answered."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from common.tokenizer import Tokenizer
from evolution.serve import info
from evolution.serve.app import make_app
from evolution.serve.calls import Service
from evolution.serve.mailroom import Mailroom
from evolution.serve.metrics import Metrics
from tests.helpers.serving import CHAT_TEMPLATE, ScriptedEngine, events

ROOM = 8  # requests at once
MESSAGES = [{"role": "user", "content": "hi"}]
GENERATE, COMPLETIONS, CHAT = "/generate", "/v1/completions", "/v1/chat/completions"
# Of each endpoint, a body that is right.
GOOD = {GENERATE: {"text": "Hi"}, COMPLETIONS: {"prompt": "Hi"}, CHAT: {"messages": MESSAGES}}


def make_client(
    engine: ScriptedEngine | None = None,
    api_key: str | None = None,
    max_body_bytes: int = 1 << 20,
    template: bool = True,
) -> httpx.AsyncClient:
    """Of an app in the running loop."""
    scripted = engine or ScriptedEngine()
    metrics = Metrics("tiny", scripted.load, 1, 512)
    mailroom = Mailroom(asyncio.get_running_loop())
    service = Service(scripted, mailroom, metrics, ROOM, CHAT_TEMPLATE.read_text() if template else None)
    transport = httpx.ASGITransport(make_app(service, api_key, max_body_bytes))
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def ask(method: str, path: str, **how: Any) -> httpx.Response:
    """`how`: make_client's and the request's."""
    of_app = {name: how.pop(name) for name in ("engine", "api_key", "max_body_bytes", "template") if name in how}

    async def go() -> httpx.Response:
        async with make_client(**of_app) as client:
            return await client.request(method, path, **how)

    return asyncio.run(go())


def post(path: str, fields: Any, **how: Any) -> httpx.Response:
    return ask("POST", path, json=fields, **how)


def error_of(response: httpx.Response, status: int) -> dict:
    """The one shape of an error."""
    assert response.status_code == status, response.text
    error = response.json()
    assert set(error) == {"object", "message", "type", "param", "code"}
    assert error["object"] == "error" and error["code"] == status
    assert error["message"] and "\n" not in error["message"] and "Traceback" not in error["message"]
    return error


# ---------------------------------------------------------------------------- mistakes

SAMPLING = [
    ("temperature", -1),
    ("temperature", "1"),
    ("temperature", 10**400),
    ("temperature", True),
    ("top_p", 0),
    ("top_p", 1.1),
    ("top_k", 0),
    ("top_k", 1.5),
    ("min_p", 2),
    ("frequency_penalty", 3),
    ("presence_penalty", -3),
    ("repetition_penalty", 0),
    ("n", 0),
    ("n", 129),
    ("n", "2"),
    ("seed", 2**64),
    ("seed", "x"),
    ("stop", 5),
    ("stop", [""]),
    ("stop", ["a", 1]),
    ("stop", ["x"] * 33),
    ("stop_token_ids", "x"),
    ("stop_token_ids", [1.5]),
    ("ignore_eos", "yes"),
    ("skip_special_tokens", 1),
]
MISTAKES: list[tuple[str, dict, str]] = [  # path, fields, the field at fault
    *[(GENERATE, {"sampling_params": {name: value}}, name) for name, value in SAMPLING],
    *[(path, {name: value}, name) for path in (COMPLETIONS, CHAT) for name, value in SAMPLING],
    (GENERATE, {"sampling_params": {"max_new_tokens": -1}}, "max_new_tokens"),
    (GENERATE, {"sampling_params": {"max_tokens": 5}}, "sampling"),
    (GENERATE, {"sampling_params": {"regex": "a+"}}, "regex"),
    (GENERATE, {"sampling_params": [{}, {}]}, "sampling_params"),
    (GENERATE, {"sampling_params": 5}, "sampling_params"),
    (GENERATE, {"text": ""}, "text"),
    (GENERATE, {"text": []}, "text"),
    (GENERATE, {"text": ["a", ""]}, "text"),
    (GENERATE, {"text": 5}, "text"),
    (GENERATE, {"text": ["a", 5]}, "text[1]"),
    (GENERATE, {"text": {"a": 1}}, "text"),
    (GENERATE, {"text": "x" * 300}, "text"),
    (GENERATE, {"text": None}, "text"),
    (GENERATE, {"input_ids": [1]}, "text"),
    *[
        (GENERATE, {"text": None, "input_ids": ids}, "input_ids")
        for ids in ([], [[]], [-1], [10**6], [2**63], [10**400], ["a"], [1.5], [True], "x", 5, {}, [[1], 2], [None])
    ],
    (GENERATE, {"rid": ""}, "rid"),
    (GENERATE, {"rid": 5}, "rid"),
    (GENERATE, {"rid": ["a", "b"]}, "rid"),
    (GENERATE, {"text": ["a", "b"], "rid": "x"}, "rid"),
    (GENERATE, {"text": ["a", "b"], "rid": ["x", "x"]}, "rid"),
    (GENERATE, {"rid": "x" * 257}, "rid"),
    (GENERATE, {"stream": "yes"}, "stream"),
    (GENERATE, {"return_logprob": 1}, "return_logprob"),
    (GENERATE, {"return_logprob": True, "logprob_start_len": 99}, "logprob_start_len"),
    (GENERATE, {"return_logprob": True, "top_logprobs_num": -1}, "top_logprobs_num"),
    (GENERATE, {"image_data": "not base64!"}, "image_data"),
    (GENERATE, {"image_data": "http://example.com/x.png"}, "image_data"),
    (GENERATE, {"image_data": ["", ""]}, "image_data"),
    (GENERATE, {"image_data": 5}, "image_data"),
    (COMPLETIONS, {"prompt": ""}, "prompt"),
    (COMPLETIONS, {"prompt": []}, "prompt"),
    (COMPLETIONS, {"prompt": None}, "prompt"),
    (COMPLETIONS, {"prompt": 5}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", ""]}, "prompt"),
    (COMPLETIONS, {"prompt": ["a", 5]}, "prompt"),
    (COMPLETIONS, {"prompt": [5, "a"]}, "prompt"),
    (COMPLETIONS, {"prompt": [-1]}, "prompt"),
    (COMPLETIONS, {"prompt": [[1], []]}, "prompt"),
    (COMPLETIONS, {"prompt": "x" * 300}, "prompt"),
    (COMPLETIONS, {"max_tokens": -1}, "max_tokens"),
    (COMPLETIONS, {"max_tokens": 2**40}, "max_tokens"),
    (COMPLETIONS, {"max_tokens": 1.5}, "max_tokens"),
    (COMPLETIONS, {"max_tokens": 3, "min_tokens": 4}, "min_tokens"),
    (COMPLETIONS, {"logprobs": 101}, "logprobs"),
    (COMPLETIONS, {"logprobs": True}, "logprobs"),
    (COMPLETIONS, {"suffix": "x"}, "suffix"),
    (COMPLETIONS, {"logit_bias": {"5": 1}}, "logit_bias"),
    (COMPLETIONS, {"json_schema": "{}"}, "json_schema"),
    (COMPLETIONS, {"model": 5}, "model"),
    (COMPLETIONS, {"stream_options": {"include_usage": True}}, "stream_options"),
    (COMPLETIONS, {"stream": True, "stream_options": {"include_usage": "x"}}, "stream_options.include_usage"),
    (CHAT, {"messages": []}, "messages"),
    (CHAT, {"messages": None}, "messages"),
    (CHAT, {"messages": "hi"}, "messages"),
    (CHAT, {"messages": [5]}, "messages[0]"),
    (CHAT, {"messages": [{"role": "bot", "content": "hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [{"content": "hi"}]}, "messages[0].role"),
    (CHAT, {"messages": [*MESSAGES, {"role": "user", "content": 5}]}, "messages[1].content"),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        "messages[0].content",
    ),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 300}]}, "messages"),
    (GENERATE, {"text": "x" * 70_000}, "text"),
    (COMPLETIONS, {"prompt": "x" * 70_000}, "prompt"),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 70_000}]}, "messages"),
    (CHAT, {"max_completion_tokens": "5"}, "max_completion_tokens"),
    (CHAT, {"tools": [{"type": "function"}]}, "tools"),
    (CHAT, {"response_format": {"type": "json_object"}}, "response_format"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
    (CHAT, {"top_logprobs": 2}, "top_logprobs"),
    ("/abort_request", {}, "rid"),
    ("/abort_request", {"rid": 5}, "rid"),
    ("/abort_request", {"rid": None}, "rid"),
]


@pytest.fixture(scope="module")
def send() -> Iterator[Callable[..., httpx.Response]]:
    """To one app, for the many cases."""

    async def start() -> httpx.AsyncClient:
        return make_client()

    with asyncio.Runner() as runner:
        client = runner.run(start())

        def send(path: str, fields: Any = None, **request: Any) -> httpx.Response:
            if fields is not None:
                request["content"] = json.dumps(fields)
                request["headers"] = {"content-type": "application/json"}
            return runner.run(client.post(path, **request))

        yield send
        runner.run(client.aclose())


@pytest.mark.parametrize(("path", "fields", "field"), MISTAKES)
def test_a_callers_mistake_is_a_400_that_names_the_field(send, path: str, fields: dict, field: str) -> None:
    error = error_of(send(path, {**GOOD.get(path, {}), **fields}), 400)
    assert field in error["message"]
    assert error["type"] == "BadRequestError"
    assert error["param"]


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (GENERATE, {"text": ""}),
        (GENERATE, {"sampling_params": {"n": 2**63 - 1}}),
        (COMPLETIONS, {"prompt": [1, "a"]}),
        (CHAT, {"messages": [{"role": "bot", "content": "hi"}]}),
        (CHAT, {"messages": [{"role": "user", "content": "x" * 300}]}),
    ],
)
def test_a_mistake_is_answered_alike_streaming_or_not(send, path: str, fields: dict) -> None:
    answers = [send(path, {**GOOD[path], **fields, "stream": stream}) for stream in (False, True)]
    assert error_of(answers[0], 400) == error_of(answers[1], 400)
    assert answers[0].headers["content-type"] == answers[1].headers["content-type"] == "application/json"


RAW = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'"text"',
    b'{"text": NaN}',
    b'{"text": "a", "sampling_params": {"temperature": NaN}}',
    b'{"text": "a", "sampling_params": {"temperature": Infinity}}',
    b'{"text": "\xff"}',
    b'{"text": "\\ud83d"}',
    b'{"text": "a", "rid": "\\ud83d"}',
    b'{"text": "a", "sampling_params": {"stop": "\\ud83d"}}',
    b'{"text": "a", "sampling_params": {"temperature": 1e400}}',
    b'{"text": "a", "sampling_params": {"seed": ' + b"9" * 5000 + b"}}",
    b"[" * 100_000,
    b'{"text": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"text": "a", "sampling_params": ' + b'{"a":' * 900 + b"1" + b"}" * 901,
    b'{"input_ids": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"messages": ' + b"[" * 900 + b"]" * 900 + b', "prompt": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"text": "a"} trailing',
    "text: äöü".encode("utf-16"),
]


@pytest.mark.parametrize("path", [GENERATE, COMPLETIONS, CHAT])
@pytest.mark.parametrize("raw", RAW, ids=range(len(RAW)))
def test_bytes_that_are_no_right_body(send, path: str, raw: bytes) -> None:
    error_of(send(path, content=raw, headers={"content-type": "application/json"}), 400)


def test_a_paired_surrogate_escape_is_a_character(send) -> None:
    response = send(GENERATE, content=b'{"text": "\\ud83d\\ude00"}', headers={"content-type": "application/json"})
    assert response.status_code == 200


def test_another_content_type_is_refused_and_none_is_taken_for_json(send) -> None:
    error = error_of(send(GENERATE, content=b'{"text": "a"}', headers={"content-type": "text/plain"}), 400)
    assert "application/json" in error["message"]
    assert send(GENERATE, content=b'{"text": "a"}').status_code == 200


@pytest.mark.parametrize("path", list(GOOD))
@pytest.mark.parametrize("stream", [False, True])
def test_unknown_fields_and_nulls_are_ignored(send, path: str, stream: bool) -> None:
    nulls = dict.fromkeys(
        ["n", "stop", "seed", "temperature", "logprobs", "stream_options", "lora_path", "rid", "user"]
    )
    unknown = {
        "best_of": 1,
        "lora_path": "x",
        "return_routed_experts": True,
        "data_parallel_rank": None,
        "x": {"y": [1]},
    }
    params = {"sampling_params": {"regex": None, "json_schema": None, "temperature": None, "dtype": None}}
    assert send(path, {**GOOD[path], **nulls, **unknown, **params, "stream": stream}).status_code == 200


def test_paths_and_methods() -> None:
    assert "/nothing" in error_of(ask("GET", "/nothing"), 404)["message"]
    response = ask("DELETE", GENERATE)
    assert "DELETE" in error_of(response, 405)["message"]
    assert response.headers["allow"] == "POST, PUT"
    error_of(ask("GET", GENERATE), 405)
    error_of(ask("GET", "/v1/models/other"), 404)
    assert ask("PUT", GENERATE, json={"text": "a"}).status_code == 200
    assert ask("HEAD", "/metrics").status_code == 200


@pytest.mark.parametrize(
    ("header", "status"),
    [(None, 401), ("Bearer wrong", 401), ("secret", 401), ("Bearer secret", 200), ("Bearer \xe9", 401)],
)
def test_the_key(header: str | None, status: int) -> None:
    headers = {"authorization": header.encode("latin-1")} if header else {}
    response = ask("GET", "/v1/models", api_key="secret", headers=headers)
    assert response.status_code == status
    if status == 401:
        assert error_of(response, 401)["type"] == "AuthenticationError"
        error_of(post(GENERATE, {"text": "a"}, api_key="secret", headers=headers), 401)


def test_without_a_key_any_authorization_goes_and_probes_need_none() -> None:
    assert ask("GET", "/v1/models", headers={"authorization": "Bearer None"}).status_code == 200
    for path in ("/health", "/metrics"):
        assert ask("GET", path, api_key="secret").status_code == 200


@pytest.mark.parametrize("declared", [True, False])
def test_a_body_that_is_too_long(declared: bool) -> None:
    async def parts():
        for _ in range(30):
            yield b" " * 100

    content = b" " * 3000 if declared else parts()
    response = ask("POST", GENERATE, max_body_bytes=1000, content=content)
    assert error_of(response, 413)["message"] == "the body is longer than 1000 bytes"
    assert response.headers["connection"] == "close"
    assert post(GENERATE, {"text": "a"}, max_body_bytes=1000).status_code == 200


def test_too_many_requests() -> None:
    scripted = ScriptedEngine(silent=True)
    scripted.outstanding = ROOM - 1
    response = post(GENERATE, {"text": ["a", "b"]}, engine=scripted)
    assert error_of(response, 429)["type"] == "RateLimitError"
    assert int(response.headers["retry-after"]) >= 1
    assert not scripted.submitted
    for path, fields in [
        (GENERATE, {"text": "a", "sampling_params": {"n": ROOM + 1}}),
        (GENERATE, {"text": ["a"] * (ROOM + 1)}),
        (GENERATE, {"text": ["a"] * 3, "sampling_params": [{"n": 3}] * 3}),
        (GENERATE, {"input_ids": [[1]] * 100_000, "sampling_params": {"n": 128}}),
        (COMPLETIONS, {"prompt": ["a"] * 3, "n": 3}),
        (COMPLETIONS, {"prompt": [[1]] * (ROOM + 1)}),
        (CHAT, {"messages": MESSAGES, "n": ROOM + 1}),
    ]:
        assert "--max-queued-requests" in error_of(post(path, fields), 400)["message"]


def test_ids_in_headers_are_no_names_of_requests() -> None:
    """A proxy may send the same trace id with several requests."""
    scripted = ScriptedEngine()
    headers = {"x-request-id": "same", "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
    for path in list(GOOD) * 2:
        assert post(path, GOOD[path], engine=scripted, headers=headers).status_code == 200
    rids = {request.rid for request in scripted.submitted}
    assert len(rids) == 2 * len(GOOD) and "same" not in rids


def test_a_chat_of_an_assistants_message_alone() -> None:
    assert post(CHAT, {"messages": [{"role": "assistant", "content": "hi"}]}).status_code == 200


# ---------------------------------------------------------------------------- the engine's end


@pytest.mark.parametrize("path", list(GOOD))
@pytest.mark.parametrize("stream", [False, True])
def test_an_engine_that_fails_before_the_first_token_is_a_503(path: str, stream: bool) -> None:
    for scripted in (ScriptedEngine(), ScriptedEngine(fails_after=0)):
        if scripted._fails_after is None:
            scripted.failure = "evo-peer TP1 (pid 7) was killed by SIGKILL"
        response = post(path, {**GOOD[path], "stream": stream}, engine=scripted)
        assert error_of(response, 503)["message"] == "evo-peer TP1 (pid 7) was killed by SIGKILL"


@pytest.mark.parametrize("path", list(GOOD))
def test_an_engine_that_fails_in_a_stream_is_a_last_line(path: str) -> None:
    response = post(path, {**GOOD[path], "stream": True}, engine=ScriptedEngine(("a", "b", "c"), fails_after=1))
    assert response.status_code == 200
    *_, last = events(response.text)
    assert last["error"]["message"] == "evo-peer TP1 (pid 7) was killed by SIGKILL"
    assert last["error"]["code"] == 503


def test_health_says_the_cause() -> None:
    scripted = ScriptedEngine()
    assert ask("GET", "/health", engine=scripted).status_code == 200
    assert ask("GET", "/health_generate", engine=scripted).status_code == 200
    scripted.failure = "evo-peer TP1 (pid 7) was killed by SIGKILL"
    for path in ("/health", "/health_generate"):
        assert error_of(ask("GET", path, engine=scripted), 503)["message"] == scripted.failure


def test_probes_share_one_request_which_is_aborted_when_their_time_is_over(monkeypatch) -> None:
    monkeypatch.setattr(info, "PROBE_TIMEOUT", 0.3)
    scripted = ScriptedEngine(silent=True)

    async def go() -> None:
        async with make_client(scripted) as client:
            for count in (1, 2):
                for response in await asyncio.gather(*[client.get("/health_generate") for _ in range(10)]):
                    assert "no token came" in error_of(response, 503)["message"]
                assert len(scripted.submitted) == len(scripted.abandoned) == count

    asyncio.run(go())


def test_a_mistake_of_the_servers_own_tells_the_caller_nothing_and_the_log_no_prompt(caplog) -> None:
    scripted, prompt = ScriptedEngine(), "a secret prompt"

    def broken(*_: Any) -> None:
        raise KeyError(prompt)

    scripted.submit = broken
    error = error_of(post(GENERATE, {"text": prompt}, engine=scripted), 500)
    assert "secret" not in error["message"]
    assert "KeyError" in caplog.text and "broken" in caplog.text
    assert prompt not in caplog.text


# ---------------------------------------------------------------------------- answers


def test_native_answers() -> None:
    one = post(GENERATE, {"text": "a", "rid": "mine"}).json()
    assert one["text"] == "abc" and one["output_ids"] == [5, 6, 5, 6]
    assert one["meta_info"]["id"] == "mine"
    assert one["meta_info"]["finish_reason"] == {"type": "length", "length": 4}
    assert len(post(GENERATE, {"text": "a", "sampling_params": {"n": 2}}).json()) == 2
    assert len(post(GENERATE, {"input_ids": [[1], [2]], "sampling_params": {"n": 2}}).json()) == 4
    assert isinstance(post(GENERATE, {"text": ["a"]}).json(), list)


def test_native_streams_are_cumulative() -> None:
    chunks = events(post(GENERATE, {"text": "a", "stream": True}).text)
    assert chunks[-1]["text"] == "abc" and all("abc".startswith(chunk["text"]) for chunk in chunks)
    assert [chunk["meta_info"]["completion_tokens"] for chunk in chunks][-1] == 4
    assert all("index" not in chunk for chunk in chunks)
    chunks = events(post(GENERATE, {"text": ["a", "b"], "stream": True}).text)
    assert {chunk["index"] for chunk in chunks} == {0, 1}


@pytest.mark.parametrize("path", list(GOOD))
def test_whatever_a_client_takes_for_the_end_of_a_line_ends_none(path: str) -> None:
    text = "a\n\r\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029é漢"
    response = post(path, {**GOOD[path], "stream": True}, engine=ScriptedEngine((text, "b")))
    lines = [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines()[:-2] if line]
    assert lines == events(response.text)
    assert json.dumps(text)[1:-1] in json.dumps(lines)


def test_completions() -> None:
    scripted = ScriptedEngine()
    answer = post(COMPLETIONS, {"prompt": ["a", "b"], "n": 2, "model": "any"}, engine=scripted).json()
    assert answer["object"] == "text_completion" and answer["model"] == "any" and answer["id"].startswith("cmpl-")
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["choices"][0] == {"index": 0, "text": "abc", "logprobs": None, "finish_reason": "length"}
    assert answer["usage"] == {
        "prompt_tokens": 6,  # of two prompts, not of four requests
        "completion_tokens": 16,
        "total_tokens": 22,
        "prompt_tokens_details": {"cached_tokens": 2},
    }
    assert {request.rid for request in scripted.submitted} == {answer["id"]}
    assert scripted.submitted[0].sampling.max_new_tokens == 16
    assert post(COMPLETIONS, {"prompt": "Hi ", "echo": True}).json()["choices"][0]["text"] == "Hi abc"
    assert post(COMPLETIONS, {"prompt": [1, 2]}).status_code == 200


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
def test_a_usage_chunk_only_when_asked(path: str) -> None:
    for options in (None, {}, {"include_usage": False}, {"continuous_usage_stats": True}):
        chunks = events(post(path, {**GOOD[path], "stream": True, "stream_options": options}).text)
        assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)
    *chunks, last = events(post(path, {**GOOD[path], "stream": True, "stream_options": {"include_usage": True}}).text)
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 4
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


def test_completion_streams_are_deltas() -> None:
    chunks = events(post(COMPLETIONS, {"prompt": "Hi ", "stream": True, "echo": True, "n": 2}).text)
    for index in (0, 1):
        choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert "".join(choice["text"] for choice in choices) == "Hi abc"
        assert [choice["finish_reason"] for choice in choices][-1] == "length"
        assert all(choice["finish_reason"] is None for choice in choices[:-1])


def test_chat() -> None:
    scripted = ScriptedEngine()
    answer = post(CHAT, {"messages": MESSAGES}, engine=scripted).json()
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "abc"}
    parts = [{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]}]
    post(CHAT, {"messages": parts}, engine=scripted)
    first, second = scripted.submitted
    assert first.input_ids == second.input_ids
    assert scripted.tokenizer.decode(list(memoryview(first.input_ids).cast("i"))) == "<user>hi\n<assistant>"
    assert first.sampling.max_new_tokens == scripted.args.context_length - len(first.input_ids) // 4


def test_chat_streams_begin_with_the_role() -> None:
    chunks = events(post(CHAT, {"messages": MESSAGES, "stream": True}).text)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": ""}
    assert "".join(delta.get("content", "") for delta in deltas) == "abc"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}


@pytest.mark.parametrize(("fields", "expected"), [({"max_tokens": 3}, 3), ({"max_tokens": 0}, 0)])
def test_chat_max_tokens(fields: dict, expected: int) -> None:
    for more in ({}, {"max_completion_tokens": 7}):
        scripted = ScriptedEngine()
        assert post(CHAT, {"messages": MESSAGES, **fields, **more}, engine=scripted).status_code == 200
        assert scripted.submitted[0].sampling.max_new_tokens == more.get("max_completion_tokens", expected)


def test_a_model_without_a_chat_template_says_so(tmp_path: Path) -> None:
    scripted = ScriptedEngine()
    shutil.copy(scripted.tokenizer.folder / "tokenizer.json", tmp_path)
    scripted.tokenizer = Tokenizer(tmp_path)
    error = error_of(post(CHAT, {"messages": MESSAGES}, engine=scripted, template=False), 400)
    assert "no chat template" in error["message"] and error["param"] == "messages"


# ---------------------------------------------------------------------------- what it says of itself


def test_models_and_settings() -> None:
    card = ask("GET", "/v1/models").json()["data"][0]
    assert card["max_model_len"] == 256
    again = ask("GET", f"/v1/models/{card['id']}").json()
    assert again | {"created": card["created"]} == card  # each is asked of a server of its own
    for path in ("/get_model_info", "/model_info"):
        info = ask("GET", path).json()
        assert info["model_path"] == info["tokenizer_path"] == card["id"] and info["is_generation"] is True
    for path in ("/get_server_info", "/server_info", "/get_server_args"):
        info = ask("GET", path, api_key=None).json()
        assert info["internal_states"] == [{"running": 0}] and info["tp_size"] == 1 and "api_key" not in info


def test_a_flush_names_the_replica_that_refused() -> None:
    for method in ("GET", "POST"):
        message = error_of(ask(method, "/flush_cache"), 400)["message"]
        assert message == "not flushed: replica 1: 2 requests run and 0 wait; flush when idle"
    assert "timeout" in error_of(ask("GET", "/flush_cache?timeout=x"), 400)["message"]
    assert "timeout" in error_of(ask("GET", "/flush_cache?timeout=nan"), 400)["message"]


def test_metrics_count_what_happened() -> None:
    async def go() -> str:
        async with make_client() as client:
            for stream in (False, True):
                await client.post(GENERATE, json={"text": "a", "stream": stream})
            return (await client.get("/metrics")).text

    lines = dict(line.rsplit(" ", 1) for line in asyncio.run(go()).splitlines() if not line.startswith("#"))
    label = '{model_name="tiny"}'
    for name, value in [
        ("num_requests_total", 2),
        ("prompt_tokens_total", 6),
        ("cached_tokens_total", 2),
        ("generation_tokens_total", 8),
        ("num_aborted_requests_total", 0),
        ("e2e_request_latency_seconds_count", 2),
        ("num_running_reqs", 0),
        ("num_queue_reqs", 0),
        ("token_usage", 0),
        ("num_used_tokens", 0),
        ("cache_hit_rate", 2 / 6),
    ]:
        assert float(lines[f"sglang:{name}{label}"]) == value, name
    for name in ("time_to_first_token_seconds_count", "time_per_output_token_seconds_count", "gen_throughput"):
        assert f"sglang:{name}{label}" in lines


def test_the_openapi_document_knows_every_body() -> None:
    document = ask("GET", "/openapi.json").json()

    def refs(node: Any) -> list[str]:
        if isinstance(node, dict):
            return [node["$ref"]] if "$ref" in node else [ref for value in node.values() for ref in refs(value)]
        return [ref for value in node for ref in refs(value)] if isinstance(node, list) else []

    assert refs(document)
    for ref in refs(document):
        assert ref.rpartition("/")[2] in document["components"]["schemas"]
    for path in GOOD:
        operation = document["paths"][path]["post"]
        assert operation["requestBody"]["required"]
        assert "422" not in operation["responses"] and "429" in operation["responses"]
