"""What `generate` imports before its first token, and how often a weight is in memory."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from mini_vllm import LLM, SamplingParams, bundled
from mini_vllm.kernels import native
from mini_vllm.model.build import load_model
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.model.layers import TiedEmbedding
from mini_vllm.model.lazy_tokenizer import LazyTokenizer, load_lazy_tokenizer
from tests.engine.model import gguf_files

PACKAGES = {
    "mini_vllm", "numpy", "safetensors", "tokenizers", "torch", "torchgen", "tqdm", "triton",
    "typing_extensions",
}  # fmt: skip
"""What `generate` may import beside Python's own: what torch brings, and three small ones."""
OF_INTERPRETERS = {"__main__", "__mp_main__", "_distutils_hack", "labkit_by_hand", "sitecustomize"}
LATER = (
    "mini_vllm.entrypoints.bench_serve",
    "mini_vllm.entrypoints.openai",
    "mini_vllm.entrypoints.serve",
    "mini_vllm.kv_transfer.publisher",
    "mini_vllm.spec_decode.build",
    "torch._dynamo",
    "torch._inductor",
)
"""Parts that a plain request has no use for."""
MOST_OF_OURS = 315
"""They were 308 when last counted, so the next feature looks at what it loads."""
GENERATE = """
import json, sys
import torch
print(json.dumps(sorted({name.partition(".")[0] for name in sys.modules})))
from mini_vllm.entrypoints.cli import main
assert main(["generate", "Once", "--max-tokens", "2", "--temperature", "0"]) == 0
print(json.dumps(sorted(sys.modules)))
"""


PEAK = """
import sys
from mini_vllm.entrypoints.cli import main
assert main(["generate", "Once", "--model", sys.argv[1], "--max-tokens", "1"]) == 0
print(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")))
"""
ABOVE_THE_MODEL = 250e6
"""Bytes. With torch 2 for a CPU they were 213e6; 269e6 with the code that only starts it."""


def test_generate_imports_only_what_it_needs() -> None:
    done = subprocess.run(
        [sys.executable, "-c", GENERATE], capture_output=True, text=True, check=True, timeout=300
    )
    lines = done.stdout.splitlines()
    of_torch, modules = set(json.loads(lines[0])), set(json.loads(lines[-1]))
    packages = {name.partition(".")[0] for name in modules}
    assert packages - of_torch - sys.stdlib_module_names - OF_INTERPRETERS <= PACKAGES
    assert not modules.intersection(LATER)
    assert len([name for name in modules if name.startswith("mini_vllm")]) <= MOST_OF_OURS


def test_a_command_without_an_engine_imports_no_torch() -> None:
    program = "import sys; from mini_vllm.entrypoints.cli import build_parser; build_parser()"
    program += "; print([m for m in ('torch', 'transformers') if m in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=120
    )
    assert done.stdout.strip() == "[]"


TEXTS = ("", "Once upon a time", " two  spaces", "日本 é\n\t", "<|im_start|>user\nHi<|im_end|>")


def same_as(ours: Any, whole: Any) -> None:
    for text in TEXTS:
        for special in (True, False):
            ids = whole.encode(text, add_special_tokens=special)
            assert ours.encode(text, add_special_tokens=special) == ids
            for skip in (True, False):
                assert ours.decode(ids, skip_special_tokens=skip) == whole.decode(
                    ids, skip_special_tokens=skip
                )
    assert ours.get_vocab() == whole.get_vocab() and len(ours) == len(whole)
    assert (ours.eos_token, ours.eos_token_id) == (whole.eos_token, whole.eos_token_id)
    assert ours.added_tokens_decoder == whole.added_tokens_decoder


@pytest.mark.parametrize("name", ["storyteller", "storyteller-draft"])
def test_a_lazy_tokenizer_is_the_whole_one(name: str) -> None:
    ours = load_lazy_tokenizer(bundled.path(name))
    assert isinstance(ours, LazyTokenizer)
    same_as(ours, load_tokenizer(bundled.path(name)))
    chat = [{"role": "user", "content": "Hi"}]
    assert ours.apply_chat_template(chat, tokenize=False) == ours.whole.apply_chat_template(
        chat, tokenize=False
    )
    assert ours("Once").input_ids == ours.encode("Once")
    assert ours.decode(torch.tensor([5, 6])) == ours.decode([5, 6])
    assert ours.pad_token_id == ours.whole.pad_token_id
    with pytest.raises(AttributeError):
        ours.no_such_thing  # noqa: B018


def test_a_lazy_tokenizer_of_a_gguf_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    gguf_files.write_model(path, "llama", gguf_files.make_model("llama"), "Q8_0")
    ours = load_lazy_tokenizer(path)
    assert isinstance(ours, LazyTokenizer)
    same_as(ours, load_tokenizer(path))


@pytest.mark.parametrize(
    "entry",
    [
        {"tokenizer_class": "Qwen2Tokenizer"},
        {"clean_up_tokenization_spaces": True},
        {"add_bos_token": True, "bos_token": "<|endoftext|>"},
        {"unk_token": "a word that the file does not have"},
        {"eos_token": {"__type": "AddedToken", "content": "<|im_end|>"}},
    ],
)
def test_where_transformers_may_know_more_it_is_asked(
    entry: dict[str, Any], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(bundled.path("storyteller"), tmp_path / "model"))
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | entry))
    assert not isinstance(load_lazy_tokenizer(folder), LazyTokenizer)


def test_what_is_wrong_is_said_as_before(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bundled.path("storyteller"), tmp_path / "model"))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"no tokenizer could be loaded from .*model"):
        load_lazy_tokenizer(folder)


def test_users_get_the_tokenizer_of_transformers() -> None:
    llm = LLM("storyteller", max_model_len=64)
    assert isinstance(llm.tokenizer, LazyTokenizer)
    assert llm.get_tokenizer() is llm.tokenizer.whole
    template = llm.get_tokenizer().chat_template
    llm.get_tokenizer().chat_template = "{{ messages[0].content }}!"  # theirs counts
    assert llm.chat_prompt([{"role": "user", "content": "Hi"}]) != template
    output = llm.chat([{"role": "user", "content": "Hi"}], SamplingParams(max_tokens=1), False)
    assert output[0].prompt == "Hi!"


# ---------------------------------------------------------------- one copy of a weight
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("shape", [(32, 2), (96, 130), (32 * 17, 64)])
def test_packed_in_its_own_memory(dtype: torch.dtype, shape: tuple[int, int]) -> None:
    weight = torch.randn(shape).to(dtype)
    expected, place = native.pack(weight), weight.data_ptr()
    packed = native.pack(weight.clone(), in_place=True)
    assert torch.equal(packed, expected)
    assert native.pack(weight, in_place=True).data_ptr() == place
    rows = torch.tensor([0, 31, shape[0] - 1, 5])
    assert torch.equal(native.unpack_rows(packed, rows), native.unpack(packed)[rows])


@pytest.mark.skipif(
    not native.can_read(torch.float32, "cpu"), reason="no C++ compiler: nothing is packed"
)
def test_a_tied_embedding_is_in_memory_once(tmp_path: Path) -> None:
    config = json.loads((bundled.path("storyteller") / "config.json").read_text())
    config |= {
        "dtype": "bfloat16",
        "tie_word_embeddings": True,
        "num_hidden_layers": 1,
        "layer_types": None,
    }
    shape = {"hidden_size": 512, "intermediate_size": 512, "vocab_size": 4096, "head_dim": 64}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8}
    (tmp_path / "config.json").write_text(json.dumps(config | shape | heads))
    model = load_model(tmp_path, load_format="dummy")
    embedding, head = model.model.embed_tokens, model.lm_head
    assert isinstance(embedding, TiedEmbedding) and embedding.blocks is head.blocks
    ids = torch.tensor([0, 4095, 17])
    assert torch.equal(embedding(ids), embedding.weight[ids])
    x = torch.randn(2, 512)
    expected = x @ embedding.weight.to(x.dtype).T
    torch.testing.assert_close(head(x), expected, rtol=2e-2, atol=2e-2)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="it asks Linux")
@pytest.mark.skipif(torch.version.cuda is not None, reason="torch for a GPU is larger")
def test_a_model_of_135_million_takes_little_more_than_its_file(tmp_path: Path) -> None:
    """SmolLM2's layers, of zeros, under a small vocabulary."""
    hidden, mlp, kv, vocab = 576, 1536, 192, 2048
    shapes = {"q": (hidden, hidden), "k": (kv, hidden), "v": (kv, hidden), "o": (hidden, hidden)}
    layer = {f"self_attn.{name}_proj": shape for name, shape in shapes.items()}
    layer |= {"mlp.gate_proj": (mlp, hidden), "mlp.up_proj": (mlp, hidden)}
    layer |= {"mlp.down_proj": (hidden, mlp), "input_layernorm": (hidden,)}
    layer |= {"post_attention_layernorm": (hidden,)}
    tensors = {f"model.layers.{i}.{n}.weight": s for i in range(30) for n, s in layer.items()}
    tensors |= {"model.embed_tokens.weight": (vocab, hidden), "model.norm.weight": (hidden,)}
    zeros = {name: torch.zeros(shape, dtype=torch.bfloat16) for name, shape in tensors.items()}
    save_file(zeros, tmp_path / "model.safetensors")
    config = dict(
        architectures=["LlamaForCausalLM"], model_type="llama", torch_dtype="bfloat16",
        hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=30, num_attention_heads=9,
        num_key_value_heads=3, vocab_size=vocab, tie_word_embeddings=True, hidden_act="silu",
        rms_norm_eps=1e-5, max_position_embeddings=2048,
    )  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    for file in bundled.path("storyteller").glob("tokenizer*"):
        shutil.copy(file, tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", PEAK, str(tmp_path)], capture_output=True, text=True, check=True,
        timeout=300,
    )  # fmt: skip
    peak = int(done.stdout.split("VmHWM:")[1].split()[0]) * 1024
    above = peak - (tmp_path / "model.safetensors").stat().st_size
    assert above < ABOVE_THE_MODEL, f"{above / 1e6:.0f} MB above the model's file"
