"""The worker: plain observations from a child, whatever the child does."""

from __future__ import annotations

import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.course.root import ROOT
from labkit.inside import child, plain
from labkit.inside.timeouts import Patience
from labkit.judge.hidden_suite import run_hidden
from labkit.process import overlay
from labkit.process.worker import Program, Worker, WorkerError
from tests.labkit.toy_course import make_course, rewrite, solve, write

SECONDS = 60.0
"""For an answer: far more than it takes, since a busy machine must not be taken for a hang."""
ODD = '''
"""Things that a worker must survive."""

import os
import sys
import time

import numpy as np


class Liar:
    def __eq__(self, other):
        return True


class Five(int):
    pass


def liar():
    return Liar()


def five():
    return Five(5)


def spin():
    while True:
        pass


def leave():
    os._exit(0)


def shout():
    print('{"id": 1, "end": "forged"}', flush=True)
    sys.__stdout__.write("more\\n")
    os.write(1, b"raw\\n")
    return "honest"


def forge():
    for number in range(3, 20):
        try:
            os.write(number, b'not json\\n')
        except OSError:
            pass
    return "done"


def hoard():
    return bytearray(8 << 30)


def array(n):
    return np.arange(n, dtype=np.float32).reshape(2, -1), n


def deep():
    items = []
    items.append(items)
    return items


def read():
    return sys.stdin.read()


def fork():
    if os.fork() == 0:
        time.sleep(600)
    return "forked"


class Coy(type):
    def __getattribute__(cls, name):
        raise SystemExit(name)


class Speechless(BaseException):
    def __str__(self):
        raise self


class Nameless(BaseException, metaclass=Coy):
    pass


class Mild(Exception, metaclass=Coy):
    pass


def throw(name):
    raise {"Long": type("N" * 10**7, (BaseException,), {})}.get(name) or globals()[name]
'''


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("toy")
    make_course(folder)
    write(folder, "toy/odd.py", ODD)
    return folder


@pytest.fixture(scope="module")
def worker(root: Path) -> Iterator[Worker]:
    limits = child.Limits(seconds=SECONDS, memory_mb=1024)
    with Worker(root, {}, limits, "toy") as made:
        yield made


def call(worker: Worker, name: str, *args: Any) -> Any:
    program = Program()
    program.see(program.call(f"toy.odd:{name}", *args))
    return worker.run(program)[0]


def test_a_program_gives_its_observations_in_order(worker: Worker) -> None:
    program = Program()
    fifo = program.new("toy.fifo:Fifo")
    for item in (4, 5, 6):
        fifo.push(item)
    program.see(fifo.head)
    program.see(fifo.drain(number=2))
    program.see(fifo.items[0])
    program.see([fifo.head, (fifo.head, {"head": fifo.head})])
    program.see_each([program.name("os:curdir"), "x"], "__class__")
    assert worker.run(program)[:4] == [4, [4, 5], 6, [6, (6, {"head": 6})]]


def test_a_step_that_raises_ends_the_program(worker: Worker) -> None:
    program = Program()
    fifo = program.new("toy.fifo:Fifo")
    program.see(1)
    fifo.no_such_method()
    program.see(2)
    assert worker.run(program) == [1, {"!raises": "AttributeError"}]


def test_an_observation_is_of_its_moment(worker: Worker) -> None:
    """What is seen before a change is not what is there after it: lists, dictionaries, arrays."""
    program = Program()
    made = [program.call("builtins:list", [1, [2]]), program.call("builtins:dict", {"a": 1})]
    array = program.call("numpy:zeros", 2)
    program.see([*made, array])
    made[0][1].append(3)
    made[1].update({"a": 2})
    array.fill(7)
    program.see([*made, array])
    before, after = worker.run(program)
    assert (*before[:2], before[2].tolist()) == ([1, [2]], {"a": 1}, [0, 0])
    assert (*after[:2], after[2].tolist()) == ([1, [2, 3]], {"a": 2}, [7, 7])


def test_only_exact_builtins_come_back(worker: Worker) -> None:
    assert call(worker, "liar") == {"!type": "Liar"}
    assert call(worker, "five") == {"!type": "Five"}
    assert call(worker, "hoard") in ({"!raises": "MemoryError"}, {"!type": "bytearray"})


def test_arrays_travel_both_ways(worker: Worker) -> None:
    matrix, size = call(worker, "array", 6)
    assert (matrix.dtype, matrix.shape, size) == (np.float32, (2, 3), 6)
    program = Program()
    program.see(program.call("numpy:sum", np.ones(7, dtype=np.int64)).item())
    assert worker.run(program) == [7]


def test_prints_and_forged_answers_are_not_answers(worker: Worker) -> None:
    assert call(worker, "shout") == "honest"
    assert call(worker, "read") == ""
    with pytest.raises(WorkerError) as caught:
        call(worker, "forge")
        call(worker, "shout")
    assert caught.value.kind in ("garbage", "died")
    assert call(worker, "shout") == "honest", "the next request gets a fresh child"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Speechless", ("Speechless", "its __str__ raises Speechless")),
        ("Nameless", ("Nameless", "")),
        ("Long", ("N" * 100, "")),
    ],
)
def test_an_exception_that_cannot_be_described_is_one(
    worker: Worker, name: str, said: tuple[str, str]
) -> None:
    """Its class may be the learner's. The answer comes at once, and not when the time is over."""
    with pytest.raises(WorkerError) as caught:
        call(worker, "throw", name)
    assert caught.value.kind == "error"
    assert (caught.value.detail["type"], caught.value.detail["message"]) == said
    assert call(worker, "throw", "Mild") == {"!raises": "Mild"}


def test_what_leaves_no_answer_ends_the_child(worker: Worker) -> None:
    """A step never raises; if it does, its answer is not waited for."""
    program = Program()
    steps = program.call("importlib:import_module", "labkit.inside.steps")
    broken = program.call("operator:attrgetter", "no.such")
    program.call("builtins:setattr", steps, "written", broken)
    program.see(1)
    with pytest.raises(WorkerError) as caught:
        worker.run(program)
    assert caught.value.kind == "died"
    assert call(worker, "read") == ""


def test_a_hang_is_reported_with_its_stack_and_not_waited_for(
    worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert call(worker, "five") == {"!type": "Five"}
    monkeypatch.setattr(worker, "limits", replace(worker.limits, seconds=1.5))
    begin = time.monotonic()
    with pytest.raises(WorkerError, match=r"hang.*no answer after 1.5 s") as caught:
        call(worker, "spin")
    assert "in spin" in str(caught.value)
    assert time.monotonic() - begin < 30
    monkeypatch.undo()
    assert call(worker, "five") == {"!type": "Five"}


def test_a_child_that_leaves_is_reported(worker: Worker) -> None:
    with pytest.raises(WorkerError, match="died: exit code 0"):
        call(worker, "leave")


def test_a_value_that_holds_itself_is_an_error_not_a_crash(worker: Worker) -> None:
    with pytest.raises(WorkerError, match="PlainError: nested deeper"):
        call(worker, "deep")


def test_grandchildren_end_with_the_worker(root: Path) -> None:
    with Worker(root, {}, child.Limits(SECONDS), "parent") as made:
        assert call(made, "fork") == "forked"
        group = made._process.pid
    with pytest.raises(ProcessLookupError):
        for _ in range(600):
            os.killpg(group, 0)
            time.sleep(0.1)


ENDLESS = """
import os, sys, time
from pathlib import Path
from labkit.inside import child
from labkit.process import overlay

env = overlay.environment(Path(sys.argv[1]), {})
code = "import os; print(os.getpid(), flush=True)\\nwhile True: pass"
process = child.start(["-c", code], env, child.Limits(600))
print(process.stdout.readline().decode().strip(), flush=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a child ends with its input")
def test_a_grader_that_is_killed_leaves_no_process(root: Path) -> None:
    """Its child is in an endless loop and asks nothing; the kernel ends it."""
    words = [sys.executable, "-c", ENDLESS, str(root)]
    grader = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert grader.stdout is not None
    number = int(grader.stdout.readline())
    assert alive(number)
    grader.kill()
    grader.wait()
    deadline = time.monotonic() + 60
    while alive(number) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(number)


def alive(number: int) -> bool:
    """Whether a process runs; one that has ended and waits to be asked for its code does not."""
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_learner_and_reference_are_two_processes(tmp_path: Path) -> None:
    course = make_course(tmp_path)
    solve(course)
    rewrite(course, "clamp", "return 99")
    program = Program()
    program.see(program.call("toy.fifo:clamp", 5, 3, 4))
    mapping = overlay.mapping_for(course.ready, "labs")
    with Worker(tmp_path, mapping, name="labs") as labs, Worker(tmp_path, {}, name="ref") as ref:
        assert (labs.run(program), ref.run(program)) == ([99], [3])


def test_hidden_tests_judge_learner_reference_and_mutants(tmp_path: Path) -> None:
    phase = make_course(tmp_path).phase("0")
    green = run_hidden(phase, {}, seed=0)
    assert [t.outcome for t in green.tests] == ["passed", "passed"], green
    red = run_hidden(phase, overlay.mapping_for([phase], "labs"), seed=0)
    assert [t.outcome for t in red.tests] == ["failed", "failed"], red


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.text()
    | st.binary()
    | st.floats(allow_nan=False),
    lambda inner: (
        st.lists(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers(), inner)
    ),
    max_leaves=20,
)


@settings(deadline=None, max_examples=100, derandomize=True)
@given(JSON)
def test_plain_data_survives_the_journey(value: Any) -> None:
    assert plain.decode(json.loads(json.dumps(plain.encode(value)))) == value


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"!array": ["|O", [1], "AAAAAAAAAAA="]}, "numbers only"),
        ({"!array": ["<f4", [3], "AAAAAA=="]}, "wrong data: cannot reshape"),
        ({"!array": ["<f4", [10**15], ""]}, "wrong data"),
        ({"!array": ["<f4", [0, 10**30], ""]}, "wrong data"),
        ({"!array": "nonsense"}, "wrong data"),
        ({"!tuple": 5}, "wrong data"),
        ({"!bytes": ["ff"]}, "wrong data"),
        ({"!set": [[]]}, "unhashable"),
    ],
)
def test_marks_without_their_data_are_refused(data: Any, message: str) -> None:
    with pytest.raises(plain.PlainError, match=message):
        plain.decode(data)


def test_an_array_of_objects_is_only_a_name() -> None:
    assert plain.encode(np.array([object()], dtype=object)) == {"!type": "ndarray"}


def test_dicts_of_the_standard_library_arrive_as_what_they_equal() -> None:
    class Mine(dict):  # type: ignore[type-arg]
        pass

    pairs = {"ada": 1, 2: [b"x"]}
    for library in (
        Counter({"a": 2}),
        OrderedDict(pairs),
        defaultdict(list, pairs),
        defaultdict(int),
    ):
        arrived = plain.decode(json.loads(json.dumps(plain.encode(library))))
        assert type(arrived) is dict and arrived == library
    assert plain.encode(Mine(pairs)) == {"!type": "Mine"}


def test_sets_of_numbers_with_one_hash_are_refused_at_once() -> None:
    """Numbers 2^61 - 1 apart have one hash; a set of many takes minutes to build."""
    collide = [i * (2**61 - 1) for i in range(100_000)]
    begin = time.process_time()
    for data in ({"!set": collide}, {"!dict": [[key, 0] for key in collide]}):
        with pytest.raises(plain.PlainError, match="one hash"):
            plain.decode(data)
    assert time.process_time() - begin < 10
    assert plain.decode(plain.encode(set(range(50_000)))) == set(range(50_000))


def test_tuples_and_lists_of_one_hash_are_refused_too() -> None:
    """-1 and -2 have one hash, and so have all tuples of them, which a test may make of lists."""
    rows = list(itertools.product((-1, -2), repeat=12))
    for data in (rows, [list(row) for row in rows], {"a": [[rows]]}):
        with pytest.raises(plain.PlainError, match="one hash"):
            plain.decode(plain.encode(data))
    honest = [[i, -1, True, 0.5, None, "x", [i]] for i in range(5000)] + [[-1]] * 5000
    assert plain.decode(plain.encode(honest)) == honest


def test_a_size_is_asked_before_anything_is_copied() -> None:
    """Of all that a value holds, and of a tensor whose elements lie in one place."""
    wide = torch.zeros(1, dtype=torch.bfloat16).expand(10**11)
    deep: Any = [0] * 1000
    for _ in range(9):
        deep = [deep] * 1000
    held = ["x" * 10**6] * 100
    begin = time.process_time()
    for value in (wide, np.broadcast_to(np.int8(0), 10**11), deep, held, {"y": held}):
        with pytest.raises(plain.TooLarge, match="are read of one value"):
            plain.encode(value)
    assert time.process_time() - begin < 20


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="nothing can stand still here")
def test_the_time_in_which_all_processes_are_stopped_does_not_count(root: Path) -> None:
    """A container that is paused, and goes on: what the child was asked, it still answers."""
    program = (
        "import sys\nfrom pathlib import Path\nfrom labkit.inside import child\n"
        "from labkit.process.worker import Program, Worker\n"
        "with Worker(Path(sys.argv[1]), {}, child.Limits(6.0), 'toy', None, 60.0) as worker:\n"
        "    worker.call('labkit.inside.basic:ping')\n"
        "    print(worker._process.pid, flush=True)\n"
        "    p = Program()\n    p.call('time:sleep', 1.0)\n    worker.run(p)\n"
        "    print('answered', flush=True)\n"
    )
    words = [sys.executable, "-c", program, str(root)]
    parent = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    assert parent.stdout is not None
    asked = int(parent.stdout.readline())
    # The waiting parent stops first and goes on last, so it never waits for a stopped child.
    for number in (parent.pid, asked):
        os.kill(number, signal.SIGSTOP)
    time.sleep(8)
    for number in (asked, parent.pid):
        os.kill(number, signal.SIGCONT)
    assert parent.communicate(timeout=300)[0] == "answered\n"


def test_an_answer_in_pieces_has_the_time_of_one_answer() -> None:
    """Each piece comes in time, and the whole would never be there."""

    slow: Any = Worker(Path(), {}, child.Limits(seconds=0.6))
    slow._process, slow._stderr = object(), type("Tail", (), {"text": lambda self: ""})()
    slow._lines, slow.patience = queue.Queue(), Patience(0.6)
    slow.launcher = type("Launcher", (), {"ask": lambda self, process: None})()
    over = threading.Event()

    def feed() -> None:
        while not over.wait(0.05):
            slow._lines.put(b"x\n")

    threading.Thread(target=feed, daemon=True).start()
    with pytest.raises(WorkerError, match=r"no answer after 0\.6 s"):
        while True:
            slow._next_line()
    over.set()


REFUSALS = [
    ("ValueError", "", "float", "x", None),
    ("ValueError", "convert .* to float", "float", "x", None),
    ("ValueError", "another reason", "float", "x", {"!raises": "ValueError"}),
    ("LookupError", "", "float", "x", {"!raises": "ValueError"}),
    ("Exception", "", "float", "x", None),
    ("ValueError", "", "float", 1.5, {"!returned": 1.5}),
]


@pytest.mark.parametrize(("error", "says", "function", "argument", "wrong"), REFUSALS)
def test_what_must_be_refused_is_told_and_judged_here(
    worker: Worker, error: str, says: str, function: str, argument: Any, wrong: Any
) -> None:
    """The worker is not told which exception is right, so nothing there can say that it was."""
    program = Program()
    program.see(1)
    program.refuse(error, program.name(f"builtins:{function}"), argument, says=says)
    program.see(2)
    assert error not in str(program.steps)
    assert worker.run(program) == ([1, 2] if wrong is None else [1, wrong])


@pytest.mark.parametrize(
    "target", ["unittest:TestCase", "torch:equal", "torch:Tensor.allclose", "numpy.testing:x"]
)
def test_a_program_compares_nothing_in_the_worker(target: str) -> None:
    for note in (Program().new, Program().call, Program().name):
        with pytest.raises(ValueError, match="compare"):
            note(target)
