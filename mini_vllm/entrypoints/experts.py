"""``experts``: how many tokens each expert of a mixture-of-experts model gets, for some prompts."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mini_vllm.entrypoints.cli_options import load_llm
from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from torch import Tensor, nn

    from mini_vllm.engine.llm import LLM


def add_experts_options(command: argparse.ArgumentParser) -> None:
    command.add_argument("prompts", nargs="*", metavar="PROMPT", help="default: lines of stdin")
    command.add_argument(
        "--output-len", type=int, default=16, metavar="TOKENS", help="output tokens a prompt (16)"
    )
    command.add_argument(
        "--ranks", type=int, default=4, metavar="INT", help="ranks that share the experts (4)"
    )
    command.add_argument(
        "--copies",
        type=int,
        default=None,
        metavar="INT",
        help="num_redundant_experts (default: the fewest that every rank gets equally many)",
    )
    command.add_argument("--json", action="store_true", help="loads as one JSON object")


@contextmanager
def counted(model: nn.Module) -> Iterator[list[Tensor]]:
    """Counts the tokens of each expert while the context is open: one tensor `[E]` for each layer
    that has experts.

    Raises ValueError for a model without experts.
    """
    import torch

    from mini_vllm.model.moe.layer import Router

    routers = [module for module in model.modules() if isinstance(module, Router)]
    if not routers:
        raise ValueError(f"{type(model).__name__} has no experts")
    loads = [torch.zeros(len(router.weight), dtype=torch.int64) for router in routers]

    def watch(load: Tensor) -> Any:
        def count(module: nn.Module, args: Any, chosen: tuple[Tensor, Tensor]) -> None:
            load.add_(chosen[1].flatten().cpu().bincount(minlength=len(load)))

        return count

    pairs = zip(routers, loads, strict=True)
    hooks = [router.register_forward_hook(watch(load)) for router, load in pairs]
    try:
        yield loads
    finally:
        for hook in hooks:
            hook.remove()


def run_experts(args: argparse.Namespace) -> int:
    """Load the model and run :func:`run_with`."""
    return run_with(load_llm(args), args)


def run_with(llm: LLM, args: argparse.Namespace) -> int:
    """Run the prompts and print the loads of the experts. Tokens that the prefix cache already has
    are not counted.

    Raises ValueError for a model without experts, or ranks that cannot share them.
    """
    import torch

    from mini_vllm.distributed.eplb.picture import forecast, heat_map

    prompts = args.prompts or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    runner = getattr(llm.engine.core, "model_runner", None)
    if runner is None:
        raise ValueError(
            "experts are counted where this process runs the model; leave tensor_parallel_size, "
            "pipeline_parallel_size and data_parallel_size out"
        )
    model = runner.model
    params = SamplingParams(temperature=0.0, max_tokens=args.output_len, ignore_eos=True)
    with counted(model) as counts:
        outputs = llm.generate(prompts, params, use_tqdm=False)
    loads, moe = torch.stack(counts), model.config.moe
    copies = -loads.shape[1] % args.ranks if args.copies is None else args.copies
    if args.ranks < 1 or copies < 0 or (loads.shape[1] + copies) % args.ranks:
        raise ValueError(
            f"{args.ranks} ranks cannot share {loads.shape[1]} experts and {copies} copies evenly; "
            "change --ranks or --copies"
        )
    if args.json:
        print(json.dumps({"loads": loads.tolist(), "num_experts_per_tok": moe.num_experts_per_tok}))
        return 0
    num_tokens = int(loads[0].sum()) // moe.num_experts_per_tok
    print(
        f"{len(outputs)} texts, {num_tokens} tokens, {moe.num_experts_per_tok} of "
        f"{loads.shape[1]} experts each; ▂ has its even share, █ four times that or more"
    )
    print("layer")
    print("\n".join([*heat_map(loads), *forecast(loads, args.ranks, copies, moe.n_group)]))
    return 0
