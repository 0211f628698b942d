"""One prompt through the real vLLM, in the environment that has it: log lines, plans, tokens.

    .venv-real-vllm/bin/python -m labkit.trace.real_vllm_child FOLDER

`FOLDER/task.json` says what to run. `FOLDER/log.jsonl` gets each log line with the file and the
line that wrote it, from every process of vLLM; `FOLDER/answer.json` the plans of the scheduler and
the tokens. The formatter below is named in `FOLDER/logging.json`, which vLLM reads in each of its
processes; so this file imports nothing but the standard library until it runs.
"""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any


class JsonLine(logging.Formatter):
    """A log record as one line of JSON."""

    def format(self, record: logging.LogRecord) -> str:
        row = {
            "process": record.process,
            "level": record.levelname,
            "path": record.pathname,
            "line": record.lineno,
            "message": record.getMessage(),
        }
        return json.dumps(row)


def logging_config(path: Path) -> dict[str, Any]:
    """What `VLLM_LOGGING_CONFIG_PATH` holds: every line of vLLM goes into one file."""
    return {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"json": {"class": f"{__spec__.name}.JsonLine"}},
        "handlers": {
            "file": {"class": "logging.FileHandler", "filename": str(path), "formatter": "json"}
        },
        "loggers": {"vllm": {"handlers": ["file"], "level": "INFO", "propagate": False}},
    }


def watch(steps: list[dict[str, Any]]) -> None:
    """Note every plan of vLLM's scheduler. The one request is called r0, as in ours."""
    from vllm.v1.core.sched.scheduler import Scheduler

    original = Scheduler.schedule

    def schedule(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = original(self, *args, **kwargs)
        if output.num_scheduled_tokens:
            [(request_id, num_tokens)] = output.num_scheduled_tokens.items()
            steps.append(
                {
                    "tokens": num_tokens,
                    "blocks": _new_blocks(output),
                    "free": self.kv_cache_manager.block_pool.get_num_free_blocks(),
                    "computed": self.requests[request_id].num_computed_tokens,
                }
            )
        return output

    Scheduler.schedule = schedule


def _new_blocks(output: Any) -> list[int]:
    for request in output.scheduled_new_reqs:
        return list(request.block_ids[0])
    [blocks] = output.scheduled_cached_reqs.new_block_ids
    return list(blocks[0]) if blocks is not None else []


def allow_tiles() -> None:
    """Ask Linux for Intel's AMX registers. vLLM uses them unasked, and is killed for it."""
    import ctypes

    if sys.platform == "linux":
        ctypes.CDLL(None).syscall(158, 0x1023, 18)


def main(folder: Path) -> None:
    task = json.loads((folder / "task.json").read_text(encoding="utf-8"))
    allow_tiles()
    import vllm
    from vllm import LLM, SamplingParams

    steps: list[dict[str, Any]] = []
    watch(steps)
    llm = LLM(task["model"], **task["settings"])
    params = SamplingParams(temperature=0.0, max_tokens=task["max_tokens"], ignore_eos=True)
    [output] = llm.generate([task["prompt"]], params, use_tqdm=False)
    answer = {
        "version": vllm.__version__,
        "prompt": list(output.prompt_token_ids),
        "tokens": list(output.outputs[0].token_ids),
        "text": output.outputs[0].text,
        "steps": steps,
    }
    (folder / "answer.json").write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
