"""Programs that import vLLM run on this engine: what lm-eval's `vllm` model does, step by step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from mini_vllm import LLM, SamplingParams
from mini_vllm.engine.checked_config import make_engine_config

ROOT = Path(__file__).parents[3]
LM_EVAL = '''
from mini_vllm import as_vllm
as_vllm.install()

import json
from importlib.metadata import version
from importlib.util import find_spec
from vllm import LLM, SamplingParams, TokensPrompt
from vllm.lora.request import LoRARequest
from vllm.renderers.hf import resolve_chat_template
from vllm.tokenizers import get_tokenizer
import mini_vllm.lora.request

assert find_spec("vllm") and int(version("vllm").split(".")[1]) >= 9
assert LoRARequest is mini_vllm.lora.request.LoRARequest
llm = LLM(
    model="storyteller", revision=None, dtype="auto", tokenizer=None, tokenizer_mode="auto",
    tokenizer_revision=None, trust_remote_code=False, tensor_parallel_size=1, max_model_len=None,
    max_num_seqs=None, quantization=None, seed=1234, enable_lora=False, max_lora_rank=16,
)
tokenizer = get_tokenizer(
    "storyteller", tokenizer_mode="auto", trust_remote_code=False, revision=None
)
config = llm.llm_engine.model_config
template = resolve_chat_template(
    tokenizer=tokenizer, chat_template=None, tools=None, model_config=config
)
tokens = tokenizer(["Once upon a time"], return_attention_mask=False).input_ids[0]
prompts = [TokensPrompt(prompt_token_ids=tokens)]
scores = llm.generate(
    prompts,
    sampling_params=[
        SamplingParams(temperature=0, prompt_logprobs=1, max_tokens=1, detokenize=False)
    ],
    use_tqdm=False, lora_request=None,
)[0].prompt_logprobs
text = llm.generate(
    prompts,
    sampling_params=[SamplingParams(
        max_tokens=8, stop=["."], temperature=0.0, skip_special_tokens=False,
        spaces_between_special_tokens=False,
    )],
    use_tqdm=False, lora_request=None,
)[0].outputs[0].text
print(json.dumps({
    "length": config.max_model_len, "text": text, "has_template": bool(template),
    "none": scores[0] is None,
    "scored": [token in entry for token, entry in zip(tokens[1:], scores[1:])],
}))
'''  # fmt: skip


def test_what_lm_eval_does_works() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LM_EVAL], capture_output=True, text=True, cwd=ROOT, timeout=300
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["length"], found["has_template"], found["none"]) == (2048, True, True)
    assert found["text"] and all(found["scored"]) and len(found["scored"]) > 2


IMPORTS = """
from mini_vllm import as_vllm
as_vllm.install()
import vllm
from vllm.distributed import cleanup_dist_env_and_memory
from vllm.engine.async_llm_engine import AsyncLLMEngine
from vllm.engine.llm_engine import LLMEngine
from vllm.entrypoints.llm import LLM
from vllm.exceptions import VLLMValidationError
from vllm.logprobs import Logprob
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.metrics.reader import Counter, Vector
from vllm.v1.sample.logits_processor import BatchUpdate, LogitsProcessor
from vllm.v1.sample.logits_processor.builtin import process_dict_updates
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = vllm.EngineArgs.add_cli_args(FlexibleArgumentParser(description="x"))
args = parser.parse_args(["--max_model_len", "64", "--speculative-config.method", "ngram"])
assert (args.max_model_len, args.speculative_config) == (64, {"method": "ngram"})
assert LLM is vllm.LLM and AsyncLLMEngine is AsyncLLM
assert "Qwen3ForCausalLM" in vllm.ModelRegistry.get_supported_archs()
assert vllm.__version_tuple__ == tuple(map(int, vllm.__version__.split(".")))
"""


def test_modules_that_scripts_import_from_are_there() -> None:
    done = subprocess.run([sys.executable, "-c", IMPORTS], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_another_vllm_is_not_replaced() -> None:
    code = (
        "import sys, types; sys.modules['vllm'] = types.ModuleType('vllm')\n"
        "from mini_vllm import as_vllm\n"
        "as_vllm.install()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert "vllm is imported already; call as_vllm.install() before that" in done.stderr


@pytest.mark.parametrize("given", [{}, {"enable_lora": False}])
def test_adapters_settings_without_adapters_change_nothing(given: dict[str, bool]) -> None:
    config = make_engine_config("storyteller", max_lora_rank=16, max_loras=4, **given)  # type: ignore[arg-type]
    assert config.lora is None


def test_the_engine_tells_its_models_length() -> None:
    llm = LLM("storyteller", num_gpu_blocks=20)
    assert llm.llm_engine.model_config.max_model_len == 304
    assert llm.llm_engine.vllm_config.model_config.max_model_len == 304
    assert llm.llm_engine.model_config.get_vocab_size() == 2048
    llm.shutdown()


def test_the_engine_tells_its_models_config_as_transformers_reads_it() -> None:
    config = make_engine_config("storyteller", hf_overrides={"rms_norm_eps": 1e-4}).model_config
    assert (config.hf_config.model_type, config.hf_config.num_hidden_layers) == ("qwen3", 4)
    assert config.hf_text_config.vocab_size == 2048 and config.hf_config.rms_norm_eps == 1e-4


@pytest.mark.parametrize("value", [True, False])
def test_spaces_between_special_tokens_are_the_tokenizers(value: bool) -> None:
    assert (
        SamplingParams(spaces_between_special_tokens=value).spaces_between_special_tokens is value
    )
