from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import msgspec
import pytest
import zmq

from common.channels import Channel, Endpoints, Receiver, Sender
from common.messages import AbortRequest, GenerateRequest, Request, SamplingParams, StopRequest, pack_ids, unpack_ids
from common.run_folder import PREFIX, create_run_folder, remove_run_folder


@pytest.fixture
def folder():
    folder = create_run_folder()
    yield folder
    remove_run_folder(folder)


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def request(rid: str) -> GenerateRequest:
    return GenerateRequest(rid, pack_ids([1, 2, 3]), SamplingParams(stop=("a",)))


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
@pytest.mark.parametrize("codec", ["msgpack", "pickle"])
def test_messages_arrive_in_order_as_their_types(folder, context, transport, codec):
    endpoints = Endpoints(str(folder), transport, codec)
    receiver = Receiver(context, endpoints.requests, Request)
    sender = Sender(context, endpoints.requests)
    sent = [request("r0"), AbortRequest(1, "r0"), request("r1"), StopRequest(2)]
    for message in sent:
        sender.send(message)
    received = []
    while len(received) < len(sent):
        received += receiver.drain(wait=True)
    assert received == sent
    assert unpack_ids(received[0].input_ids).tolist() == [1, 2, 3]
    assert receiver.drain(wait=False) == []


def test_a_channel_outlives_its_folder(folder, context):
    receiver = Receiver(context, Channel(f"{folder}/x"), Request)
    sender = Sender(context, Channel(f"{folder}/x"))
    remove_run_folder(folder)
    sender.send(StopRequest(1))
    assert receiver.receive() == StopRequest(1)


@pytest.mark.parametrize("transport", ["ipc", "tcp"])
def test_a_sender_may_come_before_its_receiver(folder, context, transport):
    receivers = []
    channel = Channel(f"{folder}/late", transport)
    timer = threading.Timer(0.3, lambda: receivers.append(Receiver(context, channel, Request)))
    timer.start()
    sender = Sender(context, channel)
    sender.send(StopRequest(1))
    timer.join()
    assert receivers[0].receive() == StopRequest(1)


def test_another_type_on_the_edge_is_an_error(folder, context):
    receiver = Receiver(context, Channel(f"{folder}/x"), Request)
    sender = Sender(context, Channel(f"{folder}/x"))
    sender.send({"type": "shutdown"})
    with pytest.raises(msgspec.ValidationError):
        receiver.receive()


@pytest.fixture
def short_tmp(monkeypatch):
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        monkeypatch.setattr("tempfile.tempdir", folder)
        yield Path(folder)


def test_run_folder_is_private_and_old_ones_are_swept(short_tmp):
    stale = short_tmp / f"{PREFIX}999999999-1-abc"
    reused_pid = short_tmp / f"{PREFIX}{os.getpid()}-1-abc"
    foreign = short_tmp / "something-else"
    mine = create_run_folder()
    for folder in (stale, reused_pid, foreign):
        folder.mkdir()
        (folder / "socket").touch()
    assert mine.stat().st_mode & 0o777 == 0o700
    other = create_run_folder()
    assert sorted(short_tmp.iterdir()) == sorted([mine, other, foreign])


def test_a_long_tmpdir_does_not_break_socket_paths(short_tmp, monkeypatch, context):
    deep = short_tmp / ("d" * 90)
    deep.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(deep))
    folder = create_run_folder()
    Receiver(context, Channel(f"{folder}/replica10.requests"), Request)
    remove_run_folder(folder)
    assert folder.parent == Path("/tmp")


class Opened:
    """Unpickling one writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)


def test_a_pickle_without_the_secret_is_dropped_unread(folder, context, tmp_path):
    endpoints = Endpoints(str(folder), "tcp", "pickle", secret=b"0123456789abcdef")
    receiver = Receiver(context, endpoints.requests, Request)
    trap = tmp_path / "trap"
    for secret in (b"", b"0123456789abcdeX"):
        Sender(context, Channel(endpoints.requests.path, "tcp", "pickle", secret)).send(Opened(trap))
    sender = Sender(context, endpoints.requests)
    sender.send(StopRequest(1))
    assert receiver.receive() == StopRequest(1)
    sender.send(StopRequest(2))
    assert receiver.drain(wait=True) == [StopRequest(2)]
    assert not trap.exists()


def test_the_secret_is_not_shown(folder):
    endpoints = Endpoints(str(folder), "tcp", "pickle", secret=b"0123456789abcdef")
    assert "0123" not in repr(endpoints) + repr(endpoints.requests)
    assert endpoints.requests.secret and not Endpoints(str(folder), secret=b"0123").requests.secret
