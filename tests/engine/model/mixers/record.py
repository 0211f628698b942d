"""Records what transformers makes of `problems.py`: writes `recorded.json` beside this file.

python -m tests.engine.model.mixers.record
"""

from __future__ import annotations

import json
from itertools import accumulate
from pathlib import Path

import torch
import transformers
from torch import Tensor
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
from transformers.models.mamba2 import modeling_mamba2 as mamba2
from transformers.models.qwen3_next import modeling_qwen3_next as qwen3_next

from tests.engine.model.mixers import problems


def requests(*tensors: Tensor) -> list[list[Tensor]]:
    """The parts of each request of tensors `[T, ...]`, as batches of one."""
    ends = list(accumulate(problems.LENS))
    return [
        [x[end - size : end][None] for x in tensors]
        for end, size in zip(ends, problems.LENS, strict=True)
    ]


def gated_delta() -> list[Tensor]:
    *tokens, states = problems.gated_delta()
    outs: list[Tensor] = []
    ends: list[Tensor] = []
    for (q, k, v, g, beta), state in zip(requests(*tokens), states, strict=True):
        out, end = qwen3_next.torch_chunk_gated_delta_rule(
            q.float() * 2, k.float(), v.float(), g.float(), beta.float(),
            chunk_size=16, initial_state=state[None].float(), output_final_state=True,
        )  # fmt: skip
        outs.append(out[0])
        ends.append(end[0])
    return [torch.cat(outs), torch.stack(ends)]


def state_space(groups: int) -> list[Tensor]:
    x, dt, a, b, c, d, states = problems.state_space(groups=groups)
    outs: list[Tensor] = []
    ends: list[Tensor] = []
    for (x1, dt1, b1, c1), state in zip(requests(x, dt, b, c), states, strict=True):
        out, end = mamba2.mamba2_chunk_scan(
            x1.float(), dt1.float(), a.float(), b1.float(), c1.float(), 16, d.float(),
            initial_states=state[None].float(), return_final_states=True,
        )  # fmt: skip
        outs.append(out[0])
        ends.append(end[0])
    return [torch.cat(outs), torch.stack(ends)]


def convolution() -> list[Tensor]:
    x, weight, bias, tails = problems.convolution()
    outs: list[Tensor] = []
    ends: list[Tensor] = []
    for (x1,), tail in zip(requests(x), tails, strict=True):
        end = tail.T[None].float().contiguous()
        out = mamba2.causal_conv1d_update(x1.float().mT, end, weight.float(), bias.float())
        outs.append(out[0].T)
        ends.append(end[0].T)
    return [torch.cat(outs), torch.stack(ends)]


def sinks() -> list[Tensor]:
    q, k, v, sink = problems.attention()
    module = torch.nn.Module()
    module.num_key_value_groups, module.sinks, module.training = 1, sink.float(), False
    mask = torch.full((len(q), len(k)), -torch.inf).triu(len(k) - len(q) + 1)
    q, k, v = (x.float().transpose(0, 1)[None] for x in (q, k, v))
    out, _ = gpt_oss.eager_attention_forward(module, q, k, v, mask[None, None], 0.5)
    return [out[0]]


def main() -> None:
    found = {
        "gated_delta": gated_delta(),
        "state_space": state_space(1),
        "state_space_2_groups": state_space(2),
        "convolution": convolution(),
        "sinks": sinks(),
    }
    text = {
        name: [{"shape": list(x.shape), "data": [round(n, 5) for n in x.flatten().tolist()]}
               for x in tensors]
        for name, tensors in found.items()
    }  # fmt: skip
    versions = {"transformers": transformers.__version__, "torch": torch.__version__}
    path = Path(__file__).with_name("recorded.json")
    path.write_text(json.dumps({"versions": versions, **text}, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
