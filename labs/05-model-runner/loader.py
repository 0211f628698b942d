"""Load a Hugging Face checkpoint folder into our modules.

A checkpoint names each projection apart; we keep those that read the same input in one matrix:

    checkpoint                                our parameter `...self_attn.qkv_proj.weight`
    ...self_attn.q_proj.weight [q, hidden] -> rows 0 .. q
    ...self_attn.k_proj.weight [k, hidden] -> rows q .. q + k
    ...self_attn.v_proj.weight [k, hidden] -> rows q + k .. q + 2 k

Each tensor is copied once, from the mapped file straight into its rows.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from mini_vllm.attention import AttentionBackend, get_backend
from mini_vllm.model.config import ModelArgs, load_config, read_json
from mini_vllm.model.llama import LlamaForCausalLM
from mini_vllm.model.registry import resolve_model_class

STACKED_PARAMS = {
    "qkv_proj": ["q_proj", "k_proj", "v_proj"],
    "gate_up_proj": ["gate_proj", "up_proj"],
}
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def load_model(
    path: str | Path,
    dtype: str | torch.dtype = "auto",
    device: str | torch.device = "cpu",
    backend: AttentionBackend | None = None,
    load_format: str = "auto",
    seed: int = 0,
) -> LlamaForCausalLM:
    """Load the model in folder `path`, ready to run; its shape is `model.config`.

    `dtype` "auto" takes the checkpoint's own; `load_format="dummy"` needs only a `config.json` and
    fills the weights with random numbers from `seed`. Raises FileNotFoundError for what is not
    there, ValueError for what cannot be used; each message names the file or tensor.
    """
    args = load_config(path)
    model_class = resolve_model_class(args.architectures)
    with torch.device(device), default_dtype(resolve_dtype(dtype, args)):
        model = model_class(args, backend or get_backend(device)).requires_grad_(False).eval()
    if load_format == "dummy":
        fill_with_random(model, seed)
    elif load_format == "auto":
        load_weights(model, Path(path))
    else:
        raise ValueError(f"load_format is {load_format!r}; choose 'auto' or 'dummy'")
    for module in model.modules():
        if hasattr(module, "process_weights_after_loading"):
            module.process_weights_after_loading()
    return model


def compile_model(model: LlamaForCausalLM, backend: AttentionBackend) -> None:
    """Let `torch.compile` fuse the model's operations, in place. Attention is left out.

    The model is traced around the two calls of the backend, which read lengths as plain numbers
    and would be traced anew for each. Sizes are dynamic, so that one compilation serves all steps.
    """
    for name in ("store", "forward"):
        setattr(backend, name, torch.compiler.disable(getattr(backend, name)))
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
    name = args.dtype if dtype == "auto" else dtype
    if name not in DTYPES:
        raise ValueError(f"dtype {name!r} is not supported; choose 'auto' or one of {list(DTYPES)}")
    return DTYPES[name]


def checkpoint_names(parameter_name: str) -> list[str]:
    """The checkpoint's names of what `parameter_name` holds, in the order of its rows.

    "layers.0.mlp.gate_up_proj.weight" -> ["layers.0.mlp.gate_proj.weight",
    "layers.0.mlp.up_proj.weight"]; a parameter that is not stacked keeps its one name.
    Source: vllm/model_executor/models/llama.py#L436-L498 (LlamaModel.load_weights) @ v0.22.1.
    """
    # TODO 05.7
    raise NotImplementedError(
        "TODO 05.7: write checkpoint_names in labs/05-model-runner/loader.py"
        " (phase 05, 02-mini-build.md#task-7)"
    )


def weight_targets(model: LlamaForCausalLM) -> dict[str, Tensor]:
    """For each name in the checkpoint, the view of our parameter that receives its tensor.

    A stacked parameter is split into consecutive rows by its module's `output_sizes`. A tied
    `lm_head` is the embedding itself and appears once, under the embedding's name.
    """
    # TODO 05.7
    raise NotImplementedError(
        "TODO 05.7: write weight_targets in labs/05-model-runner/loader.py"
        " (phase 05, 02-mini-build.md#task-7)"
    )


def load_weights(model: LlamaForCausalLM, folder: Path) -> None:
    """Copy every tensor of the folder's safetensors files into `model`.

    Raises ValueError for a missing or unexpected tensor, a wrong shape, or a damaged file.
    """
    # TODO 05.8
    raise NotImplementedError(
        "TODO 05.8: write load_weights in labs/05-model-runner/loader.py"
        " (phase 05, 02-mini-build.md#task-8)"
    )


def weight_files(folder: Path) -> list[Path]:
    """The checkpoint's files: those its index names, or `model.safetensors`."""
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        files = sorted(folder.glob("*.safetensors"))
        if not files:
            raise FileNotFoundError(f"{str(folder)!r} has no .safetensors file")
        return files
    weight_map = read_json(index).get("weight_map")
    if not weight_map:
        raise ValueError(f"{index} has no 'weight_map'")
    names = sorted(set(weight_map.values()))
    for name in names:
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{index} names {name!r}, which is not in the folder")
    return [folder / name for name in names]


def read_shapes(file: Path) -> dict[str, list[int]]:
    """The name and shape of each tensor in a safetensors file, after checking that it is whole.

        8 bytes: n | n bytes: JSON {name: {dtype, shape, data_offsets}} | tensors, one after another

    Raises ValueError that names the file, the bytes expected and the bytes found.
    """
    actual = file.stat().st_size
    with file.open("rb") as stream:
        header_size = int.from_bytes(stream.read(8), "little")
        if actual < 8 or actual < 8 + header_size:
            raise ValueError(
                f"{file} is cut off or corrupt: its header alone should take "
                f"{8 + header_size} bytes, the file has {actual}; download it again"
            )
        try:
            header = json.loads(stream.read(header_size))
        except ValueError as error:
            raise ValueError(f"{file} is corrupt: its header is not JSON ({error})") from error
    header.pop("__metadata__", None)
    expected = 8 + header_size + max((t["data_offsets"][1] for t in header.values()), default=0)
    if actual != expected:
        raise ValueError(
            f"{file} is cut off or corrupt: its header describes {expected} bytes, "
            f"the file has {actual}; download it again"
        )
    return {name: entry["shape"] for name, entry in header.items()}


def check_names(targets: Iterable[str], found: Iterable[str], folder: Path, tied: bool) -> None:
    """Raise ValueError unless the checkpoint holds exactly the tensors the model needs.

    Two kinds may be there without need: a tied `lm_head`, and the rotary frequencies that old
    checkpoints store although they follow from the config.
    """
    # TODO 05.8
    raise NotImplementedError(
        "TODO 05.8: write check_names in labs/05-model-runner/loader.py"
        " (phase 05, 02-mini-build.md#task-8)"
    )


def copy_weight(target: Tensor, tensor: Tensor, name: str, file: Path) -> None:
    """Copy `tensor` into `target`, converting its dtype. Raises ValueError if the shapes differ."""
    # TODO 05.8
    raise NotImplementedError(
        "TODO 05.8: write copy_weight in labs/05-model-runner/loader.py"
        " (phase 05, 02-mini-build.md#task-8)"
    )


def fill_with_random(model: LlamaForCausalLM, seed: int) -> None:
    """Random weights with a standard deviation of 0.02; norms are 1 and biases 0."""
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.data.fill_(1.0)
        elif name.endswith("bias"):
            parameter.data.zero_()
        else:
            generator = torch.Generator(parameter.device).manual_seed(seed)
            parameter.data.normal_(0.0, 0.02, generator=generator)
            seed += 1
