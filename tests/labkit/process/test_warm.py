"""Forked children behave as real ones: words, environment, limits, exit codes, and their end."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from labkit.course.root import find_root
from labkit.inside import child
from labkit.inside.child import Limits
from labkit.process import overlay, warm
from labkit.process.worker import Worker, WorkerError

ROOT = find_root()
pytestmark = [
    pytest.mark.serial,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork"),
]


@pytest.fixture(scope="module", autouse=True)
def server() -> Iterator[None]:
    usual = child.spawn
    with warm.children():
        assert child.spawn is warm.spawn
        yield
    assert child.spawn is usual


def run(code: str, seconds: float = 60, **variables: str) -> child.Finished:
    env = overlay.environment(ROOT, {}) | variables
    return child.run(["-c", code], env, Limits(seconds), ROOT)


def test_words_environment_and_folder_arrive(tmp_path: Path) -> None:
    (tmp_path / "hello.py").write_text("import sys, os; print(sys.argv[1:], os.environ['NAME'])")
    env = overlay.environment(ROOT, {}) | {"NAME": "Ada"}
    done = child.run(["-m", "hello", "a", "b"], env, Limits(60), tmp_path)
    assert (done.code, done.stdout, done.stderr) == (0, "['a', 'b'] Ada\n", "")


@pytest.mark.parametrize(
    ("code", "status", "error"),
    [
        ("", 0, ""),
        ("import sys; sys.exit(3)", 3, ""),
        ("import sys; sys.exit('no')", 1, ""),
        ("1/0", 1, "ZeroDivisionError"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", -11, "Segmentation fault"),
    ],
)
def test_exit_codes(code: str, status: int, error: str) -> None:
    done = run(code)
    assert done.code == status
    assert error in done.stderr


def test_it_begins_without_the_engine_and_with_its_own_labkit() -> None:
    done = run(
        "import sys; print(sorted(n for n in sys.modules if n.startswith(('mini_vllm', 'tests'))),"
        " 'torch' in sys.modules)"
    )
    assert done.stdout == "[] True\n"


def test_an_overlay_is_in_place(tmp_path: Path) -> None:
    file = tmp_path / "request.py"
    file.write_text("mine = True\n")
    env = overlay.environment(ROOT, {"mini_vllm.request": str(file)})
    done = child.run(["-c", "import mini_vllm.request as r; print(r.mine)"], env, Limits(60), ROOT)
    assert done.stdout == "True\n"


def test_an_endless_loop_is_asked_where_it_stands_and_ended() -> None:
    done = run("def stuck():\n    while True: pass\nstuck()", seconds=5)
    assert done.timed_out
    assert "in stuck" in done.stderr


def test_threads_are_waited_for_and_idle_pools_end() -> None:
    """An idle thread of a pool that is still referenced waits for ever unless it is told to end."""
    code = """
        import concurrent.futures, threading, time
        threading.held = concurrent.futures.ThreadPoolExecutor()
        threading.held.submit(time.sleep, 0).result()
        threading.Thread(target=lambda: (time.sleep(0.2), print("last words"))).start()
    """
    done = run(textwrap.dedent(code))
    assert (done.code, done.stdout) == (0, "last words\n"), done


def test_limits_bind() -> None:
    env = overlay.environment(ROOT, {})
    words = ["-c", "bytearray(4 << 30)"]
    assert "MemoryError" in child.run(words, env, Limits(60, memory_mb=2048), ROOT).stderr


def test_children_of_children_are_forked_too() -> None:
    code = (
        "from labkit.inside import child; from labkit.process import overlay;"
        "from pathlib import Path;"
        "words = ['-c', 'import sys; print(1 + 1, \"torch\" in sys.modules)'];"
        "done = child.run(words, overlay.environment(Path('.'), {}), child.Limits(60));"
        "print(done.stdout, done.code)"
    )
    assert run(code).stdout == "2 True\n 0\n"


def test_a_worker_answers_and_dies() -> None:
    with Worker(ROOT, {}) as worker:
        assert worker.call("labkit.inside.basic:warm", packages=[]) is None
        worker._process.kill()
        with pytest.raises(WorkerError, match="exit code -9"):
            worker.call("labkit.inside.basic:warm", packages=[])


def test_another_program_is_refused() -> None:
    with pytest.raises(ValueError, match="only this Python"):
        warm.spawn(["/bin/true"], {})
    with pytest.raises(ValueError, match="user 1000"):
        warm.spawn([sys.executable, "-c", ""], {}, uid=1000)
