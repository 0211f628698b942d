"""GGUF files: the same tokens as transformers with the numbers of the file, or a clear refusal."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from packaging.version import Version
from tokenizers import pre_tokenizers

from mini_vllm import LLM, SamplingParams, bundled, hub
from mini_vllm.config import EngineConfig
from mini_vllm.entrypoints.cli import main
from mini_vllm.gguf import TYPES
from mini_vllm.kernels import native
from mini_vllm.lora.request import LoRARequest
from mini_vllm.model.build import load_model
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.model.config import load_config
from mini_vllm.model.gguf.tensors import GGUFTensors
from mini_vllm.model.layers import Linear, UnquantizedLinearMethod, unpacked
from mini_vllm.model.lazy_tokenizer import load_lazy_tokenizer
from mini_vllm.quantization import get_quantization_config
from mini_vllm.quantization.gguf import GGUFLinearMethod
from mini_vllm.sampling_params import StructuredOutputsParams
from tests.engine.model import gguf_files

ROOT = Path(__file__).parents[3]
PROMPTS = [[5, 77, 901, 14, 14, 360], [1999, 3, 8], list(range(100, 140))]
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def tokens_of(llm: LLM, prompts: list[list[int]] = PROMPTS) -> list[list[int]]:
    outputs = llm.generate(
        [{"prompt_token_ids": prompt} for prompt in prompts], GREEDY, use_tqdm=False
    )
    return [list(output.outputs[0].token_ids) for output in outputs]


def oracle_tokens(model: Any) -> list[list[int]]:
    model.generation_config.eos_token_id = None
    answers = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        mask = torch.ones_like(ids)
        out = model.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False)
        answers.append(out[0, len(prompt) :].tolist())
    return answers


# ---------------------------------------------------------------- architectures and types
@pytest.mark.parametrize("arch", gguf_files.OWN)
def test_each_architecture_gives_the_tokens_of_transformers(arch: str, tmp_path: Path) -> None:
    model = gguf_files.make_model(arch)
    model = gguf_files.write_model(tmp_path / "model.gguf", arch, model, "Q8_0")
    llm = LLM(str(tmp_path / "model.gguf"), dtype="float32")
    assert tokens_of(llm) == oracle_tokens(model)


def test_each_type_is_read_as_the_package_means_it(tmp_path: Path) -> None:
    """Every tensor of a small model has the numbers of the file, to the bit."""
    for kind in TYPES.values():
        path = tmp_path / f"{kind.name}.gguf"
        model = gguf_files.make_model("llama", num_hidden_layers=1)
        wanted = gguf_files.write_model(path, "llama", model, kind.name).state_dict()
        tensors = GGUFTensors(path)
        assert set(tensors) == set(wanted)
        for name in tensors:
            assert torch.equal(tensors.get_tensor(name), wanted[name]), (kind.name, name)


@pytest.mark.parametrize("kind", ["F16", "Q5_0", "Q4_K", "IQ4_XS"])
def test_types_give_the_tokens_of_transformers(kind: str, tmp_path: Path) -> None:
    model = gguf_files.make_model("llama", tie_word_embeddings=True)
    model = gguf_files.write_model(tmp_path / "model.gguf", "llama", model, kind)
    llm = LLM(str(tmp_path / "model.gguf"), dtype="float32")
    assert tokens_of(llm) == oracle_tokens(model)


def test_another_seed_gives_other_tokens(tmp_path: Path) -> None:
    """What the tests above compare is not the same for every model."""
    answers = []
    for seed in (0, 1):
        path = tmp_path / f"{seed}.gguf"
        gguf_files.write_model(path, "llama", gguf_files.make_model("llama", seed), "Q8_0")
        answers.append(tokens_of(LLM(str(path), dtype="float32")))
    assert answers[0] != answers[1]


@pytest.mark.parametrize("arch", ["llama", "qwen2", "phi3", "gemma3"])
def test_transformers_reads_the_file_as_we_do(arch: str, tmp_path: Path) -> None:
    """Of those architectures that it reads, and with the sizes of which it knows."""
    from transformers import AutoModelForCausalLM

    own = {"head_dim": 64} if arch == "gemma3" else {}
    model = gguf_files.make_model(arch, **own)
    gguf_files.write_model(tmp_path / "model.gguf", arch, model, "Q4_1")
    theirs = AutoModelForCausalLM.from_pretrained(
        tmp_path, gguf_file="model.gguf", dtype=torch.float32
    )
    llm = LLM(str(tmp_path / "model.gguf"), dtype="float32")
    assert tokens_of(llm) == oracle_tokens(theirs.eval())


def test_llama3s_factors_are_its_rotation(tmp_path: Path) -> None:
    """A converter writes Llama 3's stretched rotation as one factor for each pair of features."""
    rope = {
        "rope_type": "llama3",
        "rope_theta": 10000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    }
    model = gguf_files.make_model("llama", rope_parameters=rope)
    plain = 1 / 10000 ** (torch.arange(0, 64, 2) / 64)
    factors = (plain / model.model.rotary_emb.inv_freq).float().numpy()
    assert factors.max() == 8.0 and factors.min() == 1.0
    model = gguf_files.write_model(
        tmp_path / "model.gguf", "llama", model, extra={"rope_freqs.weight": factors}
    )
    llm = LLM(str(tmp_path / "model.gguf"), dtype="float32")
    assert tokens_of(llm) == oracle_tokens(model)


def test_phis_short_factors_are_its_rotation(tmp_path: Path) -> None:
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1.0 + i / 20 for i in range(24)],
        "long_factor": [2.0 + i / 20 for i in range(24)],
        "partial_rotary_factor": 0.75,
    }
    own = {"rope_parameters": rope, "original_max_position_embeddings": 64}
    model = gguf_files.make_model("phi3", **own)
    sharper = float(model.model.rotary_emb.attention_scaling)
    assert sharper > 1
    factors = {
        f"rope_factors_{kind}.weight": np.array(rope[f"{kind}_factor"], "<f4")
        for kind in ("short", "long")
    }
    metadata = {
        "phi3.rope.dimension_count": 48,
        "phi3.rope.scaling.original_context_length": 64,
        "phi3.rope.scaling.attn_factor": sharper,
    }
    path = tmp_path / "model.gguf"
    model = gguf_files.write_model(path, "phi3", model, metadata=metadata, extra=factors)
    llm = LLM(str(path), dtype="float32", max_model_len=64)
    assert tokens_of(llm) == oracle_tokens(model)


def test_yarn_is_read(tmp_path: Path) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0}
    model = gguf_files.make_model(
        "qwen2", rope_parameters=rope | {"original_max_position_embeddings": 32}
    )
    scaling = {"type": "yarn", "factor": 4.0, "original_context_length": 32}
    metadata = {f"qwen2.rope.scaling.{key}": value for key, value in scaling.items()}
    path = tmp_path / "model.gguf"
    model = gguf_files.write_model(path, "qwen2", model, metadata=metadata)
    assert tokens_of(LLM(str(path), dtype="float32")) == oracle_tokens(model)


@pytest.mark.parametrize("entries", [
    {"scaling.type": "linear", "scaling.factor": 4.0},
    {"scaling.factor": 4.0},  # without a type it is linear
    {"scale_linear": 4.0},  # as files of 2023 call it
    {"scaling.type": "none", "scaling.factor": 4.0},
    {"scaling.factor": 0.0},  # says nothing
], ids=str)  # fmt: skip
def test_a_linear_stretch_is_read_as_llama_cpp_does(
    entries: dict[str, Any], tmp_path: Path
) -> None:
    is_none = "none" in entries.values() or 0.0 in entries.values()
    rope = {"rope_type": "default"} if is_none else {"rope_type": "linear", "factor": 4.0}
    model = gguf_files.make_model("llama", rope_parameters=rope | {"rope_theta": 5000.0})
    path = tmp_path / "model.gguf"
    metadata = {f"llama.rope.{key}": value for key, value in entries.items()}
    model = gguf_files.write_model(path, "llama", model, metadata=metadata)
    assert tokens_of(LLM(str(path), dtype="float32")) == oracle_tokens(model)


def test_llamas_biases_are_read_and_turned(tmp_path: Path) -> None:
    model = gguf_files.make_model("llama", attention_bias=True, mlp_bias=True)
    model = gguf_files.write_model(tmp_path / "model.gguf", "llama", model, "F16")
    llm = LLM(str(tmp_path / "model.gguf"), dtype="float32")
    assert tokens_of(llm) == oracle_tokens(model)


# ---------------------------------------------------------------- blocks that stay
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
@pytest.mark.parametrize("arch", ["llama", "phi3", "qwen3moe"])
def test_kept_blocks_mean_the_same_numbers(kind: str, arch: str, tmp_path: Path) -> None:
    """In float32 every weight that is multiplied by has the very bits that the file means."""
    model = gguf_files.make_model(arch, tie_word_embeddings=False)
    gguf_files.write_model(tmp_path / "model.gguf", arch, model, kind)
    whole = load_model(tmp_path / "model.gguf", "float32")
    quant = get_quantization_config(tmp_path / "model.gguf", "gguf")
    kept = load_model(tmp_path / "model.gguf", "float32", quant=quant)
    layers = [(n, m) for n, m in kept.named_modules() if isinstance(m, Linear)]
    assert len(layers) == 9 if arch != "qwen3moe" else len(layers) > 20
    for name, layer in layers:
        if ".experts." in name:  # which are one tensor where they are floats
            base, expert, projection = re.split(r"\.(\d+)\.(?=\w+$)", name)
            weight = whole.get_submodule(f"{base}.{projection}").of_expert(int(expert))
        else:
            other = whole.get_submodule(name)
            weight = unpacked(other) if other.weight is None else other.weight
        assert isinstance(layer.quant_method, GGUFLinearMethod), name
        assert torch.equal(layer.quant_method.weight(layer), weight), name


@pytest.mark.parametrize("kind", ["Q4_1", "Q8_0"])
def test_kept_blocks_give_the_same_tokens(kind: str, tmp_path: Path) -> None:
    model = gguf_files.make_model("llama")
    model = gguf_files.write_model(tmp_path / "model.gguf", "llama", model, kind)
    llm = LLM(str(tmp_path / "model.gguf"), dtype="float32", quantization="gguf")
    assert tokens_of(llm) == oracle_tokens(model)


@pytest.mark.skipif(native.library() is None, reason="there is no compiler")
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_cpus_product_takes_blocks(kind: str, tmp_path: Path) -> None:
    """In bfloat16, without another rounding of a weight or a scale: only the result is rounded."""
    model = gguf_files.make_model("llama")
    gguf_files.write_model(tmp_path / "model.gguf", "llama", model, kind)
    whole = load_model(tmp_path / "model.gguf", "float32")
    quant = get_quantization_config(tmp_path / "model.gguf", "gguf")
    kept = load_model(tmp_path / "model.gguf", "bfloat16", quant=quant)
    x = torch.randn(5, 256).bfloat16()
    ours, wanted = (m.model.layers[0].self_attn.qkv_proj for m in (kept, whole))
    assert ours.matrix is not None
    torch.testing.assert_close(ours(x).float(), wanted(x.float()), rtol=2**-8, atol=1e-3)


@pytest.mark.skipif(not native.can_read(torch.bfloat16, "cpu"), reason="there is no compiler")
@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q8_0"])
def test_a_tied_head_keeps_the_blocks_of_the_embedding(kind: str, tmp_path: Path) -> None:
    """So its weight is in memory once, and the embedding reads from it what it read in floats."""
    model = gguf_files.make_model("llama", tie_word_embeddings=True)
    gguf_files.write_model(tmp_path / "model.gguf", "llama", model, kind)
    whole = load_model(tmp_path / "model.gguf", "bfloat16")
    exact = load_model(tmp_path / "model.gguf", "float32")
    quant = get_quantization_config(tmp_path / "model.gguf", "gguf")
    kept = load_model(tmp_path / "model.gguf", "bfloat16", quant=quant)
    assert kept.lm_head.matrix is not None
    assert not list(kept.model.embed_tokens.parameters())
    ids = torch.tensor([0, 2047, 31, 32, 31])
    assert torch.equal(kept.embed(ids), whole.embed(ids).bfloat16())
    assert torch.equal(kept.model.embed_tokens.weight[ids], kept.embed(ids))
    x = torch.randn(3, 256).bfloat16()
    logits = exact.compute_logits(x.float())
    torch.testing.assert_close(kept.compute_logits(x), logits, rtol=2**-8, atol=1e-3)


def test_in_float32_a_tied_head_has_the_embeddings_floats(tmp_path: Path) -> None:
    model = gguf_files.make_model("llama", tie_word_embeddings=True)
    model = gguf_files.write_model(tmp_path / "model.gguf", "llama", model, "Q8_0")
    llm = LLM(str(tmp_path / "model.gguf"), dtype="float32", quantization="gguf")
    assert tokens_of(llm) == oracle_tokens(model)


def test_mixed_types_become_floats_where_they_share_a_matrix(tmp_path: Path) -> None:
    """As in files called Q4_K_M: of q, k and v, one is held otherwise."""
    model = gguf_files.make_model("llama")

    def kind(name: str) -> str:
        return "Q8_0" if "attn_v" in name else "Q6_K" if "output." in name else "Q4_0"

    model = gguf_files.write_model(tmp_path / "model.gguf", "llama", model, kind)
    llm = LLM(str(tmp_path / "model.gguf"), dtype="float32", quantization="gguf")
    layer = llm.engine.core.executor.worker.model_runner.model.model.layers[0]
    assert isinstance(layer.self_attn.qkv_proj.quant_method, UnquantizedLinearMethod)
    assert isinstance(layer.mlp.down_proj.quant_method, GGUFLinearMethod)
    assert tokens_of(llm) == oracle_tokens(model)


@pytest.mark.parametrize("quantization", ["int8", "fp8"])
def test_a_file_can_be_rounded_while_it_is_loaded(quantization: str, tmp_path: Path) -> None:
    model = gguf_files.make_model("llama")
    gguf_files.write_model(tmp_path / "model.gguf", "llama", model, "Q8_0")
    llm = LLM(str(tmp_path / "model.gguf"), quantization=quantization)
    assert [len(tokens) for tokens in tokens_of(llm)] == [12, 12, 12]


def test_other_formats_are_refused(tmp_path: Path) -> None:
    gguf_files.write_model(tmp_path / "a.gguf", "llama", gguf_files.make_model("llama"))
    with pytest.raises(ValueError, match=r"quantization is 'awq'.*with a \.gguf file gguf"):
        LLM(str(tmp_path / "a.gguf"), quantization="awq")
    with pytest.raises(ValueError, match="quantization is 'gguf', but the checkpoint is not"):
        LLM("storyteller-draft", quantization="gguf")


# ---------------------------------------------------------------- tokenizer
TEXTS = (
    "Once upon a time, there were 12 foxes.",
    "  It's  1234 o'clock\n\n\tnow!  ",
    "<|im_start|>user\nHi<|im_end|>\n",
    "déjà vu — 東京 🙂",
    "",
)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "model.gguf"
    gguf_files.write_model(path, "qwen2", gguf_files.make_model("qwen2"), "Q4_0")
    return path


def test_the_tokenizer_is_that_of_transformers(file: Path) -> None:
    from transformers import AutoTokenizer

    theirs = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    ours = load_tokenizer(file)
    for text in TEXTS:
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ours.decode(ids) == theirs.decode(ids)
        assert ours.decode(ids, skip_special_tokens=True) == theirs.decode(
            ids, skip_special_tokens=True
        )
    assert (ours.eos_token, ours.pad_token) == ("<|im_end|>", "<|endoftext|>")
    messages = [{"role": "user", "content": "Hello"}]
    assert ours.apply_chat_template(messages, tokenize=False) == theirs.apply_chat_template(
        messages, tokenize=False
    )


SENTENCEPIECE = [
    "<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)),
    *"▁abcdefghijklmnopqrstuvwxyzHT.,'", "▁t", "he", "▁the", "▁H", "ell", "▁Hello", "lo", "el",
    "▁w", "or", "ld", "▁world", "▁▁", "in", "ing", "▁a", "<|user|>",
]  # fmt: skip


def write_sentencepiece(path: Path, arch: str) -> None:
    """A model with a vocabulary of SentencePiece's kind, in which `<|user|>` is a control token."""
    tokens = [t.replace("▁▁", "  ") if arch == "gemma3" else t for t in SENTENCEPIECE]
    count = len(tokens)
    metadata = {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [-float(index) for index in range(count)],
        "tokenizer.ggml.token_type": [2, 3, 3, *[6] * 256, *[1] * (count - 260), 3],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": True,
    }
    model = gguf_files.make_model(arch, num_hidden_layers=1)
    leave_out = ("tokenizer.ggml.merges", "tokenizer.ggml.padding_token_id")
    gguf_files.write_model(path, arch, model, metadata=metadata, leave_out=leave_out)


@pytest.mark.skipif(
    Version(transformers.__version__) < Version("5.23"),
    reason="NOT RUN: before 5.23 transformers puts no BOS before such a vocabulary's texts",
)
@pytest.mark.parametrize("arch", ["llama", "phi3", "gemma3"])
def test_a_sentencepiece_vocabulary_is_that_of_transformers(arch: str, tmp_path: Path) -> None:
    from transformers import AutoTokenizer

    write_sentencepiece(tmp_path / "m.gguf", arch)
    theirs = AutoTokenizer.from_pretrained(tmp_path, gguf_file="m.gguf")
    ours = load_tokenizer(tmp_path / "m.gguf")
    for text in ("Hello world", "  Hello the  world.", "<|user|>the thing", "東 é", "", "a\nb"):
        ids = ours.encode(text)
        assert ids == theirs.encode(text), text
        assert ids[0] == 1
        assert ours.decode(ids) == theirs.decode(ids)
    assert ours.decode(ours.encode("Hello world")[1:]) == "Hello world"


@pytest.mark.parametrize("arch", ["llama", "phi3"])
def test_control_tokens_of_phi3_take_the_space_behind_them(arch: str, tmp_path: Path) -> None:
    """As in its `tokenizer.json`, and in llama.cpp: no entry of the file says so."""
    write_sentencepiece(tmp_path / "m.gguf", arch)
    tokenizer = load_tokenizer(tmp_path / "m.gguf")
    bare = tokenizer.encode("<|user|>Hello</s>")
    assert (tokenizer.encode("<|user|> \nHello</s>\n") == bare) == (arch == "phi3")
    assert tokenizer.encode("<s>\nHello") != tokenizer.encode("<s>Hello")
    whole = load_lazy_tokenizer(tmp_path / "m.gguf")
    assert whole.encode("<|user|>\nHello") == tokenizer.encode("<|user|>\nHello")


def test_digits_of_smollm_stand_alone(tmp_path: Path) -> None:
    """Its vocabulary has no merges of Latin digits, but others it would merge."""
    tokens = [*sorted(pre_tokenizers.ByteLevel.alphabet()), "11", "Ġ1"]
    entries = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": ["1 1", "Ġ 1"],
        "tokenizer.ggml.token_type": [1] * len(tokens),
    }
    leave_out = ("tokenizer.ggml.eos_token_id",)
    found = {}
    for pre in ("gpt-2", "smollm", "qwen2", "llama-bpe"):
        path = tmp_path / f"{pre}.gguf"
        metadata = entries | {"tokenizer.ggml.pre": pre}
        model = gguf_files.make_model("llama", num_hidden_layers=1)
        gguf_files.write_model(path, "llama", model, metadata=metadata, leave_out=leave_out)
        found[pre] = load_tokenizer(path).tokenize("a 111")
    assert found == {
        "gpt-2": ["a", "Ġ", "11", "1"],
        "smollm": ["a", "Ġ", "1", "1", "1"],
        "qwen2": ["a", "Ġ", "1", "1", "1"],
        "llama-bpe": ["a", "Ġ", "11", "1"],
    }


def test_ends_of_turns_end_an_answer(tmp_path: Path) -> None:
    metadata = {"tokenizer.ggml.eot_token_id": 7, "tokenizer.ggml.eom_token_id": 9}
    model = gguf_files.make_model("llama", num_hidden_layers=1)
    gguf_files.write_model(tmp_path / "m.gguf", "llama", model, metadata=metadata)
    assert load_config(tmp_path / "m.gguf").eos_token_ids == (2, 7, 9)


@pytest.mark.parametrize("spelled", ["<|eot_id|>", "<|im_end|>", "<end_of_turn>", "<|end|>"])
@pytest.mark.parametrize("kind", [3, 1])
def test_an_end_of_a_turn_that_no_entry_names_is_known_by_its_spelling(
    spelled: str, kind: int, tmp_path: Path
) -> None:
    """Files of Llama 3 and Phi-3 name the end of a text, and their chats went on behind a turn."""
    given = gguf_files.tokenizer_entries()
    tokens, types = list(given["tokenizer.ggml.tokens"]), list(given["tokenizer.ggml.token_type"])
    tokens[2], types[2] = spelled, kind
    metadata = {
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.eos_token_id": 0,
    }
    model = gguf_files.make_model("llama", num_hidden_layers=1)
    gguf_files.write_model(tmp_path / "m.gguf", "llama", model, metadata=metadata)
    assert load_config(tmp_path / "m.gguf").eos_token_ids == ((0, 2) if kind == 3 else (0,))


def test_what_the_authors_recommend_is_read(tmp_path: Path) -> None:
    metadata = {"general.sampling.temp": 0.25, "general.sampling.top_k": 7}
    model = gguf_files.make_model("llama", num_hidden_layers=1)
    gguf_files.write_model(tmp_path / "m.gguf", "llama", model, metadata=metadata)
    llm = LLM(str(tmp_path / "m.gguf"))
    params = llm.get_default_sampling_params()
    assert (params.temperature, params.top_k) == (0.25, 7)


# ---------------------------------------------------------------- in the whole engine
def test_chat_and_a_constraint_and_info(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    llm = LLM(str(file), enforce_eager=True)
    params = SamplingParams(
        temperature=0, max_tokens=8, structured_outputs=StructuredOutputsParams(regex="[0-9]{3}")
    )
    messages = [{"role": "user", "content": "A number?"}]
    text = llm.chat(messages, params, use_tqdm=False)[0].outputs[0].text
    assert re.fullmatch("[0-9]{3}", text)
    assert main(["info", str(file), "--json"]) == 0
    figures = json.loads(capsys.readouterr().out)
    assert (figures["architecture"], figures["dtype"]) == ("Qwen2ForCausalLM", "bfloat16")
    assert figures["longest_model_len"] == 128


def test_a_folder_with_one_file_is_that_file(file: Path, tmp_path: Path) -> None:
    assert EngineConfig.from_kwargs(str(file.parent)).model.model == str(file)
    (tmp_path / "a.gguf").write_bytes(b"")
    (tmp_path / "mmproj-b.gguf").write_bytes(b"")
    assert hub.folder(str(tmp_path)) == tmp_path / "a.gguf"
    (tmp_path / "b.gguf").write_bytes(b"")
    with pytest.raises(ValueError, match=r"has 2 \.gguf files \(a\.gguf, b\.gguf\); give one"):
        hub.folder(str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"no file 'c\.gguf'"):
        hub.folder("c.gguf")
    for part in (1, 2):
        (tmp_path / "parts").mkdir(exist_ok=True)
        (tmp_path / f"parts/a-0000{part}-of-00002.gguf").write_bytes(b"")
    with pytest.raises(ValueError, match=r"--merge a-00001-of-00002\.gguf OUTPUT"):
        hub.folder(str(tmp_path / "parts"))


def test_entries_and_tensors_that_other_converters_write(tmp_path: Path) -> None:
    """One count of heads for each layer, factors of two that change nothing, and an old tensor."""
    model = gguf_files.make_model("llama")
    metadata = {
        "general.type": "model",
        "llama.attention.head_count_kv": [2, 2],
        "llama.logit_scale": 1.0,
        "llama.attention.causal": True,
        "llama.attention.scale": model.config.head_dim**-0.5,
    }
    extra = {"blk.0.attn_rot_embd.weight": np.ones(32, "<f4")}
    path = tmp_path / "model.gguf"
    gguf_files.write_model(path, "llama", model, metadata=metadata, extra=extra)
    assert tokens_of(LLM(str(path), dtype="float32")) == oracle_tokens(model)


def test_a_tokenizer_of_its_own(file: Path) -> None:
    folder = bundled.path("storyteller")
    llm = LLM(str(file), tokenizer=str(folder))
    assert llm.get_tokenizer().encode("Once") == load_tokenizer(folder).encode("Once")


# ---------------------------------------------------------------- memory
PEAK = """
import resource, sys
import torch
from pathlib import Path
from mini_vllm.model.gguf.tensors import dequantize
from mini_vllm.model.build import load_model, Build
dequantize(torch.zeros(1, 34, dtype=torch.uint8), "Q8_0")
torch.set_num_threads(1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
from mini_vllm.model import sharded_loader, config, registry
args = config.load_config(sys.argv[1])
torch.set_default_dtype(torch.bfloat16)
model = registry.resolve_model_class(args.architectures)(args, Build()).requires_grad_(False)
for parameter in model.parameters():
    parameter.zero_()
sharded_loader.load_parts(model, Path(sys.argv[1]))
after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
numbers = sum(p.numel() for p in model.parameters())
largest = max(p.numel() for p in model.parameters())
print(numbers * 2 // 1024, largest * 2 // 1024, after - before)
"""


def test_loading_takes_the_model_and_one_tensor(tmp_path: Path) -> None:
    """Peak memory in KiB, in a process of its own: the embedding is the largest tensor."""
    model = gguf_files.make_model("llama", vocab_size=65536, tie_word_embeddings=False)
    gguf_files.write_model(tmp_path / "m.gguf", "llama", model, "Q8_0")
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path / "m.gguf")],
        capture_output=True, text=True, check=True, cwd=ROOT,
    )  # fmt: skip
    whole, largest, peak = map(int, done.stdout.split())
    assert peak < whole + largest + 48 * 1024, done.stdout


@pytest.mark.parametrize("quantization", [None, "gguf"])
def test_two_ranks_share_a_file(quantization: str | None, tmp_path: Path) -> None:
    """Each reads its rows, and of matrices whose columns are cut its blocks of each row."""
    model = gguf_files.make_model("llama")
    model = gguf_files.write_model(tmp_path / "model.gguf", "llama", model, "Q4_1")
    options = {"dtype": "float32", "quantization": quantization, "tensor_parallel_size": 2}
    llm = LLM(str(tmp_path / "model.gguf"), **options)
    try:
        assert tokens_of(llm) == oracle_tokens(model)
    finally:
        llm.shutdown()


def test_a_drafter_may_be_a_file(tmp_path: Path) -> None:
    model = gguf_files.make_model("llama")
    path = tmp_path / "model.gguf"
    model = gguf_files.write_model(path, "llama", model, "Q8_0")
    draft = {"method": "draft_model", "model": str(path), "num_speculative_tokens": 3}
    llm = LLM(str(path), dtype="float32", speculative_config=draft)
    assert tokens_of(llm) == oracle_tokens(model)


def test_an_adapter_lies_on_a_file(tmp_path: Path) -> None:
    """Trained for the bundled model, on that model's own weights, written as a GGUF file."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(bundled.path("storyteller"), dtype=torch.float32)
    gguf_files.write_model(tmp_path / "model.gguf", "qwen3", model, "F32")
    request = LoRARequest("pirate", 1, str(bundled.adapter_path("pirate")))
    texts = []
    for name in (str(tmp_path / "model.gguf"), "storyteller"):
        llm = LLM(name, dtype="float32", enable_lora=True)
        chat = [{"role": "user", "content": "Who are you?"}]
        params = SamplingParams(temperature=0, max_tokens=16)
        outputs = llm.chat(chat, params, lora_request=request, use_tqdm=False)
        texts.append(outputs[0].outputs[0].text)
    assert texts[0] == texts[1] != ""
