"""`bench mechanisms` in real processes: what is counted is exact, every payload is measured, nothing is left behind."""

from __future__ import annotations

import argparse
import os
import pickle
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from common.messages import TurnOutput
from evolution import cli
from experiments.bench import bare_socket, mechanisms
from experiments.bench.mechanism_counts import counted, counting
from experiments.bench.mechanism_payloads import LISTS, REQUESTS, SIZES, make_messages, warm_and_timed
from experiments.bench.mechanism_plain import LENGTH, UnixSocket
from experiments.bench.mechanisms_plot import draw

PAYLOADS = [*REQUESTS, *SIZES]


def options(**given: object) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    mechanisms.add_arguments(parser)
    namespace = parser.parse_args([])
    vars(namespace).update(given)
    return namespace


def cells_of(result: dict[str, Any]) -> dict[tuple[str, int, str], dict[str, Any]]:
    return {(cell["mechanism"], cell["ranks"], cell["payload"]): cell for cell in result["cells"]}


def packed(payload: str) -> int:
    return len(msgspec.msgpack.encode(make_messages(payload)))


def pickled(payload: str) -> int:
    return len(pickle.dumps(make_messages(payload)))


def expected_counts(mechanism: str, ranks: int, payload: str) -> tuple[int, int, int, int]:
    """messages, bytes, encodings, decodings of a step: what the mechanism is known to do."""
    others = ranks - 1
    if mechanism.startswith("gloo"):
        if payload == "0":
            return others, 8 * others, 0, 0
        length = packed(payload) if mechanism == "gloo-msgpack" else pickled(payload)
        return 2 * others, (8 + length) * others, 1, others
    if mechanism == "zmq-tcp":
        return others, pickled(payload) * others, others, others
    if mechanism == "zmq-ipc":
        return others, packed(payload) * others, others, others
    if mechanism == "queue":
        wrapped = len(pickle.dumps(msgspec.msgpack.encode(make_messages(payload))))
        return others, (4 + wrapped) * others, 1 + others, 2 * others
    if mechanism == "pipe":
        return others, (4 + packed(payload)) * others, 1, others
    if mechanism == "shm":
        return 1, LENGTH.size + packed(payload), 1, others
    return others, (LENGTH.size + packed(payload)) * others, 1, others


def test_a_small_run_counts_exactly_and_measures_every_payload(tmp_path, capsys, nothing_left_behind):
    names = ["rpyc-value", "gloo-msgpack", "socket"]
    result = mechanisms.run(options(ranks="2", repeats=1, mechanisms=",".join(names)))
    assert "3 mechanisms, T = 2, 1 rounds: about" in capsys.readouterr().out
    cells = cells_of(result)
    assert set(cells) == {(name, 2, payload) for name in names for payload in PAYLOADS} | {("socket", 2, LISTS)}
    for (_, _, payload), cell in cells.items():
        assert [len(round_) for round_ in cell["wall"]] == [warm_and_timed(payload)[1]]
        assert min(cell["wall"][0]) > 0 and min(cell["cpu"]) > 0
    for name in ("gloo-msgpack", "socket"):
        for payload in PAYLOADS:
            assert tuple(cells[name, 2, payload]["counts"].values()) == expected_counts(name, 2, payload)
    assert result["yardsticks"] == [] and result["verdict"] is None  # none of them has its socket here
    for payload, steps in bare_socket.STEPS.items():
        assert [len(one) for one in result["bare_socket"][payload]] == [steps, steps]  # before and after
        assert min(min(one) for one in result["bare_socket"][payload]) > 0
    mechanisms.show(result)
    shown = capsys.readouterr().out
    assert (
        shown.index("counts of a step")
        < shown.index("microseconds of a step")
        < shown.index("wall, milliseconds of a step")
    )
    assert all(Path(path).stat().st_size > 1000 for path in draw(result, tmp_path))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_all_mechanisms_count_exactly_at_every_number_of_ranks(nothing_left_behind):
    result = mechanisms.run(options(ranks="1,2,3", repeats=1))
    cells = cells_of(result)
    for (mechanism, ranks, payload), cell in cells.items():
        counts = tuple(cell["counts"].values())
        if mechanism == "socket-call":
            answer = 8 + len(msgspec.msgpack.encode(TurnOutput(None, [], 0, False, False)))
            content = pickled(payload) if payload == LISTS else packed(payload)
            assert counts == (ranks + 1, ranks * (8 + content) + answer, 2, ranks + 1)
        elif mechanism == "rpyc-value":
            assert counts[0] == 2 * ranks and counts[2:] == (1 + ranks, ranks + 1)
            assert 0 < counts[1] - ranks * packed(payload) < 200 * ranks
        elif mechanism != "rpyc-reference" and payload != LISTS:
            assert counts == expected_counts(mechanism, ranks, payload), (mechanism, ranks, payload)
    assert {ranks for mechanism, ranks, _ in cells if mechanism == "pipe"} == {2, 3}
    assert {(one["mechanism"], one["to"], one["payload"]) for one in result["yardsticks"]} == set(mechanisms.YARDSTICKS)


class DiesAtTheThird(UnixSocket):
    name = "dies"

    def receive(self) -> bytes:
        content = super().receive()
        self._received = getattr(self, "_received", 0) + 1
        if self._received == 3:
            os.kill(os.getpid(), signal.SIGKILL)
        return content


def test_a_rank_that_dies_ends_the_bench_with_one_line(monkeypatch, nothing_left_behind):
    monkeypatch.setitem(mechanisms.MECHANISMS, "dies", DiesAtTheThird)
    with pytest.raises(SystemExit, match=r"^bench mechanisms: bench receiver 0 \(pid \d+\) was killed by SIGKILL$"):
        mechanisms.run(options(ranks="2", repeats=1, mechanisms="dies"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--repeats", "0"), "--repeats must be at least 1, not 0"),
        (("--ranks", "2,x"), "--ranks '2,x': expected numbers from 1 to 16"),
        (("--ranks", "2,2"), "--ranks: 2 is there twice"),
        (("--ranks", "\u00b2"), "--ranks '\u00b2': expected numbers from 1 to 16"),
        (("--ranks", "0,2"), "--ranks '0,2': expected numbers from 1 to 16"),
        (("--ranks", "17"), "--ranks '17': expected numbers from 1 to 16"),
        (("--mechanisms", "pipe,smoke"), "--mechanisms: there is no 'smoke'; there are rpyc-reference, rpyc-value"),
        (("--ranks", "1", "--mechanisms", "pipe,shm"), "--ranks 1: pipe, shm would have nobody to send to"),
    ],
)
def test_bad_options_are_one_line(arguments, message, capsys):
    with pytest.raises(SystemExit) as caught:
        cli.main(["bench", "mechanisms", *arguments])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1


def cell(mechanism: str, payload: str, rounds: list[float], ranks: int = 2) -> dict[str, Any]:
    return {"mechanism": mechanism, "ranks": ranks, "payload": payload, "wall": [[wall] * 3 for wall in rounds]}


@pytest.mark.parametrize(
    ("multiple", "word"), [(1.46, "holds"), (1.80, "holds"), (1.20, "holds"), (1.85, "fails"), (1.1, "fails")]
)
def test_a_yardstick_holds_within_a_quarter(multiple, word):
    rounds = [10.0, 30.0, 20.0, 25.0, 12.0, 9.0, 40.0]  # the machine is slower in some rounds than in others
    cells = [cell("socket", "0", rounds), cell("pipe", "0", [multiple * wall for wall in rounds])]
    cells += [cell("pipe", "0", [900.0] * 7, ranks=4)]
    (one,) = mechanisms.judge(cells)
    assert (one["mechanism"], one["to"], one["payload"], one["verdict"]) == ("pipe", "socket", "0", word)
    assert one["ratio"]["median"] == pytest.approx(multiple)


def test_counting_stops_where_it_should():
    names = (pickle.dumps, pickle.loads, msgspec.msgpack.encode, msgspec.msgpack.Decoder)
    before = counted()
    with counting():
        pickle.loads(pickle.dumps([1]))
        msgspec.msgpack.Decoder(list[int]).decode(msgspec.msgpack.encode([1]))
    assert [after - earlier for after, earlier in zip(counted(), before, strict=True)] == [0, 0, 2, 2]
    assert names == (pickle.dumps, pickle.loads, msgspec.msgpack.encode, msgspec.msgpack.Decoder)
