"""Penalties against their definition, token by token in plain Python."""

from __future__ import annotations

import msgspec
import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from common.batch import RowExtras
from common.messages import pack_ids
from common.penalties import RowHistory

VOCAB = 12
NOTHING = RowExtras(
    row=0,
    min_p=0.0,
    repetition_penalty=1.0,
    frequency_penalty=0.0,
    presence_penalty=0.0,
    min_new_tokens=0,
    forbidden=b"",
    prompt_len=3,
    prompt_ids=b"",
    output_ids=b"",
    logprobs=False,
    logprob_start=3,
    top_logprobs=0,
)

tokens = st.lists(st.integers(0, VOCAB - 1), max_size=20)
logits = st.lists(st.floats(-50, 50, width=32), min_size=VOCAB, max_size=VOCAB)
penalty = st.sampled_from([-2.0, -0.5, 0.0, 0.3, 2.0])


def extras(prompt: list[int], output: list[int] = (), **change) -> RowExtras:
    given = {"prompt_len": len(prompt), "prompt_ids": pack_ids(prompt), "output_ids": pack_ids(output), **change}
    return msgspec.structs.replace(NOTHING, **given)


def by_definition(logits: list[float], e: RowExtras, prompt: list[int], output: list[int], ends: list[int]) -> list:
    result = []
    for token, logit in enumerate(logits):
        count = output.count(token)
        if count:
            logit -= e.presence_penalty + count * e.frequency_penalty
        if token in ends and len(output) < e.min_new_tokens:
            logit = -np.inf
        if token in prompt or count:
            logit = logit / e.repetition_penalty if logit > 0 else logit * e.repetition_penalty
        result.append(logit)
    return result


@given(
    logits=logits,
    prompt=tokens.filter(bool),
    output=tokens,
    resumed_after=st.integers(0, 20),
    repetition=st.sampled_from([0.01, 0.5, 1.0, 1.3, 2.0]),
    frequency=penalty,
    presence=penalty,
    minimum=st.integers(0, 20),
    ends=tokens,
)
@settings(deadline=None, max_examples=300)
def test_penalties_are_what_their_definition_says(
    logits, prompt, output, resumed_after, repetition, frequency, presence, minimum, ends
) -> None:
    """Some of the output was there when the row began, as after a retraction; some came since."""
    before, since = output[:resumed_after], output[resumed_after:]
    e = extras(
        prompt,
        before,
        repetition_penalty=repetition,
        frequency_penalty=frequency,
        presence_penalty=presence,
        min_new_tokens=minimum,
        forbidden=pack_ids(ends),
    )
    history = RowHistory(e, VOCAB)
    for token in since:
        history.add(token)
    got = history.apply(np.array(logits, dtype=np.float32), len(prompt) + len(output))
    np.testing.assert_allclose(got, by_definition(logits, e, prompt, output, ends), rtol=1e-12, atol=1e-12)


def test_a_row_without_penalties_keeps_its_logits() -> None:
    row = np.arange(VOCAB, dtype=np.float32)
    history = RowHistory(msgspec.structs.replace(NOTHING, min_p=0.5, logprobs=True), VOCAB)
    history.add(4)
    assert history.apply(row, 4) is row


def test_logits_are_not_changed_in_place() -> None:
    row = np.arange(VOCAB, dtype=np.float32)
    history = RowHistory(extras([1, 2, 3], repetition_penalty=2.0, min_new_tokens=1, forbidden=pack_ids([0])), VOCAB)
    assert history.apply(row, 3).tolist() == [-np.inf, 0.5, 1, 1.5, *range(4, VOCAB)]
    assert row.tolist() == list(range(VOCAB))


def test_the_eos_is_allowed_once_the_minimum_is_there() -> None:
    row = np.zeros(VOCAB, dtype=np.float32)
    history = RowHistory(extras([1, 2, 3], min_new_tokens=2, forbidden=pack_ids([5])), VOCAB)
    assert [np.isinf(history.apply(row, position)[5]) for position in (3, 4, 5, 6)] == [True, True, False, False]


def test_stop_ids_outside_the_vocabulary_and_a_tiny_repetition_penalty_do_no_harm() -> None:
    change = {"repetition_penalty": 5e-324, "min_new_tokens": 1, "forbidden": pack_ids([VOCAB, 2**31 - 1])}
    history = RowHistory(extras([1, 2, 3], **change), VOCAB)
    assert np.all(np.isfinite(history.apply(np.linspace(-40, 40, VOCAB, dtype=np.float32), 3)))
