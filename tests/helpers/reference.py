"""The tokens that every stage must give: one worker, TP 1, in this process, requests run to the end."""

from __future__ import annotations

from typing import Any

from common.args import EngineArgs
from common.messages import Request, TextChunk, TokenChunk, TurnOutput
from common.tokenizer import Tokenizer
from common.worker import Worker
from evolution.checks import resolve_args
from evolution.requests import RequestMaker
from evolution.streams import Stream


class Reference:
    def __init__(self, **settings: Any) -> None:
        self.args, config = resolve_args(EngineArgs(**settings))
        self.make_requests = RequestMaker(self.args, config, Tokenizer(self.args.model_path))
        self.worker = Worker(self.args, replica=0, rank=0, group=None)

    def generate(self, prompt=None, sampling_params=None, input_ids=None) -> list[list[int]]:
        """Output ids of each prompt of a list, in order."""
        results = self.results(prompt=prompt, sampling_params=sampling_params, input_ids=input_ids)
        return [result["output_ids"] for result in results]

    def results(self, **call: Any) -> list[dict[str, Any]]:
        """What `Engine.generate` would return for the same arguments, always as a list; without text."""
        _, requests = self.make_requests(**call)
        for index, request in enumerate(requests):
            request.rid = f"r{index}"
        streams = {request.rid: Stream(request.rid, 0.0, logprobs=request.logprobs) for request in requests}
        messages: list[Request] = list(requests)
        while messages or self.worker.busy:
            output = self.turn(messages)
            messages = []
            for chunk in output.tokens.chunks if output.tokens else []:
                streams[chunk.rid].add(0.0, without_text(chunk))
        return [streams[request.rid].result() for request in requests]

    def turn(self, messages: list[Request]) -> TurnOutput:
        return self.worker.step(messages)


def without_text(chunk: TokenChunk) -> TextChunk:
    return TextChunk(
        chunk.rid,
        "",
        chunk.new_ids,
        chunk.finish,
        chunk.prompt_tokens,
        chunk.cached_tokens,
        chunk.input_logprobs,
        chunk.output_logprobs,
    )
