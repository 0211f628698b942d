"""Which layer is the first that computes something else than transformers' does?

A wrong layer makes all behind it wrong, so the search halves what is left. Each question runs both
models through the layers up to one, and no further.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.families.record import read
from benchmarks.families.tiny import prompts, write
from mini_vllm.model.bring_up import first_difference
from mini_vllm.model.build import load_model
from mini_vllm.quantization.oneshot.calibrate import run_prompt

TOLERANCE = 1e-3
"""Float32 in another order of sums; a layer that is wrong is off by far more."""


class Reached(Exception):
    """The layer that was asked for has computed."""


def state_behind(layer: nn.Module, run: Any) -> Tensor:
    """What `layer` says of a prompt's last token, `[H]`, when `run()` comes to it."""
    found: list[Tensor] = []

    def stop(_: nn.Module, __: Any, output: Any) -> None:
        parts = output if isinstance(output, tuple) else (output,)
        parts = [part for part in parts if isinstance(part, Tensor)]
        found.append(sum(part.flatten(0, -2)[-1].float() for part in parts))  # and what is to add
        raise Reached

    hook = layer.register_forward_hook(stop)
    try:
        run()
    except Reached:
        pass
    finally:
        hook.remove()
    return found[0]


@torch.inference_mode()
def first_wrong_layer(folder: Path) -> tuple[int | None, dict[int, tuple[Tensor, Tensor]]]:
    """The first layer of a checkpoint whose states are not transformers'; None: none differs.

    Returns:
        its number, and of each layer that was asked both models' states `[H]`, ours first.
    """
    from transformers import AutoModelForCausalLM
    from transformers.utils import logging

    logging.disable_progress_bar()
    logging.set_verbosity_error()
    eager = {"dtype": torch.float32, "attn_implementation": "eager"}
    theirs = AutoModelForCausalLM.from_pretrained(folder, **eager).eval()
    ours, states = load_model(folder, torch.float32), {}
    prompt = max(prompts(), key=len)  # a first token sees none but itself, and does not turn
    if "states" in ours.supports:
        raise ValueError("its layers keep states between steps; compare these by hand")
    tokens = torch.tensor([prompt])

    def differs(index: int) -> bool:
        states[index] = (
            state_behind(ours.model.layers[index], lambda: run_prompt(ours, prompt)),
            state_behind(theirs.model.layers[index], lambda: theirs(tokens, use_cache=False)),
        )
        return not torch.allclose(*states[index], rtol=TOLERANCE, atol=TOLERANCE)

    return first_difference(len(ours.model.layers), differs), states


def report(name: str) -> str:
    """The answer of one family by its name, or of a checkpoint by its folder, in words."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(name)
        if not folder.is_dir():
            folder, answer = Path(temporary), read()[name]
            write(folder, answer["config"], answer["shapes"])
        try:
            layer, states = first_wrong_layer(folder)
        except ValueError as error:
            return f"{name}: not compared: {error}"
    if layer is None:
        return (
            f"{name}: no layer differs, {len(states)} asked; if tokens do, look at the last norm "
            "and the head"
        )
    ours, right = (state[:4].tolist() for state in states[layer])
    return (
        f"{name}: layer {layer} is the first that differs, {len(states)} asked\n"
        f"  the last token behind it   ours          {' '.join(f'{x:8.3f}' for x in ours)} ...\n"
        f"                             transformers  {' '.join(f'{x:8.3f}' for x in right)} ..."
    )
