"""How long a forward takes: a roofline over its matrix multiplications, and the collectives between them.

A multiplication by a matrix of W weights, for n tokens, takes the longer of two times: reading the weights, W * bytes /
memory bandwidth, and computing, 2 * W * n / flops. A layer has four of them (qkv, o, gate and up, down), and attention,
which reads the keys and values and computes 4 operations per query-key pair and head dimension; after the last layer
comes the head, for the sampled rows alone. These times add up: nothing overlaps. Not in it: activations, norms, writing
the KV, the embedding's rows, sampling.

With T ranks each holds its share of heads, MLP width and vocabulary. Each layer has two all-reduces of the hidden
states, and the forward an all-gather of the logits, in a ring: 2 * (T - 1) steps that send 2 * (T - 1) / T of the
bytes, and half of both.
"""

from __future__ import annotations

from common.batch import PrefillSeq
from common.memory import DTYPE_BYTES
from common.models.config import plan_heads
from common.sim.profiles import SimProfile


class Roofline:
    def __init__(self, profile: SimProfile, tp_size: int) -> None:
        """ValueError if the profile's model cannot be shared out over tp_size ranks."""
        model = profile.model
        layout = plan_heads(model.config, tp_size)
        self._profile = profile
        self._tp_size = tp_size
        self._bytes = DTYPE_BYTES[profile.dtype]
        self._query_width = layout.num_q_heads * model.head_dim
        self._kv_width = layout.num_kv_heads * model.head_dim
        mlp = model.intermediate_size // tp_size
        self._layer_weights = [
            model.hidden_size * (self._query_width + 2 * self._kv_width),
            self._query_width * model.hidden_size,
            model.hidden_size * 2 * mlp,
            mlp * model.hidden_size,
        ]
        self._head_weights = model.hidden_size * -(-model.vocab_size // tp_size)

    def decode_seconds(self, rows: int, contexts: int) -> float:
        """A decode step of `rows` rows that hold `contexts` tokens together, the new ones included."""
        return self.seconds(tokens=rows, keys=contexts, pairs=contexts, sampled=rows)

    def prefill_seconds(self, seqs: list[PrefillSeq]) -> float:
        tokens = keys = pairs = 0
        for seq in seqs:
            n = len(seq.input_ids) // 4
            tokens += n
            keys += seq.start + n
            pairs += n * seq.start + n * (n + 1) // 2
        return self.seconds(tokens, keys, pairs, sampled=sum(seq.sample for seq in seqs))

    def seconds(self, tokens: int, keys: int, pairs: int, sampled: int) -> float:
        """A forward that computes `tokens` tokens, reads the KV of `keys`, has `pairs` pairs of a token and one that it
        attends to, and gives `sampled` rows of logits."""
        profile = self._profile
        layer = sum(self._multiply(weights, tokens) for weights in self._layer_weights)
        layer += max(
            keys * 2 * self._kv_width * self._bytes / profile.memory_bandwidth,
            4 * pairs * self._query_width / profile.flops,
        )
        total = profile.model.num_layers * layer
        total += profile.fixed_seconds + tokens * profile.token_seconds + pairs * profile.key_seconds
        if sampled:
            total += self._multiply(self._head_weights, sampled)
        return total + self._collectives(tokens, sampled)

    def _multiply(self, weights: int, tokens: int) -> float:
        profile = self._profile
        return max(weights * self._bytes / profile.memory_bandwidth, 2 * weights * tokens / profile.flops)

    def _collectives(self, tokens: int, sampled: int) -> float:
        if self._tp_size == 1:
            return 0.0
        model = self._profile.model
        all_reduce = 2 * self._around(tokens * model.hidden_size * self._bytes) + self._profile.collective_latency
        total = 2 * model.num_layers * all_reduce
        if sampled:
            total += self._around(sampled * model.vocab_size * self._bytes) + self._profile.collective_latency
        return total

    def _around(self, nbytes: int) -> float:
        """Once around the ring with `nbytes` in all: T - 1 steps, a T-th of the bytes in each."""
        steps = self._tp_size - 1
        return steps * (self._profile.hop_latency + nbytes / self._tp_size / self._profile.link_bandwidth)
