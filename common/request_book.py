"""RequestBook: the requests of a scheduler, those that wait and those that run, from `add` to their last chunk.

What runs when is decided in `common.scheduler`, which is built on this.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable

from common.kv_cache import KvCache
from common.messages import FinishReason, GenerateRequest, TokenChunk
from common.open_turn import OpenTurn
from common.request_state import RequestState
from common.scheduler_config import SchedulerConfig


class RequestBook:
    def __init__(self, config: SchedulerConfig, decode_text: Callable[[list[int], bool], str] | None) -> None:
        """See `Scheduler`."""
        self.config = config
        self.kv = KvCache(config.max_total_tokens, config.radix)
        self.retraction_count = 0
        self.finished_count = 0  # requests that have ended, in whatever way
        self._decode_text = decode_text
        self._states: dict[str, RequestState] = {}  # all that wait or run
        self._waiting: OrderedDict[str, RequestState] = OrderedDict()
        self._running: list[RequestState] = []
        self._in_flight: RequestState | None = None  # between two chunks of its prompt
        self._free_rows = list(range(config.max_running_requests))  # a heap: the lowest goes first
        self._batch_full = False  # nobody could enter, and nobody has left since
        self._turn = 0
        self._open: deque[OpenTurn] = deque()  # planned and not committed, oldest first: at most two
        self._chunks: list[TokenChunk] = []
        self._prompt_tokens = self._cached_tokens = 0

    def add(self, request: GenerateRequest) -> None:
        """Let a request wait. Its max_new_tokens is clipped to min(context_length, max_total_tokens) - prompt.

        ValueError for what the main process should have refused: an empty prompt, one longer than that minimum,
        a request id in use, or stop strings where there is no decode_text.
        """
        if request.rid in self._states:
            raise ValueError(f"request {request.rid} is here already; request ids must be unique")
        if request.sampling.stop and self._decode_text is None:
            raise ValueError(f"request {request.rid} has stop strings, which need a scheduler with decode_text")
        limit = min(self.config.context_length, self.config.max_total_tokens)
        state = RequestState.of(request, limit, self.config.eos_token_ids)
        self._states[state.rid] = state
        self._waiting[state.rid] = state

    def abort(self, rid: str) -> bool:
        """End a request that waits or runs, with one chunk of finish type "abort"; False if there is none."""
        self._require_no_plan("abort")
        state = self._states.get(rid)
        if state is None:
            return False
        if rid in self._waiting:
            del self._waiting[rid]
        elif state is self._in_flight:
            self._in_flight = None
        else:
            self._running.remove(state)
        self._end(state, FinishReason("abort", message="aborted"))
        return True

    def flush(self) -> tuple[bool, str]:
        """Empty the cache. (False, why) while requests wait or run."""
        self._require_no_plan("flush")  # a request that has ended may have a slot that this turn still writes
        if self._states:
            return False, f"{self.running_count} requests run and {self.waiting_count} wait; flush when idle"
        self.kv.flush()
        return True, ""

    @property
    def has_work(self) -> bool:
        """Whether requests wait or run, or a plan is not committed yet."""
        return bool(self._states or self._open)

    @property
    def waiting_count(self) -> int:
        return len(self._waiting)

    @property
    def running_count(self) -> int:
        """Requests that hold a row."""
        return len(self._states) - len(self._waiting)

    def stats(self) -> dict[str, int]:
        """Figures of now (requests, KV slots) and of all turns so far (turns, requests, tokens at first admission)."""
        tree = self.kv.tree
        return {
            "waiting": self.waiting_count,
            "running": self.running_count,
            "free_tokens": self.kv.pool.available,
            "evictable_tokens": self.kv.evictable,
            "protected_tokens": tree.protected_size if tree else 0,
            "total_tokens": self.kv.pool.size,
            "turns": self._turn,
            "finished": self.finished_count,
            "retractions": self.retraction_count,
            "prompt_tokens": self._prompt_tokens,
            "cached_tokens": self._cached_tokens,
        }

    def take_chunks(self) -> list[TokenChunk]:
        """The output since the last call, in the order of the turns and of the rows in their plans."""
        chunks, self._chunks = self._chunks, []
        return chunks

    def _end(self, state: RequestState, finish: FinishReason) -> None:
        """The one way out. The caller takes it off the list it stood on."""
        if state.row is not None:
            self._give_up_row(state, keep=True)
        del self._states[state.rid]
        self._batch_full = False
        self.finished_count += 1
        self._chunks.append(state.chunk(finish))

    def _give_up_row(self, state: RequestState, keep: bool) -> None:
        self.kv.leave(state, keep)
        heapq.heappush(self._free_rows, state.row)
        state.row = None

    def _require_no_plan(self, what: str) -> None:
        if self._open:
            raise RuntimeError(f"{what}() while turn {self._open[0].plan.turn} is not committed; commit it first")
