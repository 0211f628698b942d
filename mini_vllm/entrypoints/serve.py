"""``python -m mini_vllm serve MODEL``: the options of the server, and its construction."""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mini_vllm.config.options import json_value, whole_number
from mini_vllm.entrypoints.fingerprint import MODES, system_fingerprint
from mini_vllm.errors import show
from mini_vllm.lora.request import parse_lora_modules

if TYPE_CHECKING:
    from mini_vllm.entrypoints.openai.state import ServerState


TOOL_CALL_PARSERS = ("hermes",)
SWITCH: dict[str, Any] = {"action": argparse.BooleanOptionalAction, "default": False}


def add_serve_options(parser: argparse.ArgumentParser) -> None:
    """The options of the server itself; those of the engine are added elsewhere.

    Source: vllm/entrypoints/openai/cli_args.py#L224-L337 (FrontendArgs) @ v0.22.1
    """
    add = add_frontend_options(parser)
    add("--host", default="127.0.0.1", help="address to listen on (default 127.0.0.1)")
    add("--port", type=int, default=8000, help="to listen on (default 8000; 0: any that is free)")
    add("--uds", metavar="PATH", help="listen on a Unix socket instead")
    add("--api-key", nargs="+", action="extend", metavar="KEY", help="or VLLM_API_KEY")
    for name, default in (("origins", []), ("methods", ["*"]), ("headers", ["*"])):
        add(f"--allowed-{name}", type=json_value, default=default, metavar="JSON", help="for CORS")
    add("--allow-credentials", **SWITCH, help="for CORS: with cookies")
    add("--ssl-keyfile", metavar="FILE", help="private key in PEM, for HTTPS")
    add("--ssl-certfile", metavar="FILE", help="its certificate in PEM")
    add("--ssl-ca-certs", help="of the authorities that clients' certificates come from")
    add("--ssl-cert-reqs", type=int, choices=(0, 1, 2), default=0,
        help="of clients: not asked for (0), checked if sent (1), required (2)")  # fmt: skip
    add("--root-path", default="", help="path prefix that a proxy in front takes away")
    add("--enable-request-id-headers", **SWITCH,
        help="answers carry the X-Request-Id of their request")  # fmt: skip
    add("--enable-force-include-usage", **SWITCH,
        help="every stream ends with its usage")  # fmt: skip
    add("--enable-tokenizer-info-endpoint", **SWITCH,
        help="GET /tokenizer_info: settings of the tokenizer, with its chat template")  # fmt: skip
    add("--disable-uvicorn-access-log", **SWITCH, help="no line for each request")
    add("--uvicorn-log-level", default="info", help="least that uvicorn logs (default info)",
        choices=("critical", "error", "warning", "info", "debug", "trace"))  # fmt: skip
    add("--shutdown-timeout", type=float, default=0.0, metavar="SECONDS",
        help="how long unfinished requests may run on after SIGTERM (default 0)")  # fmt: skip
    add(
        "--max-num-queued-reqs",
        type=whole_number,
        help="unfinished requests beyond which 503 is answered",
    )
    add(
        "--max-num-queued-tokens",
        type=whole_number,
        help="the same for the tokens of their prompts",
    )
    add("--profiler-config", type=json_value, metavar="JSON",
        help='{"torch_profiler_dir": FOLDER}, for POST /start_profile')  # fmt: skip
    add("--stream-interval", type=int, default=1, metavar="TOKENS",
        help="tokens between two events of a stream (default 1)")  # fmt: skip
    add("--h11-max-incomplete-event-size", type=whole_number, default=4 * 2**20, metavar="BYTES",
        help="largest head of a request")  # fmt: skip


def add_frontend_options(parser: argparse.ArgumentParser) -> Callable[..., Any]:
    """Add the options of what answers requests, over HTTP or from a file (`run-batch`).

    Returns:
        The function that adds one more to their group.

    Source: vllm/entrypoints/openai/cli_args.py#L69-L221 (BaseFrontendArgs) @ v0.22.1
    """
    add = parser.add_argument_group("Frontend", "What answers requests.").add_argument
    add("--served-model-name", nargs="+", metavar="NAME", help="default: the model's own name")
    add("--chat-template", metavar="FILE", help="Jinja file, or the template itself")
    add(
        "--default-chat-template-kwargs",
        type=json_value,
        metavar="JSON",
        help='variables of the template where a request has none: {"enable_thinking": false}',
    )
    add("--trust-request-chat-template", **SWITCH,
        help="let a request bring its own chat template")  # fmt: skip
    add("--response-role", default="assistant", help="role of answers (default assistant)")
    add("--enable-auto-tool-choice", **SWITCH, help="let the model decide on tool calls")
    add("--tool-call-parser", choices=TOOL_CALL_PARSERS, help="how the model writes tool calls")
    add("--exclude-tools-when-tool-choice-none", **SWITCH,
        help="then the prompt does not name them either")  # fmt: skip
    add("--enable-prompt-tokens-details", **SWITCH,
        help="usage tells cached tokens, too")  # fmt: skip
    add("--fingerprint-mode", choices=MODES, default="full",
        help="system_fingerprint of answers: with degrees of parallelism (full), without (hash), "
        "the text of --fingerprint-value (custom), or none")  # fmt: skip
    add("--fingerprint-value", metavar="TEXT", help="with --fingerprint-mode custom")
    add("--enable-log-requests", **SWITCH,
        help="a line for each request: its id, parameters and adapter; at "
        "VLLM_LOGGING_LEVEL=DEBUG its prompt, too")  # fmt: skip
    add("--max-log-len", type=whole_number, metavar="N",
        help="characters and tokens of a prompt that are logged (default: all)")  # fmt: skip
    add("--skip-tokenizer-init", **SWITCH, help="take and return token ids only")
    return add


def check(args: argparse.Namespace) -> None:
    """Raises ValueError for options that contradict each other, before the model is loaded."""
    check_frontend(args)
    _check_tls(args)
    if any(not key.strip() for key in api_keys(args)):
        raise ValueError("--api-key is empty and lets any client in; give a key or leave it out")
    if not 0 <= args.port <= 65535:
        raise ValueError(f"--port is {args.port}; it must be between 0 and 65535")
    if not args.shutdown_timeout >= 0:  # nan is neither
        raise ValueError(f"--shutdown-timeout is {args.shutdown_timeout}; it must be at least 0")
    if args.h11_max_incomplete_event_size < 1:
        raise ValueError(
            f"--h11-max-incomplete-event-size is {args.h11_max_incomplete_event_size}; it must be "
            "at least 1 byte"
        )
    for name in ("allowed_origins", "allowed_methods", "allowed_headers"):
        value = getattr(args, name)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ValueError(f"--{name.replace('_', '-')} must be a JSON list, such as '[\"*\"]'")


def check_frontend(args: argparse.Namespace) -> None:
    """Raises ValueError for :func:`add_frontend_options` that contradict each other."""
    if args.enable_auto_tool_choice and not args.tool_call_parser:
        raise ValueError("--enable-auto-tool-choice needs --tool-call-parser hermes")
    if any(not name.strip() for name in args.served_model_name or []):
        raise ValueError(
            "--served-model-name is empty; give the name that clients are to use, or leave it out"
        )
    if not isinstance(args.default_chat_template_kwargs, dict | None):
        raise ValueError(
            f"--default-chat-template-kwargs is {show(args.default_chat_template_kwargs)}; it must "
            """be a JSON object, such as '{"enable_thinking": false}'"""
        )
    if args.max_log_len is not None and args.max_log_len < 0:
        raise ValueError(f"--max-log-len is {args.max_log_len}; it must be at least 0")


def _check_tls(args: argparse.Namespace) -> None:
    """Raises ValueError for files that are missing, are of the wrong kind, or would have no
    effect."""
    if bool(args.ssl_keyfile) != bool(args.ssl_certfile):
        raise ValueError("--ssl-keyfile and --ssl-certfile belong together; give both or neither")
    for name in ("ssl_keyfile", "ssl_certfile", "ssl_ca_certs"):
        file = getattr(args, name)
        if file and not Path(file).is_file():
            raise ValueError(f"--{name.replace('_', '-')}: there is no file {file}")
    if bool(args.ssl_ca_certs) != bool(args.ssl_cert_reqs):
        raise ValueError(
            "--ssl-ca-certs and --ssl-cert-reqs 1 or 2 belong together; with one of them alone "
            "no client's certificate would be checked; give both or neither"
        )
    if args.ssl_cert_reqs and not args.ssl_certfile:
        raise ValueError("--ssl-cert-reqs needs --ssl-keyfile and --ssl-certfile, for HTTPS")
    if args.ssl_certfile:
        _load_certificates(args)


def _load_certificates(args: argparse.Namespace) -> None:
    import ssl

    def password() -> str:
        raise ValueError(
            f"--ssl-keyfile: {args.ssl_keyfile} is encrypted; its password is not asked for; "
            "write it decrypted: openssl pkey -in FILE -out NEW"
        )

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(args.ssl_certfile, args.ssl_keyfile, password)
    except ssl.SSLError as error:
        raise ValueError(
            f"{args.ssl_certfile} and {args.ssl_keyfile} are no certificate and its key in "
            f"PEM format: {error}"
        ) from error
    if args.ssl_ca_certs is None:
        return
    try:
        context.load_verify_locations(args.ssl_ca_certs)
    except ssl.SSLError as error:
        raise ValueError(
            f"--ssl-ca-certs: {args.ssl_ca_certs} holds no certificates in PEM format: {error}"
        ) from error


def api_keys(args: argparse.Namespace) -> list[str]:
    from_environment = os.environ.get("VLLM_API_KEY")
    return list(args.api_key or ([from_environment] if from_environment else []))


def make_state(args: argparse.Namespace, options: dict[str, Any]) -> ServerState:
    """Start the engine and make the server's state.

    Args:
        options: engine options, as ``LLM`` takes them.
    """
    from mini_vllm.engine.async_llm import AsyncEngineArgs, AsyncLLM
    from mini_vllm.engine.chat_template import read_template
    from mini_vllm.engine.checked_config import recommended_params
    from mini_vllm.entrypoints.openai.request_log import RequestLogger
    from mini_vllm.entrypoints.openai.state import ServerState
    from mini_vllm.lora.registry import read_adapter
    from mini_vllm.observability.metrics import PrometheusRecorder

    template = read_template(args.chat_template, "--chat-template")
    request_logger = RequestLogger(args.max_log_len) if args.enable_log_requests else None
    names = args.served_model_name or [args.model]
    loras = parse_lora_modules(args.lora_modules)
    if taken := [name for name in loras if name in names]:
        raise ValueError(
            f"--lora-modules has {taken[0]!r}, which is the model's own name; choose another, or "
            "another --served-model-name"
        )
    for name, lora in loras.items():
        try:
            read_adapter(lora.lora_path)
        except ValueError as error:
            raise ValueError(f"--lora-modules {name}: {error}") from error
    engine = AsyncLLM.from_engine_args(
        AsyncEngineArgs(
            args.model,
            skip_tokenizer_init=args.skip_tokenizer_init,
            stream_interval=args.stream_interval,
            max_num_queued_reqs=args.max_num_queued_reqs,
            max_num_queued_tokens=args.max_num_queued_tokens,
            profiler_config=args.profiler_config,
            **options,
        )
    )
    metrics = PrometheusRecorder.of(
        engine.config,
        names[0],
        engine.limits.num_usable_blocks + 1,
        engine.config.parallel.data_parallel_size,
    )
    engine.stats.recorders.append(metrics)
    return ServerState(
        engine,
        metrics,
        list(names),
        loras=loras,
        default_params=recommended_params(engine.config.model),
        chat_template=template,
        default_chat_template_kwargs=args.default_chat_template_kwargs or {},
        trust_request_chat_template=args.trust_request_chat_template,
        response_role=args.response_role,
        enable_auto_tool_choice=args.enable_auto_tool_choice,
        tool_call_parser=args.tool_call_parser,
        exclude_tools_when_tool_choice_none=args.exclude_tools_when_tool_choice_none,
        enable_request_id_headers=args.enable_request_id_headers,
        enable_prompt_tokens_details=args.enable_prompt_tokens_details,
        enable_force_include_usage=args.enable_force_include_usage,
        enable_tokenizer_info_endpoint=args.enable_tokenizer_info_endpoint,
        fingerprint=system_fingerprint(
            engine.config, args.fingerprint_mode, args.fingerprint_value
        ),
        request_logger=request_logger,
    )


@contextlib.contextmanager
def leaving_tidily() -> Iterator[None]:
    """SIGTERM ends this process with the usual exit code, but runs every ``finally`` first."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def run_serve(args: argparse.Namespace, options: dict[str, Any]) -> int:
    """Listen, load the model, serve until told to stop. 0 after a clean shutdown."""
    from mini_vllm.entrypoints.launcher import SocketFile, bind, serve_http
    from mini_vllm.entrypoints.openai import dev
    from mini_vllm.entrypoints.openai.api_server import build_app

    check(args)
    dev.is_enabled()
    with leaving_tidily():  # until the server listens; from then on, SIGTERM drains it first
        # Before the model is loaded, so that a port in use is reported at once.
        socket = bind(args.host, args.port, args.uds)
        file = SocketFile(args.uds)
        try:
            state = make_state(args, options)
            app = build_app(
                state,
                api_keys(args),
                args.allowed_origins,
                args.allowed_methods,
                args.allowed_headers,
                args.allow_credentials,
                args.root_path,
            )
            return serve_http(app, state, socket, file, args)
        finally:
            file.remove()
