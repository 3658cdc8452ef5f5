"""The openai client against a server: run with its URL, in an environment of the client's."""

import asyncio
import sys

import openai

URL = sys.argv[1] + "/v1"
MESSAGES = [{"role": "user", "content": "Hello"}]


def main():
    client = openai.OpenAI(base_url=URL, api_key="EMPTY")
    model = client.models.list().data[0]
    assert client.models.retrieve(model.id).id == model.id
    assert model.max_model_len > 0
    fails(openai.NotFoundError, lambda: client.models.retrieve("other"))

    one = client.completions.create(model=model.id, prompt="Hello", max_tokens=8, temperature=0)
    assert one.choices[0].text and one.choices[0].finish_reason in ("length", "stop")
    assert one.usage.completion_tokens <= 8 and one.usage.total_tokens > one.usage.completion_tokens
    several = client.completions.create(model=model.id, prompt=["Hello", "x"], max_tokens=8, temperature=0, n=2)
    assert len(several.choices) == 4 and several.choices[0].text == one.choices[0].text
    stream = client.completions.create(model=model.id, prompt="Hello", max_tokens=8, temperature=0, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == one.choices[0].text
    logprobs = client.completions.create(model=model.id, prompt="Hello", max_tokens=4, logprobs=3).choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs)

    fields = {"model": model.id, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
    chat = client.chat.completions.create(**fields)
    text = chat.choices[0].message.content
    assert chat.choices[0].message.role == "assistant"
    *chunks, last = client.chat.completions.create(**fields, stream=True, stream_options={"include_usage": True})
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
    assert last.choices == [] and last.usage.completion_tokens == chat.usage.completion_tokens
    content = client.chat.completions.create(**fields, logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert content and len(content[0].top_logprobs) == 2
    parts = [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]
    newer = client.chat.completions.create(
        model="any", messages=parts, max_completion_tokens=8, temperature=0, seed=1, extra_body={"ignore_eos": True}
    )
    assert newer.usage.completion_tokens == 8

    early = client.chat.completions.create(**{**fields, "max_tokens": 1000}, stream=True)
    next(iter(early))
    early.close()

    error = fails(openai.BadRequestError, lambda: client.chat.completions.create(**{**fields, "temperature": -1}))
    assert "temperature" in error.message and error.param == "temperature"
    fails(openai.BadRequestError, lambda: client.completions.create(model=model.id, prompt="", max_tokens=8))
    asyncio.run(many(model.id, text))


async def many(model, text):
    async with openai.AsyncOpenAI(base_url=URL, api_key="EMPTY") as client:
        fields = {"model": model, "messages": MESSAGES, "max_tokens": 8, "temperature": 0}
        answers = await asyncio.gather(*(client.chat.completions.create(**fields) for _ in range(8)))
        assert {answer.choices[0].message.content for answer in answers} == {text}


def fails(kind, call):
    try:
        call()
    except kind as error:
        return error
    raise AssertionError(f"no {kind.__name__}")


main()
