"""Small pooling models made from a seed, and what transformers says of them.

python -m tests.engine.pooling.tiny      records `oracle.json` anew; it needs transformers
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file

HIDDEN, VOCAB, LAYERS, HEADS, KV_HEADS, INNER = 32, 97, 2, 4, 2, 40
ORACLE = Path(__file__).with_name("oracle.json")
PROMPTS = [[5], [3, 1, 4, 1, 5], [(7 * place + 2) % VOCAB for place in range(23)]]
LABELS = {"0": "sad", "1": "glad", "2": "neither"}

SHAPE: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": HIDDEN, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS,
    "head_dim": HIDDEN // HEADS, "max_position_embeddings": 128, "rms_norm_eps": 1e-6,
    "rope_theta": 10000.0, "dtype": "float32",
}  # fmt: skip
KINDS: dict[str, dict[str, Any]] = {
    "embedder": {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "tie_word_embeddings": True,
    },
    "classifier": {
        "architectures": ["LlamaForSequenceClassification"], "model_type": "llama",
        "id2label": LABELS, "pad_token_id": 0,
    },
    "judge": {
        "architectures": ["Qwen2ForSequenceClassification"], "model_type": "qwen2",
        "id2label": {"0": "LABEL_0"}, "pad_token_id": 0,
    },
}  # fmt: skip
"""What each model's `config.json` has besides `SHAPE`."""


def tensors(kind: str) -> dict[str, torch.Tensor]:
    """Weights that differ enough for outputs to be far apart, under a checkpoint's names.

    The embedder's leave out `model.`, as those of Qwen3-Embedding do.
    """
    config = SHAPE | KINDS[kind]
    q, kv = HIDDEN, KV_HEADS * HIDDEN // HEADS
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (VOCAB, HIDDEN), "model.norm.weight": (HIDDEN,),
    }  # fmt: skip
    for layer in range(LAYERS):
        for name, shape in {
            "self_attn.q_proj.weight": (q, HIDDEN), "self_attn.k_proj.weight": (kv, HIDDEN),
            "self_attn.v_proj.weight": (kv, HIDDEN), "self_attn.o_proj.weight": (HIDDEN, q),
            "mlp.gate_proj.weight": (INNER, HIDDEN), "mlp.up_proj.weight": (INNER, HIDDEN),
            "mlp.down_proj.weight": (HIDDEN, INNER), "input_layernorm.weight": (HIDDEN,),
            "post_attention_layernorm.weight": (HIDDEN,),
        }.items():  # fmt: skip
            shapes[f"model.layers.{layer}.{name}"] = shape
        if config["model_type"] == "qwen3":
            for name in ("q_norm", "k_norm"):
                shapes[f"model.layers.{layer}.self_attn.{name}.weight"] = (HIDDEN // HEADS,)
        if config["model_type"] == "qwen2":
            for name, size in (("q", q), ("k", kv), ("v", kv)):
                shapes[f"model.layers.{layer}.self_attn.{name}_proj.bias"] = (size,)
    if "id2label" in config:
        shapes["score.weight"] = (len(config["id2label"]), HIDDEN)
    random = np.random.default_rng(sorted(KINDS).index(kind))
    made = {}
    for name, shape in shapes.items():
        values = random.normal(1.0 if "norm" in name else 0.0, 0.3, shape).astype(np.float32)
        made[name.removeprefix("model.") if kind == "embedder" else name] = torch.from_numpy(values)
    return made


def make(folder: Path, kind: str, **more: Any) -> Path:
    """A model's folder; `more` are entries of its `config.json`."""
    folder.mkdir(parents=True, exist_ok=True)
    save_file(tensors(kind), folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(SHAPE | KINDS[kind] | more))
    return folder


def add_steps(folder: Path, mode: str = "pooling_mode_lasttoken", *others: str) -> Path:
    """The files of sentence-transformers, for a pooling and further steps."""
    steps = ["Transformer", "Pooling", *others]
    kinds = [
        {"idx": i, "name": str(i), "path": f"{i}_{step}" if i else "",
         "type": f"sentence_transformers.models.{step}"}
        for i, step in enumerate(steps)
    ]  # fmt: skip
    (folder / "modules.json").write_text(json.dumps(kinds))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    names = ("pooling_mode_cls_token", "pooling_mode_mean_tokens", "pooling_mode_lasttoken")
    entries = {name: name == mode for name in (*names, mode)}
    sizes = {"word_embedding_dimension": HIDDEN, "include_prompt": True}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(sizes | entries))
    return folder


def oracle(kind: str) -> list[NDArray[np.float32]]:
    """What transformers computes: the embedder's last hidden states ``[T, H]`` of each of
    `PROMPTS`, the others' logits ``[labels]``."""
    return [np.array(values, np.float32) for values in json.loads(ORACLE.read_text())[kind]]


def record() -> None:
    import tempfile

    import transformers

    found: dict[str, Any] = {}
    for kind in KINDS:
        with tempfile.TemporaryDirectory() as name:
            folder = make(Path(name), kind)
            is_embedder = kind == "embedder"
            auto = "AutoModel" if is_embedder else "AutoModelForSequenceClassification"
            model = getattr(transformers, auto).from_pretrained(folder).float().eval()
            with torch.no_grad():
                outs = [model(torch.tensor([prompt])) for prompt in PROMPTS]
            chosen = [o.last_hidden_state if is_embedder else o.logits for o in outs]
            found[kind] = [
                [[float(f"{x:.8g}") for x in row] for row in one[0].tolist()]
                if is_embedder
                else [float(f"{x:.8g}") for x in one[0].tolist()]
                for one in chosen
            ]
    ORACLE.write_text(json.dumps(found) + "\n")


if __name__ == "__main__":
    record()
