"""The detokenizer and the stop-string helpers, on byte-level and byte-fallback tokenizers trained here."""

from __future__ import annotations

import functools
import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from common.detokenizer import KEPT, IncrementalDetokenizer
from common.messages import FinishReason, TextChunk, TokenBatch, TokenChunk
from common.stop import find_stop, held_back

TEXT = [
    "The quick brown fox jumps over the lazy dog, and the other foxes watch the dog for the whole day.",
    "Größe, Straße, naïve café, señor; Ελληνικά γράμματα; Русский текст и ещё немного текста.",
    "日本語の文章です。日本語は難しいです。中文的句子,中文的文章。한국어 문장입니다.",
    "😀😃😄 👨‍👩‍👧‍👦 👨‍👩‍👧 🇩🇪🇫🇷🇩🇪 👍🏽👍🏽 e\u0301a\u0308o\u0308 नमस्ते दुनिया ابحث עברית",
] * 4
PIECES = [
    *("a", "B", " ", "  ", "\n", "the dog", "é", "ß", "я", "ه", "日本語", "文", "한", "न", "म", "स\u094d", "e\u0301"),
    *(
        "😀",
        "👨\u200d👩\u200d👧\u200d👦",
        "🇩🇪",
        "👍🏽",
        "\u200d",
        "\ufe0f",
        "\U00020000",
        "\U0010ffff",
        "\x00",
        "\u07ff",
        "\u0800",
    ),
]
texts = st.lists(st.one_of(st.sampled_from(PIECES), st.characters(exclude_categories=["Cs"])), max_size=24).map("".join)
BYTES = [f"<0x{b:02X}>" for b in range(256)]
EOS = "<|end|>"


def byte_level(vocab_size: int, cross_words: bool) -> Tokenizer:
    """`cross_words` lets merges begin and end inside characters, as no word border stops them."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not cross_words)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size, initial_alphabet=alphabet, special_tokens=[EOS], show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    return tokenizer


def byte_fallback() -> Tokenizer:
    """Llama 2's shape: a metaspace BPE in which an unknown character becomes byte tokens."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    trainer = trainers.BpeTrainer(vocab_size=400, show_progress=False)
    trained.train_from_iterator([line for line in TEXT if line.isascii()] + ["é ß日本 ▁▁ ▁"] * 2, trainer)
    model = json.loads(trained.to_str())["model"]
    vocab = {"<unk>": 0, **{name: 1 + i for i, name in enumerate(BYTES)}}
    for name in model["vocab"]:
        vocab.setdefault(name, len(vocab))
    merges = [tuple(merge) for merge in model["merges"]]
    tokenizer = Tokenizer(models.BPE(vocab, merges, byte_fallback=True, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    tokenizer.add_special_tokens([EOS])
    return tokenizer


@functools.cache
def tokenizers() -> dict[str, Tokenizer]:
    return {
        "words": byte_level(700, cross_words=False),
        "across": byte_level(900, cross_words=True),
        "bytes": byte_level(257, cross_words=False),
        "fallback": byte_fallback(),
    }


BYTE_LEVEL = ["words", "across", "bytes"]
ALL = [*BYTE_LEVEL, "fallback"]


def decoder(name: str):
    tokenizer = tokenizers()[name]
    return lambda ids, skip: tokenizer.decode(ids, skip_special_tokens=skip)


def encode(name: str, text: str) -> list[int]:
    return tokenizers()[name].encode(text).ids


def eos(name: str) -> int:
    return tokenizers()[name].token_to_id(EOS)


def stream(decode, chunks: list[list[int]], finish: FinishReason, stop=(), skip: bool = True) -> list[str]:
    """The text of each chunk of one request; the last chunk carries `finish`."""
    detokenizer = IncrementalDetokenizer(decode)
    out = []
    for i, ids in enumerate(chunks):
        first = {"stop": tuple(stop), "skip_special_tokens": skip} if i == 0 else {}
        chunk = TokenChunk("r", ids, finish if i == len(chunks) - 1 else None, **first)
        (answer,) = detokenizer.process(TokenBatch(0, [chunk])).chunks
        assert (answer.rid, answer.new_ids, answer.finish) == ("r", ids, chunk.finish)
        out.append(answer.text)
    assert not detokenizer.states
    return out


LENGTH = FinishReason("length")
ABORT = FinishReason("abort")


def stopped(matched: int | str) -> FinishReason:
    return FinishReason("stop", matched)


def cut(ids: list[int], rng: random.Random) -> list[list[int]]:
    """Random chunks, some of them empty, at least one."""
    chunks, at = [], 0
    while at < len(ids):
        size = rng.choice([0, 1, 1, 1, 2, 3, 8])
        chunks.append(ids[at : at + size])
        at += size
    return chunks or [[]]


def one_by_one(ids: list[int]) -> list[list[int]]:
    return [[token] for token in ids] or [[]]


# ------------------------------------------------------------------------- the stream is the decode of the whole


@pytest.mark.parametrize("name", ALL)
@given(text=texts, rng=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_text_in_any_chunks_joins_to_the_whole(name: str, text: str, rng: random.Random) -> None:
    ids = encode(name, text)
    whole = decoder(name)(ids, True)
    assert whole == text
    for chunks in (one_by_one(ids), cut(ids, rng)):
        out = stream(decoder(name), chunks, LENGTH)
        assert "".join(out) == whole
        if "\ufffd" not in text:
            assert not any("\ufffd" in piece for piece in out)


@pytest.mark.parametrize("name", ALL)
@given(text=texts, keep=st.integers(0, 40), rng=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_an_output_that_ends_inside_a_character(name: str, text: str, keep: int, rng: random.Random) -> None:
    ids = encode(name, text)[:keep]
    out = stream(decoder(name), cut(ids, rng), LENGTH)
    if name in BYTE_LEVEL:
        assert "".join(out) == decoder(name)(ids, True)
    if "\ufffd" not in text:
        assert not any("\ufffd" in piece for piece in out[:-1])
        assert text.startswith("".join(out).rstrip("\ufffd"))


@pytest.mark.parametrize("name", BYTE_LEVEL)
@given(data=st.data(), skip=st.booleans(), rng=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_any_token_ids_join_to_the_whole(name: str, data: st.DataObject, skip: bool, rng: random.Random) -> None:
    tokens = st.integers(0, tokenizers()[name].get_vocab_size() + 1)  # one id beyond the vocabulary too
    ids = data.draw(st.lists(tokens, max_size=60))
    whole = decoder(name)(ids, skip)
    assert "".join(stream(decoder(name), one_by_one(ids), LENGTH, skip=skip)) == whole
    assert "".join(stream(decoder(name), cut(ids, rng), LENGTH, skip=skip)) == whole


@pytest.mark.parametrize("name", BYTE_LEVEL)
@given(raw=st.lists(st.sampled_from([0x41, 0x80, 0xBF, 0xC3, 0xE2, 0x82, 0xAC, 0xED, 0xF0, 0x9F, 0xFF]), max_size=120))
@settings(deadline=None, max_examples=40)
def test_invalid_bytes_join_to_the_whole(name: str, raw: list[int]) -> None:
    alphabet = decode_table(name)
    ids = [alphabet[b] for b in raw]
    out = stream(decoder(name), one_by_one(ids), LENGTH)
    assert "".join(out) == bytes(raw).decode("utf-8", errors="replace") == decoder(name)(ids, True)


def decode_table(name: str) -> list[int]:
    """Byte -> token id of a byte-level tokenizer: its single-character tokens, in GPT-2's order of the bytes."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    letters = {b: chr(b) for b in printable} | {b: chr(256 + i) for i, b in enumerate(others)}
    return [tokenizers()[name].token_to_id(letters[b]) for b in range(256)]


@given(data=st.data(), rng=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_byte_fallback_any_ids(data: st.DataObject, rng: random.Random) -> None:
    """An invalid run of byte tokens keeps what was complete before: not the whole's text, but alike in any chunks."""
    tokenizer = tokenizers()["fallback"]
    ids = data.draw(st.lists(st.integers(0, tokenizer.get_vocab_size() - 1), max_size=60))
    single = "".join(stream(decoder("fallback"), one_by_one(ids), LENGTH))
    whole = decoder("fallback")(ids, True)
    assert "".join(stream(decoder("fallback"), cut(ids, rng), LENGTH)) == single
    if "\ufffd" not in whole:
        assert single == whole
    kept = iter(single)
    assert all(c in kept for c in whole if c != "\ufffd")  # in order: nothing that is valid in the whole is lost


def test_byte_fallback_complete_characters_survive_a_later_invalid_byte() -> None:
    ids = [tokenizers()["fallback"].token_to_id(name) for name in ("<0xE2>", "<0x82>", "<0xAC>", "<0xFF>", "▁the")]
    assert decoder("fallback")(ids, True) == "\ufffd" * 4 + " the"
    assert stream(decoder("fallback"), one_by_one(ids), LENGTH) == ["", "", "€", "", "\ufffd the"]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize(
    "text", ["\ufffd文", "\ufffd\ufffd", "a\ufffd the dog", "한\ufffd한", "\ufffd文\ufffd\ufffd한\ufffd"]
)
def test_a_replacement_character_that_the_model_spelt_out(name: str, text: str) -> None:
    assert "".join(stream(decoder(name), one_by_one(encode(name, text)), LENGTH)) == text


def test_text_that_a_decoder_takes_back_is_not_sent_twice() -> None:
    texts_of = {(0,): "a\ufffd", (0, 1): "\ufffd\ufffd", (0, 1, 2): "xyz"}
    out = stream(lambda ids, skip: texts_of.get(tuple(ids), "-"), [[0], [1], [2]], LENGTH)
    assert out == ["a", "", "yz"]


def test_a_metaspace_fragment_keeps_its_space() -> None:
    ids = encode("fallback", "the dog the dog")
    out = stream(decoder("fallback"), one_by_one(ids), LENGTH)
    assert "".join(out) == "the dog the dog"
    assert decoder("fallback")(ids[-1:], True) != out[-1] or not out[-1].startswith(" ")
    space = tokenizers()["fallback"].token_to_id("▁")
    assert "".join(stream(decoder("fallback"), [[space], [space], *one_by_one(ids)], LENGTH)) == "  the dog the dog"


def test_characters_leave_when_complete_and_not_before() -> None:
    family = "👨\u200d👩\u200d👧"
    out = stream(decoder("bytes"), one_by_one(encode("bytes", family + "é")), LENGTH)
    assert [piece for piece in out if piece] == ["👨", "\u200d", "👩", "\u200d", "👧", "é"]
    assert out[:4] == ["", "", "", "👨"]


def test_a_finish_inside_a_character_flushes_it_and_an_abort_does_not() -> None:
    chunks = one_by_one(encode("bytes", "a😀")[:-1])
    assert stream(decoder("bytes"), chunks, LENGTH) == ["a", "", "", "\ufffd"]
    assert stream(decoder("bytes"), chunks, ABORT) == ["a", "", "", ""]


# ------------------------------------------------------------------------------------------------------ the cost


def widest_window(name: str, ids: list[int]) -> tuple[int, int]:
    """The most tokens decoded in one call, and the tokens decoded in all."""
    calls: list[int] = []

    def decode(window: list[int], skip: bool) -> str:
        calls.append(len(window))
        return decoder(name)(window, skip)

    assert "".join(stream(decode, one_by_one(ids), LENGTH)) == decoder(name)(ids, True)
    return max(calls), sum(calls)


@pytest.mark.parametrize("name", ALL)
def test_ordinary_text_decodes_a_few_tokens_at_a_time(name: str) -> None:
    ids = encode(name, "".join(TEXT) * 2)
    widest, total = widest_window(name, ids)
    assert widest <= 10
    assert total <= 8 * len(ids)


@pytest.mark.parametrize("pattern", [[0x80], [0xF0, 0x9F], [0xF0, 0x9F, 0x98], [0xFF, 0xE2, 0x82]])
def test_endless_invalid_bytes_stay_cheap(pattern: list[int]) -> None:
    table = decode_table("bytes")
    ids = [table[b] for b in pattern] * (2000 // len(pattern))
    assert widest_window("bytes", ids)[0] <= 4 * KEPT


@pytest.mark.parametrize("pattern", [[0x80], [0xF0, 0x9F], [0xF0, 0x9F, 0x98], [0xFF, 0xE2, 0x82]])
@pytest.mark.parametrize("length", range(30, 45))
def test_a_long_invalid_run_that_ends(pattern: list[int], length: int) -> None:
    raw = (pattern * length)[:length] + list(b"aXb")
    ids = [decode_table("bytes")[b] for b in raw]
    assert "".join(stream(decoder("bytes"), one_by_one(ids), LENGTH)) == bytes(raw).decode("utf-8", errors="replace")


def test_endless_invalid_bytes_are_streamed() -> None:
    out = stream(decoder("bytes"), [[decode_table("bytes")[0x80]]] * 100, LENGTH)
    assert "".join(out) == "\ufffd" * 100
    assert out[50] == "\ufffd"


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("head", ["", "a😀"])
def test_endless_skipped_tokens_stay_cheap(name: str, head: str) -> None:
    half = encode(name, head)[:-1] if head else []
    assert widest_window(name, half + [eos(name)] * 1000)[0] <= 10


# -------------------------------------------------------------------------------------------------------- finish


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("name", ALL)
def test_a_matched_token_is_in_the_ids_and_not_in_the_text(name: str, skip: bool) -> None:
    ids = encode(name, "the dog")
    end = eos(name)
    assert "".join(stream(decoder(name), [*one_by_one(ids), [end]], stopped(end), skip=skip)) == "the dog"
    assert "".join(stream(decoder(name), [[*ids, end]], stopped(end), skip=skip)) == "the dog"
    word = encode(name, "the dog")[-1]
    without = decoder(name)(ids[:-1], skip)
    assert "".join(stream(decoder(name), one_by_one(ids), stopped(word), skip=skip)) == without


def test_special_tokens_show_unless_skipped() -> None:
    chunks = [[eos("words")], encode("words", "the dog")]
    assert stream(decoder("words"), chunks, LENGTH, skip=False) == [EOS, "the dog"]
    assert stream(decoder("words"), chunks, LENGTH, skip=True) == ["", "the dog"]
    both = [TokenChunk("skip", [eos("words")]), TokenChunk("show", [eos("words")], skip_special_tokens=False)]
    answer = IncrementalDetokenizer(decoder("words")).process(TokenBatch(0, both))
    assert [chunk.text for chunk in answer.chunks] == ["", EOS]


def test_a_request_may_end_before_its_first_token() -> None:
    assert stream(decoder("words"), [[]], LENGTH) == [""]
    assert stream(decoder("words"), [[]], ABORT) == [""]


def test_requests_of_a_batch_do_not_mix_and_counts_pass_through() -> None:
    detokenizer = IncrementalDetokenizer(decoder("bytes"))
    a, b = encode("bytes", "é!"), encode("bytes", "日")
    for i in range(3):
        chunks = [
            TokenChunk("a", [a[i]], LENGTH if i == 2 else None, prompt_tokens=7, cached_tokens=3, stop=("!",)),
            TokenChunk("b", [b[i]], LENGTH if i == 2 else None),
        ]
        answer = detokenizer.process(TokenBatch(5, chunks))
        assert answer.replica == 5
        assert answer.chunks[0].prompt_tokens == 7
        assert answer.chunks[0].cached_tokens == 3
        assert answer.chunks[0].text == ["", "é", "!"][i]
        assert answer.chunks[1] == TextChunk("b", ["", "", "日"][i], [b[i]], chunks[1].finish)
    assert not detokenizer.states


def test_a_chunk_after_the_finish_is_an_error() -> None:
    detokenizer = IncrementalDetokenizer(decoder("words"))
    detokenizer.process(TokenBatch(0, [TokenChunk("r1", [5], LENGTH)]))
    with pytest.raises(ValueError, match="r1 has finished"):
        detokenizer.process(TokenBatch(0, [TokenChunk("r1", [6])]))


def test_finished_requests_are_not_kept_for_ever() -> None:
    detokenizer = IncrementalDetokenizer(decoder("words"))
    for i in range(5000):
        detokenizer.process(TokenBatch(0, [TokenChunk(f"r{i}", [5], LENGTH)]))
    assert not detokenizer.states
    assert len(detokenizer.finished) == 4096


# --------------------------------------------------------------------------------------------------- stop strings


def scripted(pieces: list[str]):
    """Token i decodes to pieces[i]."""
    return (lambda ids, skip: "".join(pieces[i] for i in ids)), [[i] for i in range(len(pieces))]


@pytest.mark.parametrize(
    ("pieces", "stop", "matched", "expected"),
    [
        (["DEF", "G", "HI", "J"], ["DEFGHIJ"], "DEFGHIJ", ["", "", "", ""]),
        (["DEF", "X"], ["DEFGHIJ"], None, ["", "DEFX"]),
        (["ab", "cST", "OPde"], ["STOP"], "STOP", ["ab", "c", ""]),
        (["Hi", "\n", "A"], ["\nUser:"], None, ["Hi", "", "\nA"]),
        (["Hi", "\nUser"], ["\nUser:"], None, ["Hi", "\nUser"]),  # the end comes first: released by the finish
        (["S", "ST", "OP"], ["STOP"], "STOP", ["", "S", ""]),
        (["aaa", "ab"], ["aab"], "aab", ["a", "a"]),
        (["A", "BC"], ["BC", "ABCD"], "BC", ["", "A"]),
        (["xSTOPySTOPz"], ["STOP"], "STOP", ["x"]),
        (["STO", "P"], ["STOP!"], None, ["", "STOP"]),
    ],
)
def test_scripted_stops(pieces: list[str], stop: list[str], matched: str | None, expected: list[str]) -> None:
    decode, chunks = scripted(pieces)
    finish = LENGTH if matched is None else stopped(matched)
    assert stream(decode, chunks, finish, stop) == expected
    found = find_stop("".join(pieces), stop)
    assert (found and found[1]) == matched


def test_held_text_is_released_by_an_abort_and_by_an_eos() -> None:
    decode, chunks = scripted(["ab", "ST", "<eos>"])
    assert stream(decode, chunks[:2], ABORT, ["STOP"]) == ["ab", "ST"]
    assert stream(decode, chunks, stopped(2), ["STOP"]) == ["ab", "", "ST"]


@pytest.mark.parametrize("name", ALL)
@given(before=texts, stop=texts.filter(bool), after=texts, other=texts, rng=st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=40)
def test_a_stop_string_anywhere(name: str, before: str, stop: str, after: str, other: str, rng: random.Random) -> None:
    """The scheduler of this test ends the request at the first token after which the decoded text has a stop."""
    ids = encode(name, before + stop + after)
    stops = [stop, other] if other else [stop]
    taken, found = 0, None
    while found is None and taken < len(ids):
        taken += 1
        found = find_stop(decoder(name)(ids[:taken], True), stops)
    whole = decoder(name)(ids[:taken], True)
    assert found is not None
    start, matched = found
    for chunks in (one_by_one(ids[:taken]), cut(ids[:taken], rng)):
        out = "".join(stream(decoder(name), chunks, stopped(matched), stops))
        assert out == whole[:start] == whole.split(matched)[0]
        assert matched not in out


@given(text=st.text("ab", max_size=12), stops=st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
@settings(deadline=None, max_examples=40)
def test_find_stop_is_the_first_that_a_growing_text_meets(text: str, stops: list[str]) -> None:
    expected = None
    for end in range(len(text) + 1):
        ending = [stop for stop in stops if text[:end].endswith(stop)]
        if ending:
            expected = (end - len(ending[0]), ending[0])
            break
    assert find_stop(text, stops) == expected


@given(text=st.text("ab", max_size=12), stops=st.lists(st.text("ab", min_size=1, max_size=5), max_size=3))
@settings(deadline=None, max_examples=40)
def test_held_back_is_the_longest_tail_that_starts_a_stop(text: str, stops: list[str]) -> None:
    starts = {stop[:n] for stop in stops for n in range(1, len(stop))}
    assert held_back(text, stops) == max(
        (n for n in range(len(text) + 1) if text[len(text) - n :] in starts), default=0
    )


def test_held_back_looks_at_the_tail_only() -> None:
    class Text(str):
        def find(self, sub: str, start: int = 0) -> int:  # type: ignore[override]
            assert start >= len(self) - 4
            return super().find(sub, start)

    assert held_back(Text("a" * 100_000 + "ST"), ["STOP!", "aSTO"]) == 3
