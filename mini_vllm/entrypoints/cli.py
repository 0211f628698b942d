"""The command line: ``python -m mini_vllm generate | chat | bench | info | break-even | demo``."""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import logging
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mini_vllm import __version__
from mini_vllm.config.help_screens import HelpParser
from mini_vllm.config.options import (
    add_field_options,
    complaint,
    join_dotted,
    with_dashes,
    without_defaults,
)
from mini_vllm.entrypoints.cli_options import (
    DEFAULT_MODEL,
    NO_OPTIONS,
    adapters_of,
    add_model_options,
    engine_options_of,
    load_llm,
    process_options_of,
    sampling_params_of,
    say_start,
)
from mini_vllm.errors import EngineDeadError, show
from mini_vllm.logger import be_quiet
from mini_vllm.lora.request import LoRARequest
from mini_vllm.sampling_params import SamplingParams

if TYPE_CHECKING:
    from mini_vllm.engine.llm import LLM
    from mini_vllm.inputs import PromptType
    from mini_vllm.outputs import RequestOutput

logger = logging.getLogger(__name__)

ELSEWHERE = {
    "collect-env": "use info",
    "launch": "use serve",
    "bench latency": "use bench --num-prompts 1",
    "bench startup": "time the command itself",
    "bench sweep": "call bench serve once for each setting",
    "bench mm-processor": "send a server requests with images",
}
"""Commands of vLLM that are not supported, and what to do instead."""
OF_A_SERVER = ("--url", "--model-name", "--model_name", "--api-key", "--api_key")
"""Options with which `chat` talks to a running server, as vLLM's always does."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; errors become one line on stderr and exit code 2, Ctrl-C gives 130."""
    from mini_vllm.core.interface import NoProgressError

    given = list(sys.argv[1:] if argv is None else argv)
    words = join_dotted(with_dashes(_one_word(given)))
    parser = build_parser(only=words[0] if words else None)
    for command in (" ".join(given[:1]), " ".join(given[:2])):
        if command in ELSEWHERE:
            parser.error(f"{command} is vLLM's, and not supported: {ELSEWHERE[command]}")
    args, unknown = parser.parse_known_args(without_defaults(words, parser))
    if unknown:
        parser.error(complaint(unknown))
    try:
        return _imported(args.run)(args)
    except (ValueError, TypeError, OSError, NoProgressError, EngineDeadError) as error:
        print(f"mini_vllm {args.command}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nstopped; all requests were aborted", file=sys.stderr)
        return 130


def _one_word(argv: list[str]) -> list[str]:
    """``bench serve``, ``bench throughput`` and ``chat --url`` as one word; ``bench`` alone means
    ``bench throughput``."""
    if argv[:2] == ["bench", "serve"]:
        return ["bench-serve", *argv[2:]]
    if argv[:2] == ["bench", "throughput"]:
        return ["bench", *argv[2:]]
    if argv[:1] == ["chat"] and any(word.split("=")[0] in OF_A_SERVER for word in argv):
        return ["chat-url", *argv[1:]]
    return argv


class CommandParser(HelpParser):
    """A parser whose commands take their model as MODEL or as --model."""

    def parse_known_args(self, *args: Any, **options: Any) -> Any:
        found, rest = super().parse_known_args(*args, **options)
        if (tag := getattr(found, "model_tag", None)) is not None:
            if found.model not in (DEFAULT_MODEL, tag):
                self.error(f"MODEL is {tag!r} and --model is {found.model!r}; give one of the two")
            found.model = tag
        return found, rest


def build_parser(only: str | None = None) -> argparse.ArgumentParser:
    """The parser of all commands.

    Args:
        only: the given command. Options of the others are left out, because some of them need
            modules that are slow to import.
    """
    script = Path(sys.argv[0]).name
    parser = CommandParser(
        prog=script if script == "mini-vllm" else "python -m mini_vllm",
        description="A small, real LLM inference engine.",
    )
    parser.add_argument("-v", "--version", action="version", version=__version__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (about, options, run) in COMMANDS.items():
        command = commands.add_parser(name, help=about)
        command.set_defaults(run=run)
        if only not in COMMANDS or only == name:
            for add_options in options:
                _imported(add_options)(command)
    return parser


def _generate_options(command: argparse.ArgumentParser) -> None:
    add_field_options(command, SamplingParams, skip=NO_OPTIONS)
    command.add_argument("prompts", nargs="*", metavar="PROMPT", help="default: lines of stdin")
    command.add_argument(
        "--lora",
        nargs="+",
        default=[],
        metavar="NAME",
        help="adapter of all prompts, or of each; base: none",
    )
    _add_image_option(command)
    command.add_argument("--json", action="store_true", help="one JSON object per prompt")
    command.add_argument("--report", action="store_true", help="print a short report at the end")
    command.add_argument("--timeline", type=Path, metavar="FILE", help="write every step as JSON")


def _chat_options(command: argparse.ArgumentParser) -> None:
    add_field_options(command, SamplingParams, skip=NO_OPTIONS)
    _add_model_tag(command)
    command.add_argument("--system", help="the system message")
    _add_image_option(command)
    command.add_argument("--lora", nargs=1, default=[], metavar="NAME", help="adapter to talk to")


def _bench_options(command: argparse.ArgumentParser) -> None:
    add = command.add_argument
    add("--num-prompts", type=_positive, default=16, help="how many (16)")
    add("--input-len", type=_positive, default=128, help="tokens of each (128)")
    add("--output-len", type=_positive, default=64, help="tokens made (64)")
    for name in ("input_len", "output_len"):  # vLLM's other names
        other = f"--random-{name.replace('_', '-')}"
        add(other, dest=name, type=_positive, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
    add("--dataset-name", choices=("random",), default="random", help="prompts are drawn")
    add("--output-json", type=Path, metavar="FILE", help="write vLLM's figures as JSON")
    _add_json_option(command)
    command.add_argument("--profile", type=Path, metavar="FILE", help="write a trace for Perfetto")


def _add_model_tag(command: argparse.ArgumentParser) -> None:
    about = "another way to say --model"
    command.add_argument("model_tag", nargs="?", metavar="MODEL", help=about)


def _add_json_option(command: argparse.ArgumentParser) -> None:
    command.add_argument("--json", action="store_true", help="figures as one JSON object")


def _add_image_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--image",
        nargs="+",
        default=[],
        type=Path,
        metavar="FILE",
        help="pictures for every prompt, or for the first turn of a chat",
    )


def _with_images(prompt: str, images: Sequence[Any]) -> Any:
    """A prompt with its pictures. Placeholders are put before it unless it already has some."""
    from mini_vllm.multimodal.chat import PLACE_IN_CHAT
    from mini_vllm.multimodal.processing import PLACEHOLDER

    if not images:
        return prompt
    text = prompt if PLACEHOLDER in prompt else PLACE_IN_CHAT * len(images) + prompt
    return {"prompt": text, "multi_modal_data": {"image": list(images)}}


def _open_images(paths: Sequence[Path]) -> list[Any]:
    """Open images. Raises ValueError or OSError for a file that cannot be opened."""
    if not paths:
        return []
    from mini_vllm.multimodal.pictures import Image

    return [Image.open(path) for path in paths]


def _positive(text: str) -> int:
    if (number := int(text)) < 1:
        raise argparse.ArgumentTypeError(f"it is {number}; it must be at least 1")
    return number


def run_generate(args: argparse.Namespace) -> int:
    """Complete prompts; the text of a single prompt is streamed."""
    from mini_vllm.observability.timeline import check_timeline_path, record_timeline

    sampling_params_of(args, max_tokens=128)  # raises errors before a model is loaded
    prompts = args.prompts or [line.rstrip("\n") for line in sys.stdin if line.strip()]
    if not prompts:
        raise ValueError("there is no prompt: none is given, and stdin is empty; give PROMPT")
    if args.timeline is not None:
        check_timeline_path(args.timeline)
    loras = adapters_of(args, len(prompts))
    images = _open_images(args.image)
    prompts = [_with_images(prompt, images) for prompt in prompts]
    llm = load_llm(args)
    params = sampling_params_of(args, **({"max_tokens": 128} | llm.default_sampling_params))
    with record_timeline(llm.engine.core, args.timeline):
        if len(prompts) == 1 and params.n == 1 and not args.json:
            outputs = [_print_stream(llm, prompts[0], params, loras)]
        else:
            show = sys.stderr.isatty()
            outputs = llm.generate(prompts, params, use_tqdm=show, lora_request=loras)
            for output in outputs:
                print(json.dumps(dataclasses.asdict(output)) if args.json else _as_text(output))
    if args.report:
        print("\n" + llm.engine.stats.report(), file=sys.stderr)
    return 1 if any(output.error for output in outputs) else 0


def _print_stream(
    llm: LLM, prompt: PromptType, params: SamplingParams, loras: list[LoRARequest | None]
) -> RequestOutput:
    """Print a completion while it is generated; returns the final output."""
    printed = 0
    output = None
    for output in llm.stream(prompt, params, lora_request=loras):
        text = output.outputs[0].text
        print(text[printed:], end="", flush=True)
        printed = len(text)
    assert output is not None
    print()
    if output.error:
        print(f"error: {output.error}", file=sys.stderr)
    return output


def _as_text(output: RequestOutput) -> str:
    adapter = f"[{output.lora_request.lora_name}] " if output.lora_request else ""
    title = f"--- {adapter}{show(output.prompt) if output.error else repr(output.prompt)}"
    if output.error:
        return f"{title}\nerror: {output.error}"
    texts = [completion.text.strip() for completion in output.outputs]
    return "\n".join([title, *texts])


def run_chat(args: argparse.Namespace) -> int:
    """A conversation; each answer is streamed. Ctrl-D or an empty line ends it."""
    sampling_params_of(args, max_tokens=256)
    loras = adapters_of(args, 1)
    images = [{"type": "image_pil", "image_pil": image} for image in _open_images(args.image)]
    llm = load_llm(args)
    params = sampling_params_of(args, **({"max_tokens": 256} | llm.default_sampling_params))
    messages: list[dict[str, Any]] = []
    if args.system:
        messages.append({"role": "system", "content": args.system})
    prompt = "you> " if sys.stdin.isatty() else ""
    while True:
        try:
            text = input(prompt).strip()
        except EOFError:
            return 0
        if not text:
            return 0
        content = [*images, {"type": "text", "text": text}] if images else text
        images = []  # they belong to the first turn
        messages.append({"role": "user", "content": content})
        output = _print_stream(llm, llm.chat_prompt(messages), params, loras)
        messages.append({"role": "assistant", "content": output.outputs[0].text})


def _write_figures(args: argparse.Namespace, seconds: float) -> None:
    """Write what vLLM's `bench throughput` writes.

    Source: vllm/benchmarks/throughput.py#L1207-L1216 (results) @ v0.22.1
    """
    num_tokens = args.num_prompts * (args.input_len + args.output_len)
    figures = {
        "elapsed_time": seconds,
        "num_requests": args.num_prompts,
        "total_num_tokens": num_tokens,
        "requests_per_second": args.num_prompts / seconds,
        "tokens_per_second": num_tokens / seconds,
    }
    args.output_json.write_text(json.dumps(figures, indent=4), encoding="utf-8")


def run_bench(args: argparse.Namespace) -> int:
    """Random prompts of one length, one fixed number of output tokens, greedy."""
    import random

    from mini_vllm.observability.profile import profiled
    from mini_vllm.platforms.cpu import host_memory

    num_bytes = 8 * args.num_prompts * (args.input_len + args.output_len)
    if num_bytes > host_memory():
        raise ValueError(
            f"{args.num_prompts} prompts of {args.input_len} + {args.output_len} tokens take "
            f"{num_bytes / 2**30:.0f} GiB; {host_memory() / 2**30:.0f} GiB are free; ask for fewer"
        )
    if args.output_json is not None and not args.output_json.parent.is_dir():
        raise ValueError(
            f"--output-json is {args.output_json}; name a file in a folder that exists"
        )
    llm = load_llm(args, enable_prefix_caching=False)
    vocab_size = llm.engine.core.model_args.vocab_size
    draw = random.Random(0)
    prompts = [
        [draw.randrange(vocab_size) for _ in range(args.input_len)] for _ in range(args.num_prompts)
    ]
    params = SamplingParams(temperature=0, max_tokens=args.output_len, ignore_eos=True)
    llm.generate(prompts[:2], params, use_tqdm=False)  # warm up
    llm.engine.reset_stats()
    with profiled(args.profile):
        start = time.perf_counter()
        llm.generate(prompts, params, use_tqdm=False)
        seconds = time.perf_counter() - start
    throughput = args.num_prompts * args.output_len / seconds
    if args.output_json is not None:
        _write_figures(args, seconds)
    if args.json:
        figures = {"wall_seconds": seconds, "wall_output_tokens_per_s": throughput}
        print(json.dumps(figures | llm.engine.stats.summary()))
    else:
        print(f"{throughput:.1f} output tokens/s over {seconds:.2f} s of wall time")
        print(llm.engine.stats.report())
    return 0


def run_serve(args: argparse.Namespace) -> int:
    """Serve HTTP until SIGTERM."""
    say_start(args.model)
    from mini_vllm.entrypoints.serve import run_serve as serve

    return serve(args, process_options_of(args))


def run_demo(args: argparse.Namespace) -> int:
    """See :mod:`mini_vllm.entrypoints.demo`."""
    from mini_vllm.entrypoints.demo import run

    be_quiet()
    options = engine_options_of(args)
    if "scheduler_cls" in options:  # other schedulers may need to compute prompts as a whole
        options.setdefault("max_num_batched_tokens", 512)
    return run(args.model, options)


class Command(NamedTuple):
    """A command: its help text, the functions that add its options, and the function that runs it.

    A name such as "info:run_info" is a function in a module of this package. The module is imported
    only when the command needs it, because some are slow to import.
    """

    about: str
    options: Sequence[str | Callable[[argparse.ArgumentParser], None]]
    run: str | Callable[[argparse.Namespace], int]


def _imported(function: str | Callable[..., Any]) -> Callable[..., Any]:
    if not isinstance(function, str):
        return function
    module, _, name = function.partition(":")
    return getattr(importlib.import_module(f"mini_vllm.entrypoints.{module}"), name)


COMMANDS = {
    "generate": Command(
        "complete one or more prompts", (add_model_options, _generate_options), run_generate
    ),
    "chat": Command("talk to the model", (add_model_options, _chat_options), run_chat),
    "chat-url": Command(
        "`chat --url`: talk to the model of a running server",
        ("remote:add_chat_options",),
        "remote:run_chat",
    ),
    "complete": Command(
        "complete prompts by a running server",
        ("remote:add_complete_options",),
        "remote:run_complete",
    ),
    "run-batch": Command(
        "answer a file of requests, one a line",
        (add_model_options, _add_model_tag, "run_batch:add_run_batch_options"),
        "run_batch:run_run_batch",
    ),
    "bench": Command(
        "offline throughput on random prompts", (add_model_options, _bench_options), run_bench
    ),
    "bench-serve": Command(
        "`bench serve`: latencies and throughput of a running server",
        ("bench_serve:add_bench_serve_options",),
        "bench_serve:run_bench_serve",
    ),
    "info": Command(
        "what a model needs and what this machine offers",
        (add_model_options, _add_model_tag, _add_json_option),
        "info:run_info",
    ),
    "break-even": Command(
        "from which length on KV is worth carrying",
        (add_model_options, "break_even:add_break_even_options"),
        "break_even:run_break_even",
    ),
    "experts": Command(
        "which experts of a mixture texts use",
        (add_model_options, "experts:add_experts_options"),
        "experts:run_experts",
    ),
    "serve": Command(
        "an HTTP server that speaks OpenAI's interface",
        (add_model_options, _add_model_tag, "serve:add_serve_options"),
        run_serve,
    ),
    "quantize": Command(
        "write a quantised copy of a checkpoint",
        ("quantize:add_quantize_options",),
        "quantize:run_quantize",
    ),
    "demo": Command(
        "see chunked prefill, prefix hits and a preemption", (add_model_options,), run_demo
    ),
}
