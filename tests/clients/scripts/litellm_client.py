"""litellm against a server: run with its URL, in an environment of the client's."""

import sys

import litellm

URL = sys.argv[1] + "/v1"
MESSAGES = [{"role": "user", "content": "Hello"}]


def main():
    for provider in ("openai", "hosted_vllm"):
        fields = {"model": f"{provider}/any", "api_base": URL, "api_key": "EMPTY", "max_tokens": 8, "temperature": 0}
        whole = litellm.completion(messages=MESSAGES, **fields)
        assert whole.usage.completion_tokens <= 8
        chunks = list(litellm.completion(messages=MESSAGES, stream=True, **fields))
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == (whole.choices[0].message.content or "")
    fields["model"] = "text-completion-openai/any"
    assert litellm.text_completion(prompt="Hello", **fields).choices[0].text
    try:
        litellm.completion(messages=MESSAGES, **{**fields, "model": "openai/any", "temperature": -1})
    except litellm.BadRequestError as error:
        assert "temperature" in str(error)
    else:
        raise AssertionError("no BadRequestError")


main()
