"""`serve` over real sockets, on every stage: what comes back is the offline engine's, and nobody is kept waiting."""

from __future__ import annotations

import concurrent.futures
import contextlib
import http.client
import json
import random
import signal
import socket
import time

import httpx
import psutil
import pytest

from evolution import Engine
from evolution.cli import main
from tests.conftest import descendants, names_left_on_disk
from tests.helpers.server_state import Counts, check_counts, check_pool
from tests.helpers.serving import CHAT_TEMPLATE, ServerProcess, events, serving
from tests.helpers.soak import check_outcomes, send_all
from tests.helpers.soak_plan import plan

SETTINGS = {"model_path": "tiny", "tp_size": 2, "max_total_tokens": 8192}
OPTIONS = ["--tp-size", "2", "--max-total-tokens", "8192", "--chat-template", str(CHAT_TEMPLATE)]
GREEDY = {"max_new_tokens": 12, "temperature": 0}
SEEDED = {"max_new_tokens": 12, "temperature": 1.0, "seed": 7}
LONG = {"max_new_tokens": 1900, "temperature": 0, "ignore_eos": True}
PROMPTS = ["Hello", "a longer prompt, with an é", "x"]


@pytest.fixture(scope="module")
def offline():
    """Its tokens are those of every stage at the same TP size; tests/conformance shows that."""
    with Engine(stage="peer", **SETTINGS) as engine:
        yield engine


@pytest.fixture(scope="module")
def server(stage, offline):
    before = descendants(), names_left_on_disk()
    with serving("--stage", stage, "--dp-size", "2", *OPTIONS) as server:
        yield server
    assert descendants() <= before[0]
    assert names_left_on_disk() <= before[1]


def test_native_text_equals_the_offline_engines(server, offline):
    for params in (GREEDY, SEEDED):
        expected = offline.generate(PROMPTS, params)
        together = server.post("/generate", text=PROMPTS, sampling_params=params).json()
        assert [(r["text"], r["output_ids"]) for r in together] == [(r["text"], r["output_ids"]) for r in expected]
        streamed = events(server.post("/generate", text=PROMPTS, sampling_params=params, stream=True).text)
        last = {chunk["index"]: chunk for chunk in streamed}
        assert [last[index]["text"] for index in range(3)] == [result["text"] for result in expected]
        for index, prompt in enumerate(PROMPTS):
            alone = server.post("/generate", text=prompt, sampling_params=params).json()
            assert alone["text"] == expected[index]["text"]
            assert alone["meta_info"]["finish_reason"] == expected[index]["meta_info"]["finish_reason"]


def test_openai_text_equals_the_offline_engines(server, offline):
    expected = [r["text"] for r in offline.generate(PROMPTS, SEEDED)]
    fields = {"max_tokens": 12, "temperature": 1.0, "seed": 7}
    choices = server.post("/v1/completions", prompt=PROMPTS, **fields).json()["choices"]
    assert [choice["text"] for choice in choices] == expected
    texts = ["", "", ""]
    for chunk in events(server.post("/v1/completions", prompt=PROMPTS, stream=True, **fields).text):
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == expected

    messages = [{"role": "user", "content": "Hello"}]
    (chat,) = offline.generate(["<user>Hello\n<assistant>"], SEEDED)
    answer = server.post("/v1/chat/completions", messages=messages, **fields).json()
    assert answer["choices"][0]["message"]["content"] == chat["text"]
    chunks = events(server.post("/v1/chat/completions", messages=messages, stream=True, **fields).text)
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks) == chat["text"]


def test_n_counts_seeds_up(server, offline):
    expected = offline.generate("Hello", {**SEEDED, "n": 3})
    got = server.post("/generate", text="Hello", sampling_params={**SEEDED, "n": 3}).json()
    assert [r["text"] for r in got] == [r["text"] for r in expected]
    choices = server.post("/v1/completions", prompt="Hello", max_tokens=12, n=3, seed=7).json()["choices"]
    assert [choice["text"] for choice in choices] == [r["text"] for r in expected]


def test_log_probabilities(server, offline):
    wanted = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    expected = offline.generate("Hello", GREEDY, **wanted)["meta_info"]
    got = server.post("/generate", text="Hello", sampling_params=GREEDY, **wanted).json()["meta_info"]
    for name in ("input_token_logprobs", "output_token_logprobs", "input_top_logprobs", "output_top_logprobs"):
        assert got[name] == json.loads(json.dumps(expected[name]))
    streamed = events(server.post("/generate", text="Hello", sampling_params=GREEDY, stream=True, **wanted).text)
    assert streamed[-1]["meta_info"]["output_token_logprobs"] == got["output_token_logprobs"]

    fields = {"prompt": "Hello", "max_tokens": 12, "temperature": 0, "logprobs": 2, "echo": True}
    choice = server.post("/v1/completions", **fields).json()["choices"][0]
    logprobs = choice["logprobs"]
    values = [entry[0] for entry in expected["input_token_logprobs"] + expected["output_token_logprobs"]]
    assert logprobs["token_logprobs"] == values and logprobs["token_logprobs"][0] is None
    assert len(logprobs["tokens"]) == len(logprobs["text_offset"]) == len(logprobs["top_logprobs"]) == len(values)
    parts = [c["choices"][0]["logprobs"] for c in events(server.post("/v1/completions", stream=True, **fields).text)]
    assert [value for part in parts for value in part["token_logprobs"]] == values
    assert [offset for part in parts for offset in part["text_offset"]] == logprobs["text_offset"]

    fields = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 4, "logprobs": True, "top_logprobs": 2}
    content = server.post("/v1/chat/completions", **fields).json()["choices"][0]["logprobs"]["content"]
    assert len(content) == 4 and all(len(token["top_logprobs"]) == 2 for token in content)


def test_a_rid_of_the_callers_own(server):
    with server.client.stream("POST", "/generate", json={**request_of(LONG), "rid": "mine"}) as response:
        lines = response.iter_lines()
        assert first_event(lines)["meta_info"]["id"] == "mine"
        again = server.post("/generate", text="Hello", sampling_params=GREEDY, rid="mine")
        assert again.status_code == 400
        assert "rid is 'mine'" in again.json()["message"] and again.json()["param"] == "rid"
        assert server.post("/abort_request", rid="mine").json() == {"found": True}
        finish = [json.loads(line[6:]) for line in lines if line.startswith("data: {")][-1]["meta_info"][
            "finish_reason"
        ]
        assert finish["type"] == "abort"
    assert server.post("/generate", text="Hello", sampling_params=GREEDY, rid="mine").status_code == 200
    for _ in range(2):
        assert server.post("/abort_request", rid="mine").json() == {"found": False}


def test_abort_all(server):
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(server.post, "/generate", text="Hello", sampling_params=LONG) for _ in range(4)]
        wait_for(lambda: server.stats()["running"] == 4)
        assert server.post("/abort_request", abort_all=True).json() == {"found": True}
        assert {a.result().json()["meta_info"]["finish_reason"]["type"] for a in answers} == {"abort"}


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_has_its_requests_aborted(server, stream):
    """On both replicas, with what it holds given back."""
    total = server.stats()["total_tokens"]
    sockets = [raw_request(server.port, {**request_of(LONG), "stream": stream}) for _ in range(4)]
    if stream:
        for each in sockets:
            received = b""
            while b"data: " not in received:
                received += each.recv(65536)
    wait_for(lambda: server.stats()["running"] == 4)
    for each in sockets:
        each.close()
    wait_for(lambda: server.stats()["running"] == 0, timeout=2)
    stats = server.stats()
    assert stats["free_tokens"] + stats["evictable_tokens"] == total


def test_flush_cache_says_which_replica_is_busy(server):
    server.post("/generate", text=PROMPTS, sampling_params=GREEDY)
    assert server.client.post("/flush_cache").status_code == 200
    stats = server.stats()
    assert stats["free_tokens"] == stats["total_tokens"]
    with server.client.stream("POST", "/generate", json=request_of(LONG)) as response:
        lines = response.iter_lines()  # kept: when it is collected, the connection is closed
        first_event(lines)
        busy = server.client.get("/flush_cache")
        assert busy.status_code == 400 and "replica " in busy.json()["message"]
    assert server.client.post("/flush_cache?timeout=10").status_code == 200


def test_a_flush_right_after_an_answer_finds_nobody_busy(server):
    for _ in range(40):
        server.post("/generate", text=PROMPTS[:2], sampling_params={"max_new_tokens": 2, "temperature": 0})
        flushed = server.client.post("/flush_cache")
        assert flushed.status_code == 200, flushed.text


def test_flushes_at_once_get_an_answer_each(server):
    def flush(_: int) -> httpx.Response:
        return server.client.post("/flush_cache")

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert [answer.status_code for answer in pool.map(flush, range(24))] == [200] * 24
        with server.client.stream("POST", "/generate", json=request_of(LONG)) as response:
            lines = response.iter_lines()
            first_event(lines)
            refused = list(pool.map(flush, range(24)))
            assert {answer.status_code for answer in refused} == {400}
            assert len({answer.json()["message"] for answer in refused}) == 1, "they were told of different replicas"
            assert next(line for line in lines if line)


def test_many_at_once_get_each_its_own(server, offline):
    expected = [offline.generate(input_ids=[i + 1, i + 2], sampling_params=GREEDY)["text"] for i in range(24)]

    def ask(i: int) -> str:
        fields = {"input_ids": [i + 1, i + 2], "sampling_params": GREEDY, "stream": i % 2 == 0}
        response = httpx.post(f"{server.url}/generate", json=fields, timeout=60)
        return (events(response.text)[-1] if i % 2 == 0 else response.json())["text"]

    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        assert list(pool.map(ask, range(24))) == expected


def test_150_mixed_requests_come_to_one_end_each(server):
    """test_soak.py sends 10,000."""
    planned, before = plan(150, seed=1), Counts.of(server)
    tally = send_all(server, planned)
    check_outcomes(tally.outcomes, planned)
    check_pool(server)
    check_counts(before, Counts.of(server), tally)


def test_what_it_says_of_itself(server, stage):
    assert server.client.get("/health").status_code == server.client.get("/health_generate").status_code == 200
    info = server.client.get("/get_server_info").json()
    assert (info["stage"], info["tp_size"], info["dp_size"]) == (stage, 2, 2)
    assert len(info["internal_states"]) == 2
    metrics = server.client.get("/metrics").text
    assert "sglang:num_running_reqs" in metrics and "sglang:time_to_first_token_seconds_bucket" in metrics


@pytest.mark.slow
def test_a_connection_stays_open_longer_than_clients_keep_theirs(narrow):
    """httpx for 5 s: where both close at the same time, the next request may be lost."""
    connection = http.client.HTTPConnection("127.0.0.1", narrow.port, timeout=10)
    for _ in range(2):
        connection.request("GET", "/health")
        assert connection.getresponse().read()
        sock = connection.sock
        time.sleep(7)
    assert connection.sock is sock, "it was closed, and another one made"
    connection.close()


def test_an_image_travels_along(server, offline):
    fields = {"text": "Hello", "sampling_params": GREEDY, "image_data": "aGVsbG8="}
    assert server.post("/generate", **fields).json()["text"] == offline.generate("Hello", GREEDY)["text"]
    fields["image_data"] = "data:image/png;base64,aGVsbG8="
    assert server.post("/generate", **fields).status_code == 200


def test_a_killed_rank_ends_everything_with_its_name(stage):
    server = ServerProcess("--stage", stage, *OPTIONS)
    below = psutil.Process(server.process.pid).children(recursive=True)
    rank = next(process for process in below if process.cmdline()[0].endswith("TP1"))
    waiting = raw_request(server.port, {**request_of(LONG), "stream": False})
    with server.client.stream("POST", "/generate", json=request_of(LONG)) as response:
        lines = response.iter_lines()
        first_event(lines)
        killed_at = time.monotonic()
        rank.send_signal(signal.SIGKILL)
        last = [line for line in lines if line][-2:]
        told_after = time.monotonic() - killed_at
        health = httpx.get(f"{server.url}/health")
    error = json.loads(last[0].removeprefix("data: "))["error"]
    assert last[1] == "data: [DONE]"
    assert "TP1" in error["message"] and "SIGKILL" in error["message"]
    assert told_after < 1
    assert health.status_code == 503 and health.json()["message"] == error["message"]
    answer = waiting.recv(65536)
    waiting.close()
    assert answer.startswith(b"HTTP/1.1 503") and b"SIGKILL" in answer
    server.client.close()
    status, stderr = server.wait(5)
    assert status == 1
    assert stderr.startswith("python -m evolution serve: ") and error["message"] in stderr.splitlines()[0]
    assert "Traceback" not in stderr
    _, alive = psutil.wait_procs(below, timeout=3)
    assert not alive


RESTARTS = [
    ("peer", "main"),
    *[pytest.param(stage, whom, marks=pytest.mark.slow) for stage in ("rpyc", "broadcast") for whom in ("main", "TP1")],
]


@pytest.mark.parametrize(("restarted", "whom"), RESTARTS)
def test_after_a_kill_it_starts_again_at_once_on_the_same_port(restarted, whom, nothing_left_behind):
    options = ["--stage", restarted, *OPTIONS]
    server = ServerProcess(*options)
    below = psutil.Process(server.process.pid).children(recursive=True)
    waiting = [raw_request(server.port, request_of(LONG)) for _ in range(4)]
    wait_for(lambda: server.stats()["running"] == 4)
    killed = server.process if whom == "main" else next(p for p in below if p.cmdline()[0].endswith(whom))
    killed.send_signal(signal.SIGKILL)
    server.client.close()
    assert server.wait(5)[0] == (-signal.SIGKILL if whom == "main" else 1)
    with serving(*options, "--port", str(server.port)) as again:
        assert again.port == server.port
        planned = plan(60, seed=2)
        send_all(again, planned)
        check_pool(again)
    for each in waiting:
        each.close()
    _, alive = psutil.wait_procs(below, timeout=0)
    assert not alive


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_kills_one_after_another_on_the_same_port(stage, nothing_left_behind):
    """Of a random process, the main one among them, under load, and then as many requests as the last one served."""
    rng, port = random.Random(1), "0"
    options = ["--stage", stage, "--dp-size", "2", *OPTIONS]
    for _ in range(8):
        server = ServerProcess(*options, "--port", port)
        port = str(server.port)
        send_all(server, plan(30, seed=rng.randrange(1000)))
        waiting = [raw_request(server.port, request_of(LONG)) for _ in range(4)]
        main = psutil.Process(server.process.pid)
        below = main.children(recursive=True)
        ours = [process for process in below if process.cmdline()[0].startswith("evo-")]  # multiprocessing has one too
        rng.choice([main, *ours]).send_signal(signal.SIGKILL)
        server.client.close()
        assert server.wait()[0] in (1, -signal.SIGKILL)
        for each in waiting:
            each.close()
    with serving(*options, "--port", port) as server:
        send_all(server, plan(500, seed=3))
        check_pool(server)
    _, alive = psutil.wait_procs(below, timeout=3)
    assert not alive


@pytest.mark.parametrize(
    "stopped", ["peer", *[pytest.param(stage, marks=pytest.mark.slow) for stage in ("rpyc", "broadcast")]]
)
def test_probes_of_a_rank_that_is_stopped_do_not_pile_up_and_name_it(stopped, nothing_left_behind):
    server = ServerProcess("--stage", stopped, "--watchdog-timeout", "1.5", *OPTIONS)
    assert server.client.get("/health_generate").status_code == 200
    below = psutil.Process(server.process.pid).children(recursive=True)
    next(process for process in below if process.cmdline()[0].endswith("TP1")).send_signal(signal.SIGSTOP)
    before = Counts.of(server).received
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        probes = [pool.submit(server.client.get, "/health_generate") for _ in range(8)]
        wait_for(lambda: Counts.of(server).received > before)
        probes += [pool.submit(server.client.get, "/health_generate")]
        time.sleep(0.3)
        assert Counts.of(server).received == before + 1, "each probe is a request of its own"
        answers = [probe.result() for probe in probes]
    assert {answer.status_code for answer in answers} == {503}
    assert all("TP1" in answer.json()["message"] and "is stopped" in answer.json()["message"] for answer in answers)
    server.client.close()
    assert server.wait(5)[0] == 1


@pytest.fixture(scope="module")
def narrow():
    """Two requests run and two wait, and there is a key."""
    options = ["--max-running-requests", "2", "--max-queued-requests", "2", "--max-total-tokens", "2048"]
    with serving(*options, env={"EVOLUTION_API_KEY": "secret"}) as server:
        server.client.headers["authorization"] = "Bearer secret"
        yield server


def test_the_key_is_wanted(narrow):
    assert httpx.get(f"{narrow.url}/v1/models").status_code == 401
    assert httpx.post(f"{narrow.url}/generate", json={"text": "a"}).status_code == 401
    assert httpx.get(f"{narrow.url}/health").status_code == 200
    assert narrow.client.get("/v1/models").status_code == 200


def test_what_is_too_much_is_refused_at_once(narrow):
    def ask(_: int) -> tuple[int, float]:
        began = time.monotonic()
        response = narrow.post("/generate", text="Hello", sampling_params={**LONG, "max_new_tokens": 400})
        if response.status_code == 429:
            assert int(response.headers["retry-after"]) >= 1
        return response.status_code, time.monotonic() - began

    with concurrent.futures.ThreadPoolExecutor(24) as pool:
        answers = list(pool.map(ask, range(24)))
    statuses = [status for status, _ in answers]
    assert set(statuses) == {200, 429} and statuses.count(200) >= 4
    assert narrow.post("/generate", text="Hello", sampling_params=GREEDY).status_code == 200


def test_a_port_that_is_taken_is_said_before_anything_starts(narrow, capsys, keep_signals):
    before = descendants()
    one_line_that_says(["--port", str(narrow.port)], "Address already in use", capsys)
    assert descendants() == before


BAD = {
    "port": (["--port", "65536"], "--port must be a number from 0 to 65535"),
    "port word": (["--port", "http"], "invalid int value"),
    "host": (["--host", "no.such.host.invalid"], "--host 'no.such.host.invalid'"),
    "all stages": (["--stage", "all"], "unknown stage 'all'"),
    "queue": (["--max-queued-requests", "-1"], "--max-queued-requests must be 0 or more"),
    "template": (["--chat-template", "/no/such/file"], "--chat-template /no/such/file: No such file"),
    "empty key": (["--api-key", ""], "--api-key must be"),
    "model": (["--model-path", "/no/such/model"], "/no/such/model"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options_are_one_line(case, capsys, keep_signals):
    options, expected = BAD[case]
    one_line_that_says(["--port", "0", *options], expected, capsys)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_well_with_a_stream_open(how, nothing_left_behind):
    server = ServerProcess("--max-total-tokens", "2048")
    with server.client.stream("POST", "/generate", json=request_of(LONG)) as response:
        lines = response.iter_lines()
        first_event(lines)
        server.process.send_signal(how)
        assert [line for line in lines if line][-1] == "data: [DONE]"
    assert server.stop(how) == (0, "")
    with socket.socket() as again:
        again.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        again.bind(("127.0.0.1", server.port))


def test_what_cannot_be_read_is_refused_and_what_does_not_end_ends_with_the_server(nothing_left_behind):
    server = ServerProcess("--max-total-tokens", "2048")
    assert refusal(server.port, b"\x00\x01 nonsense\r\n\r\n")["code"] == 400
    head = b"GET /health HTTP/1.1\r\nHost: a\r\nX: " + b"x" * (4 << 20)
    assert refusal(server.port, head)["code"] == 431
    unfinished = [raw_request(server.port, request_of(LONG), cut=5) for _ in range(3)]
    assert server.client.get("/health").status_code == 200
    status, error = server.stop(signal.SIGINT)
    assert status == 0 and "Traceback" not in error
    for connection in unfinished:
        with connection:
            assert connection.recv(65536).startswith(b"HTTP/1.1 503 ")


def refusal(port: int, sent: bytes) -> dict:
    """The error that is answered to bytes that are sent for as long as they are taken."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        with contextlib.suppress(ConnectionError):
            connection.sendall(sent)
        received = b""
        with contextlib.suppress(ConnectionResetError):  # it had not read all of it
            while more := connection.recv(65536):
                received += more
    return json.loads(received.partition(b"\r\n\r\n")[2])


@pytest.fixture
def keep_signals():
    """`main` installs handlers, in this process."""
    before = {name: signal.getsignal(name) for name in (signal.SIGTERM, signal.SIGHUP)}
    yield
    for name, handler in before.items():
        signal.signal(name, handler)


def one_line_that_says(options, expected, capsys):
    with pytest.raises(SystemExit) as exit_:
        main(["serve", "--model-path", "tiny", *options])
    captured = capsys.readouterr()
    assert exit_.value.code == 2
    assert expected in captured.err and captured.err.count("\n") == 1, captured.err
    assert captured.out == ""


def request_of(params: dict) -> dict:
    return {"text": "Hello", "sampling_params": params, "stream": True}


def raw_request(port: int, fields: dict, cut: int = 0) -> socket.socket:
    """Over a socket of our own, which can be closed or read as we like. cut: bytes of the body that are kept back."""
    body = json.dumps(fields).encode()
    sock = socket.create_connection(("127.0.0.1", port), timeout=30)
    head = (
        f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    sock.sendall(head.encode() + body[: len(body) - cut])
    return sock


def first_event(lines) -> dict:
    return json.loads(next(line for line in lines if line).removeprefix("data: "))


def wait_for(condition, timeout: float = 20) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.05)
