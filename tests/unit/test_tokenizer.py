"""The tokenizer against transformers: the same ids and the same text, on mixed strings."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest
import tokenizers
from tokenizers import processors
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from common.models.smollm2 import MISSING, find_gguf
from common.models.sources import resolve_model
from common.tokenizer import Tokenizer

PIECES = (
    *("The quick brown fox", "don't we'll I'm", "Hello, world!", "http://example.org/?q=1&r=2#top", "a", "Z" * 40),
    *(
        "def f(x):\n    return x ** 2\n",
        "\tif (a[i] != '\\0') { b++; }",
        '<div class="x">&amp;</div>',
        "λ = {'k': [1]}",
    ),
    *(
        "你好，世界",
        "日本語のテキスト",
        "한국어 문장",
        "𠀋𡈽",
        "مرحبا بالعالم",
        "שלום",
        "Ελληνικά",
        "Привет",
        "हिन्दी",
        "ไทย",
    ),
    *(
        "😀",
        "👩‍👩‍👧‍👦",
        "🏳️‍🌈",
        "👍🏽",
        "🇫🇷🇩🇪",
        "\u200d\u200d",
        "e\u0301 a\u0308\u0323",
        "\u0301\u0301",
        "\ufeff",
        "\u200b",
    ),
    *("1234567890", "3.14159e-10", "٣٤٥", "½ ² Ⅷ", "2026-11-29T14:30:00Z", "0x7fFF", " 42", "  7", "1,000,000"),
    *(
        " ",
        "  ",
        "   ",
        " " * 17,
        "\n",
        "\n\n\n",
        "\r\n",
        "\t\t",
        "\u00a0",
        "\u3000",
        " \n \t ",
        "\x00",
        "\x7f",
        "\x1b[0m",
    ),
    *(
        "<|im_start|>",
        "<|im_end|>",
        "<|endoftext|>",
        "<|im_start|>user\n",
        "<|im_",
        "|>",
        "<repo_name>",
        "<|bos|>",
        "<|eos|>",
    ),
)


def mixed_strings(count: int) -> list[str]:
    rng = random.Random(0)
    strings = ["", *PIECES]
    while len(strings) < count:
        pieces = [rng.choice(PIECES) for _ in range(rng.randint(1, 8))]
        pieces += [chr(rng.choice((rng.randrange(0x20, 0x7F), rng.randrange(0xA0, 0x3000)))) for _ in range(3)]
        rng.shuffle(pieces)
        strings.append("".join(pieces))
    return strings[:count]


@pytest.fixture(scope="module")
def smollm2() -> Path:
    try:
        return resolve_model("smollm2")
    except ValueError as error:
        if str(error) != MISSING:
            raise
        pytest.skip(MISSING)


@pytest.fixture(scope="module", params=["smollm2", "tiny"])
def folder(request: pytest.FixtureRequest) -> Path:
    if request.param == "tiny":
        return resolve_model("tiny")
    return request.getfixturevalue("smollm2")


def check_same(ours: Tokenizer, theirs: PreTrainedTokenizerFast) -> None:
    for text in mixed_strings(500):
        ids = ours.encode(text)
        assert ids == theirs.encode(text), repr(text)
        assert ours.encode(text, add_special_tokens=False) == theirs.encode(text, add_special_tokens=False)
        for skip in (True, False):
            expected = theirs.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert ours.decode(ids, skip_special_tokens=skip) == expected
        assert ours.decode(ids, skip_special_tokens=False) == text
        # Cut in the middle: half characters are shown the same way.
        half = ids[: len(ids) // 2]
        assert ours.decode(half) == theirs.decode(half, skip_special_tokens=True, clean_up_tokenization_spaces=False)


def test_ids_equal_transformers_reading_the_gguf_file(smollm2: Path) -> None:
    # The class AutoTokenizer picks for this file; AutoTokenizer itself takes 7 s longer, to read a config.
    gguf = find_gguf()
    check_same(Tokenizer(smollm2), PreTrainedTokenizerFast.from_pretrained(gguf.parent, gguf_file=gguf.name))


def test_ids_equal_transformers_reading_the_folder(folder: Path) -> None:
    check_same(Tokenizer(folder), AutoTokenizer.from_pretrained(folder))


def test_vocabularies(smollm2: Path) -> None:
    assert Tokenizer(smollm2).vocab_size == 49152
    assert Tokenizer(resolve_model("tiny")).vocab_size == 258


def test_a_tiny_token_is_a_byte() -> None:
    tokenizer = Tokenizer(resolve_model("tiny"))
    assert tokenizer.encode("Aé\n") == list("Aé\n".encode())
    assert tokenizer.encode("<|bos|>x<|eos|>") == [256, ord("x"), 257]
    assert tokenizer.decode([256, ord("x"), 257]) == "x"
    assert tokenizer.decode([256, ord("x"), 257], skip_special_tokens=False) == "<|bos|>x<|eos|>"
    assert tokenizer.decode([0xC3]) == "\ufffd"


@pytest.mark.parametrize(
    "messages",
    [
        [{"role": "user", "content": "Hello"}],
        [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Who are you?\n"}],
        [
            {"role": "user", "content": "1 < 2 & 3"},
            {"role": "assistant", "content": "Yes 😀"},
            {"role": "user", "content": "{{ why }}"},
        ],
    ],
)
def test_chat_templates_equal_transformers(folder: Path, messages: list[dict[str, str]]) -> None:
    theirs = AutoTokenizer.from_pretrained(folder)
    ours = Tokenizer(folder)
    text = ours.apply_chat_template(messages)
    assert text == theirs.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids = theirs.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    assert ours.encode(text, add_special_tokens=False) == ids


@pytest.mark.parametrize("in_file", [True, False])
def test_tokenizer_json_decides_about_bos(tmp_path: Path, in_file: bool) -> None:
    tiny = resolve_model("tiny")
    (tmp_path / "config.json").write_bytes((tiny / "config.json").read_bytes())
    backend = tokenizers.Tokenizer.from_file(str(tiny / "tokenizer.json"))
    if in_file:
        backend.post_processor = processors.TemplateProcessing(single="<|bos|> $A", special_tokens=[("<|bos|>", 256)])
    backend.save(str(tmp_path / "tokenizer.json"))
    config = json.loads((tiny / "tokenizer_config.json").read_text())
    config.update(add_bos_token=not in_file, bos_token={"content": "<|bos|>", "__type": "AddedToken"})
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    ours = Tokenizer(tmp_path)
    assert ours.encode("hi") == [256] * in_file + list(b"hi")
    assert ours.encode("hi", add_special_tokens=False) == list(b"hi")
    assert ours.encode("hi") == AutoTokenizer.from_pretrained(tmp_path).encode("hi")


def test_truncation_and_padding_in_the_file_are_ignored(tmp_path: Path) -> None:
    values = json.loads((resolve_model("tiny") / "tokenizer.json").read_text())
    values["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    (tmp_path / "tokenizer.json").write_text(json.dumps(values))
    assert Tokenizer(tmp_path).encode("longer than three") == list(b"longer than three")


def test_refusals(tmp_path: Path) -> None:
    tokenizer = Tokenizer(resolve_model("tiny"))
    with pytest.raises(ValueError, match=r"'\\ud83d' at character 2") as error:
        tokenizer.encode("ab\ud83dcd")
    assert type(error.value) is ValueError
    with pytest.raises(ValueError, match=r"there is no tokenizer\.json"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match="not a readable tokenizer"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_bytes((resolve_model("tiny") / "tokenizer.json").read_bytes())
    with pytest.raises(ValueError, match="no chat template"):
        Tokenizer(tmp_path).apply_chat_template([{"role": "user", "content": "x"}])


def test_a_template_that_refuses(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((resolve_model("tiny") / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    with pytest.raises(ValueError, match="roles must alternate"):
        Tokenizer(tmp_path).apply_chat_template([{"role": "user", "content": "x"}])
