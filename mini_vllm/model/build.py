"""Build a model from a folder: its shape, its layers, its weights, and their format for products.

config.json -> layers without values -> values from the files -> the format for this device
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from mini_vllm.attention import AttentionBackend, get_backend
from mini_vllm.gguf import is_gguf
from mini_vllm.kernels import native
from mini_vllm.model.checkpoint import (
    TABLES_OF_ROTATION,
    check_dtype,
    read_header,
    tensor_files,
    weight_files,
)
from mini_vllm.model.config import ModelArgs, config_file, load_config
from mini_vllm.model.families import known
from mini_vllm.model.families.tripwire import explained
from mini_vllm.model.layers import (
    PLAIN,
    Build,
    Embedding,
    Linear,
    QuantConfig,
    TiedEmbedding,
    UnquantizedLinearMethod,
    weights_dtype,
)
from mini_vllm.model.layout import SINGLE, Parallel
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.loader import STACKED_PARAMS, load_weights
from mini_vllm.model.lookalike import refusal
from mini_vllm.model.memory import drop_code, trim
from mini_vllm.model.moe.experts import Experts
from mini_vllm.model.moe.files import one_by_one
from mini_vllm.model.progress import weights_progress
from mini_vllm.model.registry import resolve_model_class
from mini_vllm.model.sharded_loader import load_parts, part_targets
from mini_vllm.model.tied import Rename, name_of_both, untied_if_different

__all__ = ["PLAIN", "Build", "compile_model", "load_model", "resolve_dtype"]

logger = logging.getLogger(__name__)

SMALL_BYTES = 1 << 30
"""Of weights, that one thread fills within seconds."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    path: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    backend: AttentionBackend | None = None,
    load_format: str = "auto",
    seed: int = 0,
    quant: QuantConfig | None = None,
    parallel: Parallel = SINGLE,
    kv_cache_dtype: str = "auto",
    hf_overrides: Mapping[str, Any] | None = None,
    show_progress: bool = False,
    pools: bool = False,
) -> LlamaForCausalLM:
    """Load the model in folder or GGUF file `path`, ready to run; its shape is `model.config`.

    Args:
        dtype: "auto" takes the checkpoint's own.
        load_format: "dummy" needs only a `config.json`, and fills the weights with random numbers
            from `seed`.
        quant: how weights are quantised.
        parallel: which part of each layer this rank has.
        kv_cache_dtype: the dtype of the KV cache.
        hf_overrides: entries that replace those of `config.json`.
        show_progress: whether stderr shows how much of the weights is loaded.
        pools: the model has no language-model head, because its hidden states are pooled.

    Raises FileNotFoundError for a missing file, ValueError for one that cannot be used; each
    message names the file or tensor.
    """
    drop_code()
    args = load_config(path, hf_overrides)
    where = config_file(path)
    if not set(args.architectures) & set(known()):
        raise ValueError(refusal(path, args.architectures, hf_overrides))
    if load_format == "auto" and not pools:
        args = untied_if_different(args, Path(path))
    model_class = resolve_model_class(args.architectures)
    cache_dtype = resolve_dtype(dtype, args)
    build = Build(backend or get_backend(device), quant, parallel, kv_cache_dtype, cache_dtype)
    try:
        with torch.device(device), default_dtype(loaded_dtype(cache_dtype, args, quant, device)):
            model = model_class(args, build).requires_grad_(False).eval()
            if quant is not None and not pools and shares_weight(model, device):
                model.model.embed_tokens = quant.share_blocks(
                    model.lm_head, model.model.embed_tokens
                )
    except RuntimeError as error:  # nothing else asks torch for memory here
        raise ValueError(
            f"{where} asks for a model that does not fit the memory: {error}"
        ) from error
    model.cache_dtype = cache_dtype
    if pools:
        model.lm_head = torch.nn.Identity()
    if load_format not in ("auto", "dummy"):
        raise ValueError(f"load_format is {load_format!r}; choose 'auto' or 'dummy'")
    with one_thread_if_small(model):
        if load_format == "dummy":
            fill_with_random(model, seed)
        else:
            with weights_progress(model, show_progress):
                fill = fill_without_head if pools else fill_from_files
                fill(model, Path(path), build, quant)
            if is_gguf(path):
                log_form(path, quant, cache_dtype)
        round_weights(model, cache_dtype)
        process_weights(model, device)
    return model


def process_weights(model: LlamaForCausalLM, device: str | torch.device) -> None:
    """Bring the weights, which are all there now, into the form in which products read them."""
    head = model.lm_head
    if can_share := shares_weight(model, device):
        head.weight = torch.nn.Parameter(head.weight.data, requires_grad=False)
    for module in model.modules():
        if hasattr(module, "process_weights_after_loading"):
            module.process_weights_after_loading()
            trim()
    if can_share and getattr(head, "weight", None) is None and head.blocks is not None:
        model.model.embed_tokens = TiedEmbedding(head.blocks, model.dtype)


@contextmanager
def one_thread_if_small(model: LlamaForCausalLM) -> Iterator[None]:
    """Let torch use one thread in the block, unless the model is large.

    Loading is thousands of short operations. Two threads wait for each other after every one, and
    if another program has one of the cores, they wait far longer than they compute.
    """
    before = torch.get_num_threads()
    if sum(weight.nbytes for weight in model.parameters()) < SMALL_BYTES:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def shares_weight(model: LlamaForCausalLM, device: str | torch.device) -> bool:
    """Whether head and embedding share one weight, and both can read a packed form of it."""
    head, embedding = model.lm_head, model.model.embed_tokens
    is_whole = type(embedding) is Embedding and embedding.is_whole
    is_tied = is_whole and getattr(head, "weight", None) is embedding.weight
    return is_tied and native.can_read(model.dtype, device)  # else nothing is packed


def log_form(path: str | Path, quant: QuantConfig | None, dtype: torch.dtype) -> None:
    """Log in which format the tensors of a GGUF file are loaded."""
    kept, name = len(quant.blocks) if quant else 0, str(dtype).removeprefix("torch.")
    hint = "" if quant else "; quantization='gguf' keeps those of Q4_0, Q4_1 and Q8_0 as they are"
    logger.info("%s: %d tensors stay as blocks, the others become %s%s", path, kept, name, hint)


def fill_from_files(
    model: LlamaForCausalLM, path: Path, build: Build, quant: QuantConfig | None
) -> None:
    """Fill every parameter from the checkpoint, with the loader that its format needs.

    An error that names a tensor also says which feature such tensors belong to.
    """
    try:
        _fill_from_files(model, path, build, quant)
    except ValueError as error:
        raise ValueError(explained(str(error)) + _other_prefix(str(error), path)) from error


def _other_prefix(message: str, path: Path) -> str:
    """Where the first missing tensor is in the files under a name with another beginning, as of a
    wrapped model (`module.`) or one that was saved without its head."""
    missing = re.search(r"missing from .*, first '([^']+)'", message)
    if missing is None or is_gguf(path):
        return ""
    wanted = missing[1]
    for name in (name for file in tensor_files(path) for name in file.header):
        if name.endswith(f".{wanted}") or (wanted.endswith(f".{name}") and "." in name):
            return (
                f" The files have it as {name!r}; load them with the class that wrote them, and "
                "save the model anew with AutoModelForCausalLM of transformers"
            )
    return ""


def _fill_from_files(
    model: LlamaForCausalLM, path: Path, build: Build, quant: QuantConfig | None
) -> None:
    rename = name_of_both(model, path, None if quant is None else quant.rename)
    rename = without_tables(path, rename)
    if quant is not None and not is_gguf(path):
        rename = without_spare_biases(model, path, rename)
    if rename is None and build.is_plain and has_common_names(model) and not is_gguf(path):
        check_floating(path)
        load_weights(model, path)
    else:
        load_parts(model, path, rename, () if quant is None else quant.blocks)


def without_tables(path: Path, rename: Rename | None) -> Rename | None:
    """`rename`, or one that drops the cosines and sines which old files have.

    Source: vllm/model_executor/models/llama.py#L436-L498 (LlamaModel.load_weights) @ v0.22.1
    """
    names = (name for file in tensor_files(path) for name in file.header)
    if is_gguf(path) or not any(name.endswith(TABLES_OF_ROTATION) for name in names):
        return rename
    plain = rename or (lambda name: (name,))
    return lambda name: () if name.endswith(TABLES_OF_ROTATION) else plain(name)


def without_spare_biases(
    model: LlamaForCausalLM, path: Path, rename: Rename | None
) -> Rename | None:
    """`rename`, or one that drops the biases of zeros that GPTQ's tools wrote for every layer.

    Source: vllm/model_executor/models/llama.py#L436-L498 (LlamaModel.load_weights) @ v0.22.1.
    Difference: there all biases are dropped that the model does not have.
    """
    files = tensor_files(path)
    if model.config.moe is not None:
        files = one_by_one(files, model.config.moe)
    home = {name: file for file in files for name in file.header}
    plain, wanted = rename or (lambda name: (name,)), set(part_targets(model))
    spare = set()
    for name, file in home.items():
        is_packed = name.endswith(".bias") and name.removesuffix("bias") + "qweight" in home
        if is_packed and wanted.isdisjoint(plain(name)):
            with file.open() as tensors:
                spare |= set() if tensors.get_tensor(name).any() else {name}
    return (lambda name: () if name in spare else plain(name)) if spare else rename


def fill_without_head(
    model: LlamaForCausalLM, path: Path, build: Build, quant: QuantConfig | None
) -> None:
    """Fill the decoder's parameters only; the pooler loads the weights of a classifier.

    A decoder that was saved without a head has names without `model.` in its files.
    Source: vllm/model_executor/models/adapters.py#L129-L199 (_create_pooling_model_cls) @ v0.22.1
    """
    names = {name for file in tensor_files(path) for name in file.header}
    start = model.checkpoint_prefix("model.layers.").removesuffix("layers.")
    prefix = "" if any(name.startswith(start) for name in names) else start

    def with_prefix(name: str) -> Sequence[str]:
        if name.startswith("score."):
            return ()
        full = name if name.startswith("lm_head.") else prefix + name
        return quant.rename(full) if quant is not None else (full,)

    rename: Rename = with_prefix
    if quant is not None and not is_gguf(path):
        rename = without_spare_biases(model, path, rename) or rename
    load_parts(model, path, rename, () if quant is None else quant.blocks)


def round_weights(model: LlamaForCausalLM, dtype: torch.dtype) -> None:
    """Round weights that are stored in a wider dtype to their values in `dtype`."""
    if model.dtype != dtype:
        for weight in model.parameters():
            if not getattr(weight, "keeps_dtype", False):
                weight.copy_(weight.to(dtype))


def has_common_names(model: LlamaForCausalLM) -> bool:
    """Whether checkpoint names are the common ones; otherwise `load_parts` renames the tensors."""
    if model.config.moe is not None:
        return False
    names = [name for name, _ in model.named_parameters()]
    are_ours = all(model.checkpoint_prefix(name) == name for name in names)
    return model.stacked == STACKED_PARAMS and are_ours


def check_floating(folder: Path) -> None:
    """Raise ValueError if the folder has tensors of a quantised model."""
    for file in weight_files(folder):
        for name, info in read_header(file).items():
            check_dtype(info, torch.float32, name, file)


def compile_model(model: LlamaForCausalLM, backend: AttentionBackend) -> None:
    """Let `torch.compile` fuse the model's operations, in place.

    Sizes are dynamic, so that one compilation serves all steps. Three things are not traced: the
    two methods of the attention backend and experts, which read lengths and row counts as Python
    numbers, so that each value would be traced again; and products of quantised weights, whose
    operations torch cannot trace with dynamic sizes.
    """
    for each in {backend, *(layer.self_attn.backend for layer in model.model.layers)}:
        for name in ("store", "forward"):
            setattr(each, name, torch.compiler.disable(getattr(each, name)))
    for layer in model.modules():
        is_packed = isinstance(layer, Linear) and not isinstance(
            layer.quant_method, UnquantizedLinearMethod
        )
        if is_packed or isinstance(layer, Experts):
            layer.forward = torch.compiler.disable(layer.forward)  # type: ignore[method-assign]
    model.model.compile(dynamic=True)


@contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    """Create parameters in `dtype` inside the `with` block."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def resolve_dtype(dtype: str | torch.dtype, args: ModelArgs) -> torch.dtype:
    """The torch dtype of a name; "auto" means what the checkpoint's config says."""
    if isinstance(dtype, torch.dtype):
        dtype = str(dtype).removeprefix("torch.")
    name, where = (args.dtype, "config.json: ") if dtype == "auto" else (dtype, "")
    if name not in DTYPES:
        raise ValueError(
            f"{where}dtype {name!r} is not supported; choose 'auto' or one of {list(DTYPES)}"
        )
    return DTYPES[name]


def loaded_dtype(
    dtype: torch.dtype, args: ModelArgs, quant: QuantConfig | None, device: str | torch.device
) -> torch.dtype:
    """The dtype in which a model of `dtype` is loaded; a quantised model keeps its own."""
    if quant is not None:
        return dtype
    return weights_dtype(dtype, args.hidden_size, device)


def fill_with_random(model: LlamaForCausalLM, seed: int) -> None:
    """Random weights with a standard deviation of 0.02; norms are 1 and biases 0.

    Packed weights are random bits, and all their scales are equal.
    """
    for name, parameter in model.named_parameters():
        if name.endswith(("g_idx", "weight_shape", "qzeros")):
            continue  # their initial values are valid
        if "scale" in name.rpartition(".")[2]:
            parameter.data.fill_(0.0025)
        elif parameter.dtype == torch.uint8:
            parameter.data.zero_()  # a GGUF file's blocks, which have their scales inside
        elif parameter.itemsize < 2 or not parameter.is_floating_point():
            generator = torch.Generator(parameter.device).manual_seed(seed)
            low, high = (-127, 128) if parameter.itemsize < 2 else (-(2**31), 2**31)
            numbers = torch.randint(low, high, parameter.shape, generator=generator)
            parameter.data.copy_(numbers)
            seed += 1
        elif name.endswith("bias"):
            parameter.data.zero_()
        elif "norm" in name:
            parameter.data.fill_(1.0)
        else:
            generator = torch.Generator(parameter.device).manual_seed(seed)
            parameter.data.normal_(0.0, 0.02, generator=generator)
            seed += 1
