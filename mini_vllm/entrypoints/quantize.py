"""``mini-vllm quantize``: write a quantised copy of a checkpoint, once and offline."""

from __future__ import annotations

import argparse
from pathlib import Path

from mini_vllm.entrypoints.cli_options import MODELS


def add_quantize_options(command: argparse.ArgumentParser) -> None:
    """Options of the quantisation. No engine runs, so engine options are not among them."""
    command.add_argument("model", metavar="MODEL", help=f"folder, or one of {MODELS}")
    command.add_argument(
        "-o", "--output-dir", type=Path, required=True, metavar="FOLDER", help="where the copy goes"
    )
    command.add_argument(
        "--scheme", default="W4A16", help="W4A16 (default), W8A8, FP8_DYNAMIC, ..."
    )
    command.add_argument("--algorithm", default="rtn", help="rtn (default), gptq, awq, smoothquant")
    command.add_argument("--dataset", type=Path, metavar="FILE", help="calibration texts, by lines")
    command.add_argument("--group-size", type=int, metavar="INT", help="default 128; -1: a row")
    command.add_argument(
        "--ignore", nargs="*", default=["lm_head"], metavar="LAYER", help="not quantised"
    )
    command.add_argument("--act-order", action="store_true", help="gptq: important columns first")


def run_quantize(args: argparse.Namespace) -> int:
    """Quantise once, offline; see :func:`mini_vllm.quantization.oneshot`."""
    from mini_vllm.quantization import oneshot

    try:
        texts = args.dataset.read_text(encoding="utf-8").splitlines() if args.dataset else None
    except UnicodeDecodeError as error:
        raise ValueError(f"--dataset {args.dataset} is no text in UTF-8: {error}") from error
    folder = oneshot(
        args.model,
        args.output_dir,
        args.scheme,
        args.algorithm,
        [text for text in texts if text] if texts else None,
        args.group_size,
        args.ignore,
        args.act_order,
    )
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    print(f"{folder}: {size / 2**20:.1f} MiB of tensors")
    return 0
