"""Log-probabilities in OpenAI's two shapes, from the engine's (log-probability, token id, None)."""

from __future__ import annotations

from typing import Any

from common.tokenizer import Tokenizer

Entries = list[tuple[float | None, int, None]]
Tops = list[Entries | None]


def text_of(tokenizer: Tokenizer, token: int) -> str:
    return tokenizer.decode([token], skip_special_tokens=False)


def for_completion(tokenizer: Tokenizer, entries: Entries, tops: Tops | None, offset: int) -> dict[str, Any]:
    """offset: characters of text before the first token."""
    tokens = [text_of(tokenizer, token) for _, token, _ in entries]
    offsets = []
    for token in tokens:
        offsets.append(offset)
        offset += len(token)
    top_logprobs = None
    if tops is not None:
        top_logprobs = [
            None if top is None else {text_of(tokenizer, token): logprob for logprob, token, _ in reversed(top)}
            for top in tops
        ]
    return {
        "tokens": tokens,
        "token_logprobs": [logprob for logprob, _, _ in entries],
        "top_logprobs": top_logprobs,
        "text_offset": offsets,
    }


def for_chat(tokenizer: Tokenizer, entries: Entries, tops: Tops | None) -> dict[str, Any]:
    content = []
    for index, entry in enumerate(entries):
        top = (tops[index] if tops else None) or []
        content.append({**_token(tokenizer, entry), "top_logprobs": [_token(tokenizer, each) for each in top]})
    return {"content": content, "refusal": None}


def _token(tokenizer: Tokenizer, entry: tuple[float | None, int, None]) -> dict[str, Any]:
    logprob, token, _ = entry
    text = text_of(tokenizer, token)
    # A part of a character has bytes that its text does not show.
    return {"token": text, "logprob": logprob, "bytes": None if "\ufffd" in text else list(text.encode())}
