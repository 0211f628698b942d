"""One folder of KV, engines in processes of their own: they come, write, die and are lied to."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mini_vllm.kv_transfer.store import STALE_SECONDS, BlockStore

pytestmark = [pytest.mark.slow, pytest.mark.serial]
ROOT = Path(__file__).parents[3]
LONG = list(range(300, 340))
PROMPTS = [LONG, [*LONG[:32], 9, 9, 9], [7, 8, 9], list(range(100, 132))]
CACHED = [40, 32, 0, 32]
"""Tokens of each prompt in whole blocks of 8, if all of them are in the store."""
USUAL = {"dtype": "float32", "block_size": 8, "num_gpu_blocks": 64, "max_model_len": 96}
CHILD = '''
import json, os, sys, time
from mini_vllm import LLM, SamplingParams
from mini_vllm.kv_transfer import store

options, dies_at = json.loads(sys.argv[1]), int(sys.argv[2])
whole, count = store.pack_entry, 0

def pack_entry(*args):
    """Block number `dies_at` is written halfway, and there it stays."""
    global count
    count += 1
    header, payload = whole(*args)
    if count != dies_at:
        return [header, payload]
    def half():
        yield header
        yield payload[: len(payload) // 2]
        os.kill(os.getpid(), 9)
    return half()

store.pack_entry = pack_entry
if __name__ == "__main__":
    params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
    llm = LLM("storyteller-draft", **options)
    print("ready", flush=True)
    for line in sys.stdin:
        outputs = llm.generate(json.loads(line), params, use_tqdm=False)
        llm.engine.core.scheduler.check_integrity()
        answer = [[o.outputs[0].token_ids, o.num_cached_tokens, o.error] for o in outputs]
        print(json.dumps(answer), flush=True)
    llm.shutdown()
'''


class Engine:
    """An engine in a process of its own; it is asked by lines."""

    def __init__(self, folder: Path | None, policy: str, dies_at: int, options: Any) -> None:
        if folder is not None:
            extra = {"shared_storage_path": str(folder), **options.pop("extra", {})}
            options["kv_transfer_config"] = {
                "kv_connector": "SharedStorageConnector",
                "kv_role": "kv_both",
                "kv_load_failure_policy": policy,
                "kv_connector_extra_config": extra,
            }
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD, json.dumps(USUAL | options), str(dies_at)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self.process.stdin and self.process.stdout
        self.stdin, self.stdout = self.process.stdin, self.process.stdout

    def ready(self) -> Engine:
        assert self.stdout.readline() == "ready\n"
        return self

    def send(self, prompts: list[list[int]] = PROMPTS) -> None:
        self.stdin.write(json.dumps(prompts) + "\n")
        self.stdin.flush()

    def answer(self) -> tuple[list[list[int]], list[int], list[str | None]]:
        """Tokens, cached tokens and errors of the prompts."""
        tokens, cached, errors = zip(*json.loads(self.stdout.readline()), strict=True)
        return list(tokens), list(cached), list(errors)

    def ask(self, prompts: list[list[int]] = PROMPTS) -> Any:
        self.send(prompts)
        return self.answer()

    def end(self) -> int:
        """The last files are written when this returns."""
        self.stdin.close()
        return self.process.wait(60)


@contextmanager
def engine(
    folder: Path | None, policy: str = "recompute", dies_at: int = 0, **options: Any
) -> Iterator[Engine]:
    it = Engine(folder, policy, dies_at, options)
    try:
        yield it
    finally:
        it.process.kill()
        it.process.wait()


@pytest.fixture(scope="module")
def plain() -> list[list[int]]:
    with engine(None) as alone:
        return alone.ready().ask()[0]


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.kv"))


def store_of(folder: Path) -> BlockStore:
    """The store whose only namespace this is, as its files say themselves."""
    namespace = files(folder)[0].read_bytes()[8:40]
    return BlockStore(folder, namespace)


def all_are_sound(folder: Path) -> bool:
    store = store_of(folder)
    return all(store.get(bytes.fromhex(path.stem)) is not None for path in files(folder))


def fill(folder: Path, **options: Any) -> None:
    with engine(folder, **options) as first:
        first.ready().ask()
        assert first.end() == 0


def test_the_second_process_finds_what_the_first_has_written(
    tmp_path: Path, plain: list[list[int]]
) -> None:
    fill(tmp_path)
    with engine(tmp_path) as second:
        tokens, cached, errors = second.ready().ask()
    assert (tokens, cached, errors) == (plain, CACHED, [None] * 4)


def test_a_writer_that_is_killed_leaves_whole_blocks_and_one_leftover(
    tmp_path: Path, plain: list[list[int]]
) -> None:
    """A neighbour that was there all the time goes on with what is whole."""
    with engine(tmp_path, dies_at=6) as dying, engine(tmp_path) as neighbour:
        neighbour.ready()
        dying.ready().send()
        assert dying.process.wait(60) == -signal.SIGKILL
        assert len(files(tmp_path)) == 5 and all_are_sound(tmp_path)
        (leftover,) = tmp_path.rglob("*.tmp")
        assert neighbour.ask()[0] == plain
        assert neighbour.ask()[1] == CACHED
        old = time.time() - STALE_SECONDS - 1
        os.utime(leftover, (old, old))
        assert neighbour.ask()[0] == plain
        assert neighbour.end() == 0
    assert not leftover.exists() and all_are_sound(tmp_path)


def damage(folder: Path, how: str, foreign: Path) -> None:
    """All files but one are changed; or all change places, or are another model's."""
    paths = files(folder)
    contents = [path.read_bytes() for path in paths]
    if how == "swapped":
        contents.reverse()
    if how == "foreign":
        contents = [files(foreign)[0].read_bytes()] * len(paths)
    for number, (path, content) in enumerate(zip(paths, contents, strict=True)):
        changed = bytearray(content)
        if how == "flipped" and number:
            changed[-7] ^= 1
        path.write_bytes(changed[:-5] if how == "cut" and number else changed)


def ask_again(reader: Engine, right: list[list[int]]) -> int:
    """Ask until nothing is refused, and say how often something was. What is bad goes when it is
    read, so this ends; and a request that is not refused gives the right tokens."""
    for num_refused in range(6):
        tokens, _, errors = reader.ask()
        for mine, wanted, error in zip(tokens, right, errors, strict=True):
            assert mine == wanted if error is None else "did not arrive" in error
        if not any(errors):
            return num_refused
    raise AssertionError("refused for ever")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What another model has computed of the same tokens."""
    folder = tmp_path_factory.mktemp("foreign")
    fill(folder, load_format="dummy")
    return folder


@pytest.mark.parametrize("policy", ["recompute", "fail"])
def test_what_was_tampered_with_is_computed_again_or_refused(
    policy: str, tmp_path: Path, plain: list[list[int]], foreign: Path
) -> None:
    """Four lies one after another; what is bad goes, and is written anew."""
    fill(tmp_path)
    for how in ("flipped", "cut", "swapped", "foreign"):
        damage(tmp_path, how, foreign)
        with engine(tmp_path, policy) as reader:
            num_refused = ask_again(reader.ready(), plain)
            assert (num_refused > 0) == (policy == "fail"), how
            assert reader.end() == 0
    with engine(tmp_path, policy) as another:
        tokens, cached, errors = another.ready().ask()
    assert (tokens, cached, errors) == (plain, CACHED, [None] * 4)


def test_three_writers_at_once(tmp_path: Path, plain: list[list[int]]) -> None:
    """The same blocks, in the same moment, in a folder that is too small for all of them."""
    fill(tmp_path)
    limit = 6 * files(tmp_path)[0].stat().st_size
    options: Any = {"extra": {"max_bytes": limit}, "num_gpu_blocks": 13}
    with (
        engine(tmp_path, **options) as a,
        engine(tmp_path, **options) as b,
        engine(tmp_path, **options) as c,
    ):
        together = [each.ready() for each in (a, b, c)]
        for round_ in range(6):
            prompts = PROMPTS if round_ % 2 else [list(range(500 + round_, 580 + round_))]
            for each in together:
                each.send(prompts)
            answers = [each.answer() for each in together]
            for tokens, _, errors in answers:
                assert errors == [None] * len(prompts)
                assert tokens == (plain if round_ % 2 else answers[0][0])
        assert [each.end() for each in together] == [0, 0, 0]
    assert all_are_sound(tmp_path)
    assert sum(path.stat().st_size for path in files(tmp_path)) <= limit
