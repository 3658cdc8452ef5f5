"""The tokens that every stage must give: one worker, TP 1, in this process, requests run to the end."""

from __future__ import annotations

from typing import Any

from common.args import EngineArgs
from common.messages import Request
from common.tokenizer import Tokenizer
from common.worker import Worker
from evolution.checks import resolve_args
from evolution.requests import RequestMaker


class Reference:
    def __init__(self, **settings: Any) -> None:
        self.args, config = resolve_args(EngineArgs(**settings))
        self.make_requests = RequestMaker(self.args, config, Tokenizer(self.args.model_path))
        self.worker = Worker(self.args, replica=0, rank=0, group=None)

    def generate(self, prompt=None, sampling_params=None, input_ids=None) -> list[list[int]]:
        """Output ids of each prompt of a list, in order."""
        _, requests = self.make_requests(prompt, sampling_params, input_ids)
        for index, request in enumerate(requests):
            request.rid = f"r{index}"
        ids: dict[str, list[int]] = {request.rid: [] for request in requests}
        messages: list[Request] = list(requests)
        while messages or self.worker.busy:
            output = self.worker.step(messages)
            messages = []
            for chunk in output.tokens.chunks if output.tokens else []:
                ids[chunk.rid] += chunk.new_ids
        return [ids[request.rid] for request in requests]
