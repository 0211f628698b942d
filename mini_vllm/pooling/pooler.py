"""From pooled hidden states to an embedding, or to the probabilities of classes.

    [N, H] ─► projector or classifier ─► fewer dimensions, or calibrated logits ─► activation

:mod:`mini_vllm.worker.pooling` selects the states.
Source: vllm/model_executor/layers/pooler/seqwise/heads.py#L33-L99 (EmbeddingPoolerHead) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from mini_vllm.config import EngineConfig
from mini_vllm.model.checkpoint import check_dtype, read_header, tensor_files, weight_files
from mini_vllm.model.checkpoint_files import load_tokenizer
from mini_vllm.model.loader import copy_weight
from mini_vllm.pooling.config import PoolingArgs, load_pooling_args
from mini_vllm.pooling.sentence_transformers import Dense
from mini_vllm.pooling.seqwise import embedding
from mini_vllm.pooling_params import PoolingParams

HEAD = "score."
"""Prefix of the classifier's weights in a checkpoint."""


def probabilities(logits: Tensor) -> Tensor:
    """Softmax over the classes; for a single class, a sigmoid."""
    return logits.softmax(-1) if logits.shape[-1] > 1 else logits.sigmoid()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "probabilities": probabilities,
    "sigmoid": torch.sigmoid,
    "identity": lambda x: x,
}


class Pooler(nn.Module):
    """The head after the decoder of a pooling model, in float32 as in vLLM.

    Args:
        args: of the model.
        head: maps ``[N, H]`` to embeddings or logits ``[N, D]``.
    """

    def __init__(self, args: PoolingArgs, head: nn.Module) -> None:
        super().__init__()
        self.args, self.head = args, head.requires_grad_(False).eval()

    def forward(self, states: Tensor, params: PoolingParams) -> Tensor:
        """Embeddings or probabilities ``[N, D]`` of hidden states ``[N, H]``, in float32.

        Args:
            params: of the request, verified. An embedding is truncated to `dimensions` before it
                is normalised.
        """
        config, activation = self.args.pooler, self.args.activation
        pooled, is_active = self.head(states.float()), bool(params.use_activation)
        if self.args.convert != "classify":
            return embedding(pooled, params.dimensions, is_active and activation == "normalize")
        if config.logit_mean is not None:
            pooled = pooled - config.logit_mean
        if config.logit_sigma is not None:
            pooled = pooled / config.logit_sigma
        return ACTIVATIONS[activation](pooled) if is_active else pooled


@torch.no_grad()
def make_pooler(config: EngineConfig, device: torch.device) -> Pooler | None:
    """The pooler of a configuration's model; None for a model that generates.

    Raises:
        ValueError: for weights that are missing or of another shape.
    """
    args = load_pooling_args(config)
    if args is None:
        return None
    model, folder = config.model, Path(config.model.model)
    head: nn.Module = nn.Identity()
    if args.convert == "classify" and model.load_format == "dummy":
        head = _linear(args.hidden_size, len(args.labels), bias=False)
        head.weight.normal_(0.0, 0.02, generator=torch.Generator().manual_seed(model.seed))
    elif args.method is not None:
        tokenizer = load_tokenizer(model.tokenizer or model.model)
        head = _from_language_model(args, folder, tokenizer)
    elif args.convert == "classify":
        head = _classifier(args, folder)
    elif args.dense:
        head = nn.Sequential(*(layer for dense in args.dense for layer in _projector(dense)))
    return Pooler(args, head.to(device))


def _classifier(args: PoolingArgs, folder: Path) -> nn.Linear:
    """Source: vllm/model_executor/models/adapters.py#L264-L369 (as_seq_cls_model) @ v0.22.1"""
    files = {name: file for file in tensor_files(folder) for name in file.header}
    if HEAD + "weight" not in files:
        raise ValueError(
            f"{str(folder)!r} has no 'score.weight', the rows of its classes; use convert='embed', "
            "or make a classifier of words: hf_overrides={'method': 'no_post_processing', "
            "'classifier_from_token': [...]}"
        )
    head = _linear(args.hidden_size, len(args.labels), HEAD + "bias" in files)
    for name, parameter in head.named_parameters():
        file = files[HEAD + name]
        check_dtype(file.header[HEAD + name], torch.float32, HEAD + name, file.path)
        with file.open() as tensors:
            copy_weight(parameter, tensors.get_tensor(HEAD + name), HEAD + name, file.path)
    return head


def _from_language_model(args: PoolingArgs, folder: Path, tokenizer: Any) -> nn.Linear:
    """A classifier from rows of the language model's head: the logit of a class is that of its
    word.

    Source: vllm/model_executor/models/adapters.py#L473-L552
    (load_weights_using_from_2_way_softmax) @ v0.22.1
    """
    ids = []
    for word in args.classifier_from_token:
        token_id = tokenizer.convert_tokens_to_ids(word)
        if token_id is None or token_id == tokenizer.unk_token_id:
            raise ValueError(
                f"classifier_from_token has {word!r}, which is no token of {str(folder)!r}"
            )
        ids.append(token_id)
    rows = torch.stack([_head_row(folder, token_id) for token_id in ids]).float()
    if args.method == "from_2_way_softmax":
        rows = rows[1:] - rows[:1]
    head = _linear(args.hidden_size, len(rows), bias=False)
    head.weight.copy_(rows)
    return head


def _head_row(folder: Path, token_id: int) -> Tensor:
    """The row of a token in the language model's head; for a tied head, its embedding."""
    names = ("lm_head.weight", "model.embed_tokens.weight", "embed_tokens.weight")
    files = {name: file for file in tensor_files(folder) for name in file.header}
    name = next((name for name in names if name in files), None)
    if name is None:
        raise ValueError(
            f"{str(folder)!r} has none of the tensors {', '.join(names)}, of which "
            "a classifier of words is made"
        )
    with files[name].open() as tensors:
        return tensors.get_slice(name)[token_id : token_id + 1][0]


def _projector(dense: Dense) -> list[nn.Module]:
    """The layers of one step of sentence-transformers."""
    layer = _linear(dense.in_features, dense.out_features, dense.bias)
    (file,) = weight_files(dense.folder)
    header = read_header(file)
    with safe_open(file, framework="pt") as tensors:
        for name, parameter in layer.named_parameters():
            found = next((n for n in (name, f"linear.{name}", f"dense.{name}") if n in header), "")
            if not found:
                raise ValueError(f"{file} has no {name!r} for its config.json; download it again")
            copy_weight(parameter, tensors.get_tensor(found), found, file)
    return [layer, *([nn.Tanh()] if dense.activation == "Tanh" else [])]


def _linear(in_features: int, out_features: int, bias: bool) -> nn.Linear:
    return nn.Linear(in_features, out_features, bias, dtype=torch.float32).requires_grad_(False)
