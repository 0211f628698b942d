"""Vectors in an answer: as lists of numbers, or as bytes, which are shorter and exact.

OpenAI's client requests base64 by default, and decodes it.
Source: vllm/utils/serial_utils.py#L67-L90 (tensor2binary) @ v0.22.1
"""

from __future__ import annotations

import base64
import sys
from collections.abc import Sequence
from typing import Any

import orjson
import torch
from starlette.responses import Response
from torch import Tensor

from mini_vllm.entrypoints.pooling.protocol import EncodingRequest
from mini_vllm.pooling_outputs import PoolingOutput, PoolingRequestOutput

DTYPES = {
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "fp8_e4m3": torch.float8_e4m3fn,
    "fp8_e5m2": torch.float8_e5m2,
}
INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
"""Integer types by size. numpy swaps bytes, and it has no bfloat16 and no float8."""


def to_bytes(data: Tensor, dtype: str, endianness: str) -> bytes:
    """The numbers of a tensor as bytes."""
    numbers = data.to(DTYPES[dtype]).flatten().contiguous()
    whole = numbers.view(INTEGERS[numbers.itemsize]).numpy()
    if endianness not in ("native", sys.byteorder):
        whole = whole.byteswap()
    return whole.tobytes()


def encode(data: Tensor, request: EncodingRequest) -> Any:
    """A vector as a JSON value: a list of numbers, or a string in base64."""
    if request.encoding_format == "float":
        return data.tolist()
    return base64.b64encode(to_bytes(data, request.embed_dtype, request.endianness)).decode()


def bytes_response(
    outputs: Sequence[PoolingRequestOutput[PoolingOutput]],
    request: EncodingRequest,
    about: dict[str, Any],
) -> Response:
    """All vectors as one body; for "bytes" a header says where each vector begins and ends.

    Source: vllm/entrypoints/pooling/utils.py#L95-L125 (encode_pooling_bytes) @ v0.22.1
    """
    dtype, endianness = request.embed_dtype, request.endianness
    parts, items = [], []
    start = 0
    for index, output in enumerate(outputs):
        data = output.outputs.data
        parts.append(to_bytes(data, dtype, endianness))
        end = start + len(parts[-1])
        items.append(
            {"index": index, "embed_dtype": dtype, "endianness": endianness, "start": start,
             "end": end, "shape": list(data.shape)}
        )  # fmt: skip
        start = end
    headers = {}
    if request.encoding_format == "bytes":
        headers["metadata"] = orjson.dumps({**about, "data": items}).decode()
    return Response(b"".join(parts), headers=headers, media_type="application/octet-stream")
