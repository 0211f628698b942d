"""The messages between a front end and an engine process, and how they are encoded.

::

    front end ── [ADD | request id | EngineCoreRequest]          ──►  engine
              ── [ABORT | ids]                                   ──►
              ── [UTILITY | (call id, method, arguments)]        ──►
              ── [SHUTDOWN | seconds]                            ──►
              ◄── [READY | limits]  [FAILED | why]               ──   once
              ◄── [OUTPUTS | EngineCoreOutputs]                  ──   every step
              ◄── [ANSWER | (call id, value, error)]  [DEAD | why] ──

A message is a list of frames: one byte for its kind, then msgpack. Plain dataclasses are written
by msgspec, which is some thirty times as fast as pickle and runs nothing that it reads.

Source: vllm/v1/engine/__init__.py#L244-L257 (EngineCoreRequestType) @ v0.22.1
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.core.scheduler_output import EngineCoreOutput, SchedulerStats
from mini_vllm.errors import RequestError, show


class MessageKind(Enum):
    ADD = b"\x00"
    ABORT = b"\x01"
    UTILITY = b"\x03"
    SHUTDOWN = b"\x06"
    READY = b"\x10"
    FAILED = b"\x11"
    OUTPUTS = b"\x12"
    ANSWER = b"\x13"
    DEAD = b"\x14"


@dataclass(slots=True)
class EngineCoreOutputs:
    """What one step brought for all requests.

    Source: vllm/v1/engine/__init__.py#L211-L241 (EngineCoreOutputs) @ v0.22.1
    """

    outputs: list[EngineCoreOutput] = field(default_factory=list)
    stats: SchedulerStats | None = None
    timestamp: float = 0.0
    """On the engine's monotonic clock, after the step."""
    is_late: bool = False
    """Set by the reader: the next step's message had arrived already."""


@dataclass(slots=True)
class EngineInfo:
    """What a front end must know of an engine that is ready."""

    vocab_size: int
    max_model_len: int
    num_usable_blocks: int
    block_size: int
    capacity: int
    dtype: str
    pid: int


@dataclass(slots=True)
class UtilityCall:
    call_id: int
    method: str
    args: list[Any]


@dataclass(slots=True)
class UtilityAnswer:
    call_id: int
    value: Any = None
    error: str | None = None


ARRAY = 1
"""Number of the one extension to msgpack: the patches of an image, or an embedding."""


def _write_array(value: Any) -> msgspec.msgpack.Ext:
    if not isinstance(value, np.ndarray):
        raise NotImplementedError(f"{type(value).__name__} cannot be sent to another process")
    return msgspec.msgpack.Ext(
        ARRAY, encode((value.dtype.str, value.shape, np.ascontiguousarray(value).data))
    )


def _read_array(code: int, data: memoryview) -> NDArray[Any]:
    if code != ARRAY:
        raise ValueError(f"a message holds extension {code}; only {ARRAY}, an array, is known")
    dtype, shape, numbers = msgspec.msgpack.decode(data, type=tuple[str, tuple[int, ...], bytes])
    return np.frombuffer(numbers, dtype).reshape(shape)


encode = msgspec.msgpack.Encoder(enc_hook=_write_array).encode
decode_request = msgspec.msgpack.Decoder(EngineCoreRequest, ext_hook=_read_array).decode
decode_ids = msgspec.msgpack.Decoder(list[str]).decode
decode_call = msgspec.msgpack.Decoder(UtilityCall).decode
decode_answer = msgspec.msgpack.Decoder(UtilityAnswer).decode
decode_outputs = msgspec.msgpack.Decoder(EngineCoreOutputs, ext_hook=_read_array).decode
decode_info = msgspec.msgpack.Decoder(EngineInfo).decode
decode_text = msgspec.msgpack.Decoder(str).decode
decode_seconds = msgspec.msgpack.Decoder(float).decode

TRAVEL = "plain data (text, numbers that fit 64 bits, lists, and dicts with text as keys)"


def encode_call(call: UtilityCall) -> bytes:
    """A call on its way. Raises ValueError for a name or arguments that cannot travel."""
    if not isinstance(call.method, str):
        raise ValueError(f"method is {show(call.method)}; it must be the name of a method")
    try:
        return encode(call)
    except Exception as error:  # a library's, of many kinds
        raise ValueError(
            f"{call.method} is called with {show(call.args)}; what goes to the engine's process "
            f"must be {TRAVEL}: {error}"
        ) from error


def check_travels(request: EngineCoreRequest) -> None:
    """Refuse a request that cannot be encoded without loss, before a caller waits for it.

    Only fields with free contents can be so: `extra_args`, and an adapter's fields. Raises
    ValueError.
    """
    extra_args, adapter = request.sampling_params.extra_args, request.lora_request
    if request.pooling_params is not None:
        extra_args = request.pooling_params.extra_kwargs
    if not extra_args and adapter is None:
        return
    try:
        decode_request(encode(request))
    except Exception as error:
        raise RequestError(
            f"extra_args is {show(extra_args)} and lora_request {show(adapter)}; what goes to the "
            f"engine's process must be {TRAVEL}: {error}",
            param="extra_args",
            value=extra_args,
        ) from error
