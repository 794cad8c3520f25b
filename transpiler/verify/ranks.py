"""One engine over two ranks on this machine: tensor or pipeline parallel.

Two forked processes join by vLLM's external launcher over gloo. Three gaps of vLLM's
CPU platform are worked round: in eager mode its worker skips the warm-up that
allocates what pipeline ranks hand on; a rank that is not the last cannot be asked for
log-probabilities of the prompt; and with this launcher every run of the machine gives
its shared memory the same names, so that one left behind stops the next.
"""

from __future__ import annotations

import os
import signal
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

from transpiler.verify.engine import EngineOptions, Implementation, generate, start
from transpiler.verify.outputs import Answer, Request
from transpiler.verify.variants import Split

RANKS = 2


def run_ranks(
    checkpoint: Path,
    request: Request,
    implementation: Implementation,
    options: EngineOptions,
    split: Split,
) -> tuple[Answer, ...]:
    """Run a request on two ranks; the answers of the first.

    Run it in a child of `isolate.in_child`: it forks the second rank from there.

    Raises:
        ValueError: the class refused the config, the checkpoint or the ranks.
        RuntimeError: there are not two ranks, or the second one failed.
    """
    port = free_port()
    name_segments(port)
    second = os.fork()
    join(0 if second else 1, port)
    set_up = shared_options(options, split)
    if second == 0:
        answer_and_leave(checkpoint, request, implementation, set_up, split)
    answers: tuple[Answer, ...] | None = None
    try:
        answers = answered(checkpoint, request, implementation, set_up, split)
    finally:
        if answers is None:
            # It may be waiting for this rank.
            os.kill(second, signal.SIGKILL)
        _, status = os.waitpid(second, 0)
        for segment in Path("/dev/shm").glob(f"{port}-*-cpushm_*"):
            segment.unlink()
    if status:
        raise RuntimeError(f"the second rank ended with status {status}")
    return answers


def join(rank: int, port: int) -> None:
    """Say which rank this process is, and where the two meet."""
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(RANKS),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
    )


def shared_options(options: EngineOptions, split: Split) -> EngineOptions:
    """The options of an engine over two ranks."""
    settings = {"distributed_executor_backend": "external_launcher"}
    shared: dict[str, Any] = {**options.settings, **settings, split.value: RANKS}
    sampling = dict(options.sampling)
    if split is Split.LAYERS:
        sampling["prompt_logprobs"] = None
    return replace(options, settings=shared, sampling=sampling)


def name_segments(port: int) -> None:
    """Give this run's shared memory names of its own."""
    from vllm.distributed.device_communicators import cpu_communicator

    shared = cpu_communicator._CPUSHMDistributed
    named = shared.make_group_name
    shared.make_group_name = staticmethod(lambda of: f"{port}{named(of).strip('/')}")


def answered(
    checkpoint: Path,
    request: Request,
    implementation: Implementation,
    options: EngineOptions,
    split: Split,
) -> tuple[Answer, ...]:
    """What this rank's engine answers.

    Raises:
        RuntimeError: the engine does not run on two ranks.
    """
    llm = start(checkpoint, implementation, options)
    parallel = llm.llm_engine.vllm_config.parallel_config
    if getattr(parallel, split.value) != RANKS:
        raise RuntimeError(f"{split.value} is not {RANKS}")
    if split is Split.LAYERS:
        allocate_handed_on(llm)
    return generate(llm, request, options)


def allocate_handed_on(llm: Any) -> None:
    """Make the buffers that pipeline ranks hand on, as the warm-up would."""
    import torch

    runner = llm.llm_engine.model_executor.driver_worker.worker.model_runner
    runner.intermediate_tensors = runner.model.make_empty_intermediate_tensors(
        batch_size=runner.max_num_tokens, dtype=torch.float32, device="cpu"
    )


def answer_and_leave(
    checkpoint: Path,
    request: Request,
    implementation: Implementation,
    options: EngineOptions,
    split: Split,
) -> None:
    """Play the second rank, then end its process without teardown."""
    status = 1
    try:
        answered(checkpoint, request, implementation, options, split)
        status = 0
    finally:
        os._exit(status)


def free_port() -> int:
    """A TCP port that nothing listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port
