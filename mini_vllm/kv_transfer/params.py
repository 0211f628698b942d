"""What a caller may say about the KV of one request: ``extra_args["kv_transfer_params"]``.

A proxy before a prefill and a decode engine sends {"do_remote_decode": true} to the first, and
passes the answer of the first on to the second.

Source: vllm/distributed/kv_transfer/kv_connector/v1/nixl/scheduler.py#L586-L674
(NixlConnectorScheduler.request_finished) @ v0.22.1
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mini_vllm.errors import RequestError, bad_value, show
from mini_vllm.kv_transfer.identity import prompt_identity
from mini_vllm.request import Request

REMOTE_KEYS: dict[str, type] = {
    "remote_engine_id": str,
    "remote_request_id": str,
    "remote_host": str,
    "remote_port": int,
    "remote_block_ids": list,
}


@dataclass(frozen=True, slots=True)
class RemotePrefill:
    """Where another engine holds the KV of a prompt."""

    engine_id: str
    request_id: str
    lease: str
    host: str
    port: int
    block_ids: list[int]
    num_tokens: int


def check_params(params: Any) -> None:
    """Refuse what no connector could follow.

    Raises:
        ValueError: that names the key, its value and what it must be.
    """
    if params is None:
        return
    if not isinstance(params, Mapping):
        raise bad_value("kv_transfer_params", params, "it must be an object or left out")
    if params.get("do_remote_prefill") and params.get("do_remote_decode"):
        raise RequestError(
            "kv_transfer_params has do_remote_prefill and do_remote_decode; a request either "
            "fetches its prompt's KV or leaves it for another engine; set one of them",
            param="kv_transfer_params",
        )
    read_remote_prefill(params)


def check_remote_blocks(params: Mapping[str, Any], request: Request, block_size: int) -> None:
    """Refuse KV of another prompt.

    Raises:
        ValueError: if there are not as many tokens and blocks as the prompt has, or they were
            computed from other tokens, with another adapter or salt, or over other pictures.
    """
    source = read_remote_prefill(params)
    if source is None:
        return
    num_prompt_tokens = request.num_prompt_tokens
    num_blocks = -(-min(source.num_tokens, num_prompt_tokens) // block_size)
    if source.num_tokens != num_prompt_tokens or len(source.block_ids) < num_blocks:
        raise RequestError(
            f"kv_transfer_params has {len(source.block_ids)} remote_block_ids for "
            f"{source.num_tokens} tokens; the prompt has {num_prompt_tokens} tokens, which are "
            f"{-(-num_prompt_tokens // block_size)} blocks of {block_size}; hand on what the "
            "prefill engine has answered for this very prompt",
            param="kv_transfer_params",
        )
    prompt = params.get("remote_prompt")  # vLLM's have none: then it cannot be checked
    if prompt is not None and prompt != prompt_identity(request):
        raise RequestError(
            f"kv_transfer_params has remote_prompt {show(prompt)}; that is KV of other tokens, or "
            "with another adapter, salt or picture, than this request has; hand on what the "
            "prefill engine has answered for this very prompt",
            param="kv_transfer_params",
        )


def holder_of(params: Any) -> dict[str, Any] | None:
    """The engine that holds KV for a refused request; None if its parameters name none.

    The parameters may be the reason for the refusal. So only what it takes to reach the other
    engine is read, and no list of blocks: none will be fetched.
    """
    if not isinstance(params, Mapping):
        return None
    names = ("do_remote_prefill", "remote_lease", *REMOTE_KEYS)
    holder = {name: params[name] for name in names if name in params}
    holder |= {"remote_block_ids": [], "remote_num_tokens": 1}
    try:
        return None if read_remote_prefill(holder) is None else holder
    except ValueError:
        return None


def read_remote_prefill(params: Mapping[str, Any]) -> RemotePrefill | None:
    """What the parameters say of KV to fetch; None if they say nothing.

    Raises:
        ValueError: for keys that are missing or of a wrong kind.
    """
    if not params.get("do_remote_prefill"):
        return None
    for key, kind in REMOTE_KEYS.items():
        value = params.get(key)
        if not isinstance(value, kind) or isinstance(value, bool):
            raise RequestError(
                f"kv_transfer_params has do_remote_prefill, but {key} is {show(value)}; hand on "
                "all that the prefill engine has answered",
                param="kv_transfer_params",
            )
    block_ids = params["remote_block_ids"]
    if not all(isinstance(i, int) and not isinstance(i, bool) and i >= 0 for i in block_ids):
        raise bad_value(
            "remote_block_ids",
            block_ids,
            "it must be a list of block ids",
            param="kv_transfer_params",
        )
    num_tokens = params.get("remote_num_tokens")
    if not isinstance(num_tokens, int) or num_tokens < 1:
        raise bad_value(
            "remote_num_tokens",
            num_tokens,
            "it must be the prompt's length",
            param="kv_transfer_params",
        )
    return RemotePrefill(
        params["remote_engine_id"],
        params["remote_request_id"],
        str(params.get("remote_lease", "")),
        params["remote_host"],
        params["remote_port"],
        list(block_ids),
        num_tokens,
    )
