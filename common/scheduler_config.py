"""SchedulerConfig: what a scheduler must be told."""

from __future__ import annotations

from dataclasses import dataclass

from common.policy import POLICIES
from common.turn import ONE_STEP, TurnRules


@dataclass(frozen=True)
class SchedulerConfig:
    """Sizes are in tokens, max_running_requests in requests; chunked_prefill_size -1 means no limit, random_seed is for
    the policy `random`. ValueError for a value that makes no sense."""

    max_total_tokens: int
    max_running_requests: int
    context_length: int
    chunked_prefill_size: int
    policy: str
    radix: bool
    eos_token_ids: tuple[int, ...]
    max_prefill_tokens: int = 16384
    rules: TurnRules = ONE_STEP
    schedule_conservativeness: float = 1.0
    random_seed: int = 42

    def __post_init__(self) -> None:
        for name in (
            "max_total_tokens",
            "max_running_requests",
            "context_length",
            "max_prefill_tokens",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.chunked_prefill_size < 1 and self.chunked_prefill_size != -1:
            raise ValueError(f"chunked_prefill_size must be positive, or -1, got {self.chunked_prefill_size}")
        if self.policy not in POLICIES:
            raise ValueError(f"policy must be one of {', '.join(POLICIES)}, got {self.policy}")
        if self.schedule_conservativeness <= 0:
            raise ValueError(f"schedule_conservativeness must be above 0, got {self.schedule_conservativeness}")
