"""Models with states and latents through the whole engine: greedy tokens are transformers'.

The checkpoints are those of `benchmarks/families`, made from seeds, with recorded answers.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from benchmarks.families.record import TOKENS
from benchmarks.families.tiny import PROMPT_LENGTHS, prompts, write
from mini_vllm import LLM, SamplingParams
from mini_vllm.attention import StateMetadata
from mini_vllm.distributed.linear import ModelParallel
from mini_vllm.distributed.parallel_state import GroupCoordinator
from mini_vllm.distributed.simulated import SimulatedGroup, run_ranks
from mini_vllm.model.build import load_model
from mini_vllm.model.config import ModelArgs

ANSWERS: dict[str, Any] = json.loads(TOKENS.read_text())
POOLS = {
    "deepseek_v2": 10,
    "deepseek_v3": 10,
    "granitemoehybrid": 13,
    "mamba2": 4,
    "qwen3_next": 20,
    "qwen3_5_text": 20,
    "qwen3_5_moe_text": 20,
}
"""By family: the blocks of a pool that holds any request, and not all at once."""
QUICK = ("deepseek_v3", "granitemoehybrid", "qwen3_next")
"""Each mixer once; the other families differ in names and feed-forwards."""


class Case:
    """One family's checkpoint, and what transformers makes of the prompts."""

    def __init__(self, name: str, folder: Path) -> None:
        self.name, self.folder = name, folder
        self.tokens: list[list[int]] = ANSWERS[name]["tokens"]
        write(folder, ANSWERS[name]["config"], ANSWERS[name]["shapes"])

    def llm(self, **options: Any) -> LLM:
        shared: dict[str, Any] = dict(dtype="float32", max_model_len=80, skip_tokenizer_init=True)
        return LLM(self.folder, **(shared | options))

    def ask(self, llm: LLM, which: Sequence[int] = range(len(PROMPT_LENGTHS))) -> list[Any]:
        """The answers to these prompts, which must be those of transformers."""
        params = SamplingParams(temperature=0, max_tokens=len(self.tokens[0]), ignore_eos=True)
        outputs = llm.generate([prompts()[index] for index in which], params, use_tqdm=False)
        answers = [list(output.outputs[0].token_ids) for output in outputs]
        assert answers == [self.tokens[index] for index in which]
        return outputs


def params(names: Sequence[str]) -> list[Any]:
    return [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in names]


@pytest.fixture(scope="module", params=params(list(POOLS)))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    torch.set_num_threads(1)
    return Case(request.param, tmp_path_factory.mktemp(request.param))


def test_prompts_in_chunks_beside_decodes(case: Case) -> None:
    case.ask(case.llm(enable_prefix_caching=False, max_num_batched_tokens=7, num_gpu_blocks=60))


def test_requests_that_are_preempted_and_prefixes_that_hit(case: Case) -> None:
    """In a pool that holds not all requests at once; the last prompt, asked again, finds itself."""
    pool = POOLS[case.name]
    llm = case.llm(block_size=16, max_num_batched_tokens=32, num_gpu_blocks=pool)
    case.ask(llm)
    assert llm.engine.stats.num_preemptions > 0
    hits = [case.ask(llm, [-1])[0].num_cached_tokens for _ in range(2)]
    assert hits[1] >= 32


@pytest.mark.slow
def test_latents_in_two_stages(tmp_path: Path) -> None:
    """Each rank has half of the layers."""
    ask_ranks(Case("deepseek_v3", tmp_path), pipeline_parallel_size=2)


@pytest.mark.parametrize("name", params(list(POOLS)))
def test_states_and_latents_on_two_ranks(name: str, tmp_path: Path) -> None:
    """Each rank has the states of its own heads, or makes its heads of the whole latents."""
    ask_ranks(Case(name, tmp_path), tensor_parallel_size=2)


def test_two_groups_of_heads_on_two_ranks(tmp_path: Path) -> None:
    """B and C of a group are where its heads are; and its norm is a rank's own."""
    answer = ANSWERS["mamba2"]
    rows = {152: 152 + 16, 80: 80 + 16}  # eight more of B, and of C
    shapes = {
        name: [rows.get(shape[0], shape[0]), *shape[1:]] for name, shape in answer["shapes"].items()
    }
    write(tmp_path, answer["config"] | {"n_groups": 2}, shapes)
    step = StateMetadata(
        torch.tensor([0, 40], dtype=torch.int32), torch.tensor([0]), torch.tensor([True]),
        max_query_len=40, num_decode_reqs=0, query_lens_cpu=[40], seq_lens_cpu=[40],
    )  # fmt: skip
    x = torch.randn(40, 32, generator=torch.Generator().manual_seed(1))

    def mixed(**ranks: Any) -> Tensor:
        mixer = load_model(tmp_path, **ranks).model.layers[0].self_attn
        states = tuple(torch.zeros(1, *one.shape) for one in mixer.layer_spec.states)
        return mixer(x, None, states, replace(step))

    def work(group: SimulatedGroup) -> Tensor:
        return mixed(parallel=ModelParallel(group, GroupCoordinator([0], 0)))

    with torch.inference_mode():
        whole, *ranks = mixed(), *run_ranks(2, work)
    for own in ranks:
        torch.testing.assert_close(own, whole, rtol=1e-5, atol=1e-5)


def ask_ranks(case: Case, **ranks: int) -> None:
    """All prompts of a case, in chunks beside decodes, in a pool that holds not all at once."""
    pool = POOLS[case.name]
    llm = case.llm(block_size=16, max_num_batched_tokens=32, num_gpu_blocks=pool, **ranks)
    try:
        case.ask(llm)
        assert llm.engine.stats.num_preemptions > 0
    finally:
        llm.shutdown()


def test_weights_of_draft_layers_are_left_in_the_file(tmp_path: Path) -> None:
    """Qwen's are called `mtp.`, DeepSeek's are a layer behind the last."""
    for name, draft in (("qwen3_5_text", "mtp.fc.weight"), ("deepseek_v3", "model.layers.4.x")):
        answer = ANSWERS[name]
        write(tmp_path, answer["config"], answer["shapes"] | {draft: [4, 4]})
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"linear_num_value_heads": 3}, "linear_num_value_heads is 3 and linear_num_key_heads 2"),
        ({"layer_types": ["full_attention"]}, "layer_types has 1 entries"),
        ({"layer_types": ["mamba"] * 4}, "layer_types is .* linear_attention, full_attention"),
        ({"linear_key_head_dim": 0}, "linear_key_head_dim is 0; it must be"),
    ],
)
def test_a_state_that_fits_no_layer(entries: dict[str, Any], message: str) -> None:
    config = ANSWERS["qwen3_5_text"]["config"] | entries
    with pytest.raises(ValueError, match=f"^config.json: .*{message}"):
        ModelArgs.from_dict(config)
