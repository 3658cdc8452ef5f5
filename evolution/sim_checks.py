"""What `--device sim` needs of the settings, and what it refuses."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from common.args import EngineArgs
from common.memory import USABLE_FRACTION, available_bytes
from common.sim.profiles import DEFAULT_PROFILE, PROFILES, SimProfile, kv_tokens, load_profile

# Anonymous memory of a rank's process, torch's own included.
RANK_BYTES = 200 << 20


def fill_in_sim(args: EngineArgs) -> EngineArgs:
    """The settings with those of sim filled in, on sim, and the default model. ValueError for what goes without it, or
    does not go with it."""
    if args.device != "sim":
        for name in ("sim_profile", "sim_launch_us"):
            if getattr(args, name) is not None:
                raise ValueError(f"--{name.replace('_', '-')} goes with --device sim, not with {args.device}")
        return dataclasses.replace(args, model_path=args.model_path or "smollm2")
    name = args.sim_profile or DEFAULT_PROFILE
    profile = load_profile(name)
    launch_us = 0.0 if args.sim_launch_us is None else args.sim_launch_us
    if not 0 <= launch_us < float("inf"):
        raise ValueError(f"--sim-launch-us must be a finite number from 0, not {launch_us}")
    if args.collectives != "shm":
        raise ValueError(f"--collectives {args.collectives} goes with --device cpu: on sim ranks only meet")
    if args.dtype == "bfloat16" != profile.dtype:
        raise ValueError(f"--dtype bfloat16: profile {name} is of {profile.dtype}, and sim takes the profile's")
    return dataclasses.replace(
        args,
        model_path=args.model_path or "tiny",
        sim_profile=name if name in PROFILES else str(Path(name).expanduser().resolve()),
        sim_launch_us=launch_us,
        dtype=profile.dtype,
    )


def sim_total_tokens(args: EngineArgs, profile: SimProfile) -> int:
    """The KV pool of a replica: --max-total-tokens, or what the profile's memory holds. ValueError if it holds less, or
    if this machine has no memory for so many processes."""
    fits = kv_tokens(profile, args.tp_size)
    total = args.max_total_tokens or fits
    if not 1 <= total <= fits:
        remedy = f"--max-total-tokens {fits} would fit" if fits else "use a larger --tp-size or another profile"
        raise ValueError(
            f"{profile.model.name} at TP {args.tp_size} leaves room for {fits} KV tokens on {profile.device}: {remedy}"
        )
    ranks = args.tp_size * args.dp_size
    room = int(available_bytes() * USABLE_FRACTION) // RANK_BYTES
    if ranks > room:
        raise ValueError(f"{ranks} ranks need {RANK_BYTES >> 20} MiB each, and there is memory for {room}")
    return total
