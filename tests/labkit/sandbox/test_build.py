"""The ladder of isolation, rung by rung: whatever graded code does, the grader goes on, and nothing
secret was in its reach.

A rung that does not work here skips its tests and says why; such a test has not run.
"""

from __future__ import annotations

import ast
import contextlib
import os
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from labkit.course.manifest import Course, Phase
from labkit.course.root import HOME, find_root
from labkit.inside import child
from labkit.process.worker import Program, Worker, WorkerError
from labkit.sandbox import build as sandbox
from labkit.sandbox import isolation
from labkit.sandbox.build import Sandbox
from labkit.sandbox.isolation import LADDER, Rung
from tests.labkit.toy_course import ENGINE, make_course

SECONDS = 60.0
"""For an answer: far more than it takes, since a busy machine must not be taken for a hang."""
SHORT = 1.5
"""For an answer that will not come."""
HOSTILE = '''
import mmap, os, re, signal, socket, sys, threading, time

class Liar:
    def __eq__(self, other):
        return True
    __hash__ = None

def liar():
    return Liar()

def leave():
    os._exit(0)

def segfault():
    import ctypes
    ctypes.string_at(0)

def spin():
    while True:
        pass

def fork_many():
    for number in range(300):
        try:
            if os.fork() == 0:
                time.sleep(60)
                os._exit(0)
        except OSError:
            return number
    return number

def fork_storm():
    while True:
        try:
            os.fork()
        except OSError:
            pass

def daemon():
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    return "away"

def hoard():
    held = []
    while True:
        held.append(bytearray(64 << 20))

def hoard_shared():
    held = []
    while True:
        held.append(mmap.mmap(-1, 1 << 30))

def start_another():
    import subprocess
    subprocess.run([sys.executable, "-c", ""])

def uncounted_memory():
    """Names of the ways to memory that no limit counts which are open."""
    import ctypes
    libc = ctypes.CDLL(None)
    ways = {
        "memfd": lambda: os.memfd_create("x") >= 0,
        "segment": lambda: libc.shmget(0, 4096, 0o1600) >= 0,
        "mapping": lambda: mmap.mmap(-1, 1 << 20) is not None,
    }
    found = []
    for name, way in ways.items():
        try:
            found += [name] * way()
        except OSError:
            pass
    return found

def start_threads():
    seen = []
    threads = [threading.Thread(target=seen.append, args=(1,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return len(seen)

def kill_parent():
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(600)

def kill_all():
    os.kill(-1, signal.SIGKILL)
    return "alive"

def say(raw):
    """Write to every pipe that is open: one of them goes to the grader."""
    for number in range(3, 20):
        try:
            os.write(number, raw)
        except OSError:
            pass
    return "said"

def flood():
    while True:
        say(b"x" * 65536)

def look_for_the_number():
    frame = sys._getframe()
    while frame is not None:
        if "number" in frame.f_locals or "request" in frame.f_locals:
            return "found"
        frame = frame.f_back
    return "not found"

def shout():
    while True:
        os.write(2, b"noise " * 10000)

def deaf():
    """A match that takes for ever begins later, and never lets another thread go on."""
    threading.Timer(0.2, re.match, ("(a+)+b", "a" * 99)).start()
    return "heard"

def fill():
    for number in range(100):
        with open(f"{number}", "wb") as file:
            for _ in range(48):
                file.write(bytes(1 << 20))
    return number

def fill_with_names():
    for number in range(200_000):
        open(f"{number}", "w").close()
    return number

def dig():
    """Folders in folders, deeper than a path may be long."""
    for depth in range(3000):
        os.mkdir("d")
        os.chdir("d")
    return depth

def another_image():
    """Another program in the same process; a thread's has no parent whose end it would hear of."""
    code = "import time; time.sleep(600)"
    words = [sys.executable, "-I", "-S", "-c", code]
    threading.Thread(target=os.execve, args=(words[0], words, os.environ)).start()
    time.sleep(600)

def give_up_the_parent():
    import ctypes
    ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
    return "alone"

def lie_in_numbers():
    """So many numbers of one hash that a set of them takes minutes."""
    return [i * (2**61 - 1) for i in range(1, 50_000)]

def write_all(folder):
    found = []
    for path in (folder, "/", "/usr", "/tmp", sys.prefix, os.path.dirname(__file__)):
        try:
            open(os.path.join(path, "mine"), "w").close()
            found.append(path)
        except OSError:
            pass
    return found

def read(path):
    return open(path).read()

def connect(port):
    socket.create_connection(("127.0.0.1", port), 2).close()
    return "connected"

def world():
    return [dict(os.environ), list(sys.path), os.getcwd(), sys.flags.isolated, sys.flags.no_site]

def leave_a_mark():
    before = os.path.exists("mark")
    open("mark", "w").close()
    return before
'''


@pytest.fixture(scope="module")
def phase(tmp_path_factory: pytest.TempPathFactory) -> Phase:
    folder = tmp_path_factory.mktemp("course")
    folder.chmod(0o700)
    return make_course(folder).phase("0")


def python_for(rung: type[Rung], phase: Phase) -> str:
    """An interpreter that the rung can start, this one if possible; else a skip that says why."""
    reasons = []
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        try:
            sandbox.choose_rung(phase, rung.name, python)
            return python
        except ValueError as error:
            reasons.append(str(error))
    pytest.skip(f"not run: {' | '.join(reasons)}")


@pytest.fixture(params=list(LADDER))
def rung(request: pytest.FixtureRequest) -> type[Rung]:
    return LADDER[request.param]


def launcher(rung: type[Rung], phase: Phase, compiles: bool = False) -> Sandbox:
    text = (ENGINE + HOSTILE).encode()
    python = python_for(rung, phase)
    return Sandbox(phase, {phase.modules[0]: text}, rung, python, compiles=compiles)


@contextlib.contextmanager
def started(launcher: Sandbox) -> Iterator[Worker]:
    limits = child.Limits(seconds=SECONDS, memory_mb=256)
    with Worker(launcher.phase.root, {}, limits, "toy", launcher, SECONDS) as made:
        made.call("labkit.inside.basic:ping")
        yield made


@pytest.fixture
def worker(rung: type[Rung], phase: Phase) -> Iterator[Worker]:
    with started(launcher(rung, phase)) as made:
        yield made


@pytest.fixture
def compiler(rung: type[Rung], phase: Phase) -> Iterator[Worker]:
    """A worker that may start processes, as that of the kernel checker."""
    with started(launcher(rung, phase, compiles=True)) as made:
        yield made


@contextlib.contextmanager
def given_up_soon(worker: Worker) -> Iterator[None]:
    """In it an answer is not waited for long, but for the first of a fresh process."""
    usual, worker.limits = worker.limits, replace(worker.limits, seconds=SHORT)
    try:
        yield
    finally:
        worker.limits = usual


def call(worker: Worker, name: str, *args: Any) -> Any:
    program = Program()
    program.see(program.call(f"toy.fifo:{name}", *args))
    return worker.run(program)[0]


def only(rung: type[Rung], *names: str, why: str) -> None:
    if rung.name not in names:
        pytest.skip(f"not run: {why}")


def alive(scratch: str) -> list[int]:
    """Processes, other than this one, that were started with this home."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if f"HOME={scratch}\0".encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
    return found


def leave_a_daemon(worker: Worker) -> None:
    """Let graded code start a process that gets away from it."""
    answer = call(worker, "daemon")
    if answer == {"!raises": "BlockingIOError"}:
        pytest.skip("not run: processes outside of this container use up its user's limit")
    assert answer == "away"


def goes_on(worker: Worker) -> None:
    """The next request gets a fresh worker and a right answer."""
    assert call(worker, "clamp", 9, 3, 4) == 3


# ------------------------------------------------------------------ what it may do harm with
@pytest.mark.parametrize(
    ("name", "kinds"),
    [("leave", {"died"}), ("segfault", {"died"}), ("spin", {"hang"}), ("shout", {"hang"})],
)
def test_a_crash_or_a_hang_costs_one_request(worker: Worker, name: str, kinds: set[str]) -> None:
    soon = given_up_soon(worker) if "hang" in kinds else contextlib.nullcontext()
    begin = time.monotonic()
    with pytest.raises(WorkerError) as caught, soon:
        call(worker, name)
    assert caught.value.kind in kinds
    assert time.monotonic() - begin < SECONDS
    assert len(str(caught.value)) < 5000
    goes_on(worker)


@pytest.mark.parametrize("name", ["hoard", "hoard_shared"])
def test_a_memory_bomb_ends_in_its_own_process(worker: Worker, name: str) -> None:
    try:
        assert call(worker, name)["!raises"] in ("MemoryError", "OSError", "PermissionError")
    except WorkerError as error:
        assert error.kind in ("hang", "died")  # a slow machine, or the kernel was first
    goes_on(worker)


@pytest.mark.skipif(sys.platform != "linux", reason="not run: only Linux has such a filter")
def test_a_worker_is_one_process_whose_memory_is_counted(worker: Worker) -> None:
    for name in ("fork_many", "start_another"):
        assert call(worker, name) in (0, {"!raises": "PermissionError"})
    assert call(worker, "uncounted_memory") == []
    assert call(worker, "start_threads") == 8
    with pytest.raises(WorkerError, match="hang"), given_up_soon(worker):
        call(worker, "fork_storm")
    goes_on(worker)


@pytest.mark.serial
def test_a_fork_bomb_stops_at_the_limit(compiler: Worker, rung: type[Rung]) -> None:
    if rung.name == "plain" and os.getuid() == 0:
        pytest.skip("not run: root is not bound by RLIMIT_NPROC, and a plain child of root is root")
    # The limit counts all of the user's processes: others that end meanwhile would leave room.
    assert call(compiler, "fork_many") <= sandbox.TASKS
    compiler.close()
    goes_on(compiler)
    with pytest.raises(WorkerError, match=r"hang|died|garbage"), given_up_soon(compiler):
        call(compiler, "fork_storm")
    goes_on(compiler)


def test_no_process_outlives_its_worker(compiler: Worker, rung: type[Rung]) -> None:
    only(
        rung, "container", "namespaces", "other-uid",
        why="a plain child can leave its process group, and nothing finds it then",
    )  # fmt: skip
    (variables, *_) = call(compiler, "world")
    leave_a_daemon(compiler)
    compiler.close()
    deadline = time.monotonic() + 40
    while alive(variables["HOME"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(variables["HOME"]) == []


@pytest.mark.parametrize("name", ["another_image", "give_up_the_parent"])
def test_what_gives_up_its_parent_ends_with_its_worker(
    worker: Worker, rung: type[Rung], name: str
) -> None:
    (variables, *_) = call(worker, "world")
    with contextlib.suppress(WorkerError), given_up_soon(worker):
        assert call(worker, name) == "alone"
    worker.close()
    deadline = time.monotonic() + 120
    while alive(variables["HOME"]) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(variables["HOME"]) == []


KILLED = """
import sys
from pathlib import Path
from labkit.sandbox.build import environment
from labkit.sandbox.isolation import LADDER, View
rung, python, folder = LADDER[sys.argv[1]](), sys.argv[2], Path(sys.argv[3])
seen = View((Path(python).parents[1],), folder / "scratch", folder / "root")
code = "import ctypes, time; ctypes.CDLL(None).prctl(1, 0, 0, 0, 0); print(1, flush=True)"
words = [python, "-I", "-S", "-c", f"{rung.prologue()}\\n{code}\\ntime.sleep(600)"]
process = rung.start(words, environment(folder / "scratch"), seen)
process.stdout.readline()
print("up", flush=True)
sys.stdin.read()
"""


def test_what_gives_up_its_parent_ends_with_a_grader_that_is_killed(
    rung: type[Rung], phase: Phase, open_folder: Path
) -> None:
    only(rung, "container", "namespaces", why="a world of its own ends with its first process")
    for name in ("scratch", "root"):
        (open_folder / name).mkdir()
    words = [sys.executable, "-c", KILLED, rung.name, python_for(rung, phase), str(open_folder)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(words, cwd=HOME.parent, **pipes) as grader:  # type: ignore[call-overload]
        assert grader.stdout.readline() == b"up\n"
        assert alive(str(open_folder / "scratch"))
        grader.kill()
    deadline = time.monotonic() + 120
    while alive(str(open_folder / "scratch")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(str(open_folder / "scratch")) == []


def test_a_daemon_that_holds_the_pipes_does_not_stop_the_grader(compiler: Worker) -> None:
    leave_a_daemon(compiler)
    begin = time.monotonic()
    compiler.close()
    assert time.monotonic() - begin < 30
    goes_on(compiler)


@pytest.mark.parametrize("name", ["kill_parent", "kill_all"])
def test_the_grader_cannot_be_killed(worker: Worker, rung: type[Rung], name: str) -> None:
    only(
        rung, "container", "namespaces", "other-uid",
        why="a plain child may kill its parent, this pytest; test_cheats kills a real grader's",
    )  # fmt: skip
    with contextlib.suppress(WorkerError), given_up_soon(worker):
        call(worker, name)
    goes_on(worker)


@pytest.mark.parametrize(
    "raw",
    [
        b"not json\n",
        b"[" * 100_000 + b"\n",
        b'{"id": 99999999, "end": 1}\n',
        b'{"error": 5}\n',
        b'{"end": {"!array": ["|O", [1], ""]}}\n',
        b"\xff\xfe\x00\n",
        b'{"id": 1e999}\n',
        b"9" * 5000 + b"\n",
    ],
    ids=["text", "deep", "id", "error", "objects", "bytes", "inf", "digits"],
)
def test_a_garbage_answer_is_no_answer(phase: Phase, raw: bytes) -> None:
    box = Sandbox(phase, {phase.modules[0]: (ENGINE + HOSTILE).encode()}, LADDER["plain"])
    with Worker(phase.root, {}, child.Limits(SECONDS), "toy", box) as worker:
        with pytest.raises(WorkerError, match="garbage"):
            call(worker, "say", raw)
        goes_on(worker)


def test_a_flood_does_not_fill_the_grader(worker: Worker) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(WorkerError, match=r"garbage|hang"):
        call(worker, "flood")
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert grown < 400 << 10, f"{grown} KiB"
    goes_on(worker)


def test_the_name_of_a_question_is_not_on_the_stack(worker: Worker) -> None:
    """Without it a submission cannot answer in the runner's place."""
    assert call(worker, "look_for_the_number") == "not found"


def test_a_worker_that_does_not_read_does_not_block_the_grader(worker: Worker) -> None:
    assert call(worker, "deaf") == "heard"
    time.sleep(0.5)
    program = Program()
    program.see(program.call("builtins:len", "x" * (4 << 20)))
    with pytest.raises(WorkerError, match="hang"), given_up_soon(worker):
        for _ in range(100):  # it may not be deaf yet
            assert worker.run(program) == [4 << 20]
    goes_on(worker)


def test_folders_of_any_depth_are_cleared_away(worker: Worker) -> None:
    [(_, place)] = worker.launcher._places.values()  # type: ignore[attr-defined]
    folder = Path(place.name)
    assert call(worker, "dig") == 2999
    worker.close()
    assert not folder.exists()
    goes_on(worker)


def test_numbers_of_one_hash_are_garbage_in_a_list_too(worker: Worker) -> None:
    """A hidden test may make a set of what it gets."""
    with pytest.raises(WorkerError, match="garbage: 49999 keys of one hash"):
        call(worker, "lie_in_numbers")
    goes_on(worker)


def test_a_full_disk_is_its_own(worker: Worker, rung: type[Rung]) -> None:
    only(rung, "container", "namespaces", why="scratch is on the machine's disk on this rung")
    assert call(worker, "fill") == {"!raises": "OSError"}
    goes_on(worker)


def test_files_that_hold_nothing_have_a_limit(worker: Worker, rung: type[Rung]) -> None:
    """Each takes memory of the kernel, which no other limit counts."""
    only(rung, "namespaces", why="bubblewrap has no such option; elsewhere it is the disk")
    assert call(worker, "fill_with_names") == {"!raises": "OSError"}
    goes_on(worker)


# ------------------------------------------------------------------ what it may see
def test_an_object_that_equals_everything_is_only_its_name(worker: Worker) -> None:
    assert call(worker, "liar") == {"!type": "Liar"}


def test_secrets_are_not_there(worker: Worker, phase: Phase, rung: type[Rung]) -> None:
    only(rung, "container", "namespaces", "other-uid", why="a plain child reads what you can read")
    hidden = next(phase.hidden_tests.glob("test_*.py"))
    for secret in (hidden, phase.reference_file(phase.modules[0]), phase.root / "phases"):
        assert secret.exists()
        answer = call(worker, "read", str(secret))
        assert answer["!raises"] in ("FileNotFoundError", "PermissionError"), secret


def test_a_secret_below_something_shown_is_covered(tmp_path: Path) -> None:
    """As with a checkout in /usr/src, or a virtual environment inside a checkout."""
    for name in ("shown/secret", "shown/secret/venv", "scratch", "root"):
        (tmp_path / name).mkdir(parents=True)
    for name in ("shown/a", "shown/secret/b", "shown/secret/venv/c"):
        (tmp_path / name).write_text("text")
    tmp_path.chmod(0o755)
    python = os.path.realpath(sys.executable)
    readable = (Path(python).parents[1], tmp_path / "shown", tmp_path / "shown/secret/venv")
    secret = tmp_path / "shown" / "secret"
    seen = isolation.View(readable, tmp_path / "scratch", tmp_path / "root", (secret,))
    assert seen.hidden == [str(secret)]
    code = f"import os; os.chdir({str(tmp_path / 'shown')!r}); print(sorted(os.listdir('.')), "
    code += "os.listdir('secret'), os.listdir('secret/venv'))"
    ran = 0
    for rung in (isolation.Bubblewrap(), isolation.Namespaces()):
        if isolation.why_not(type(rung), isolation.View(readable[:1], *_empty(seen)), python):
            continue
        process = rung.start([python, "-I", "-S", "-c", code], {}, seen)
        out, err = process.communicate(timeout=300)
        rung.end(process)
        assert out.decode().strip() == "['a', 'secret'] ['venv'] ['c']", err
        ran += 1
    if not ran:
        pytest.skip("not run: neither bubblewrap nor namespaces work here")


def _empty(view: isolation.View) -> tuple[Path, Path]:
    return view.scratch, view.root


def test_it_writes_only_its_scratch_folder(worker: Worker, rung: type[Rung]) -> None:
    only(rung, "container", "namespaces", why="on this rung file modes alone protect files")
    assert call(worker, "write_all", os.path.expanduser("~")) == []


def test_there_is_no_network(worker: Worker, rung: type[Rung]) -> None:
    only(rung, "container", "namespaces", why="the network is open on this rung")
    with socket.create_server(("127.0.0.1", 0)) as server:
        answer = call(worker, "connect", server.getsockname()[1])
    assert answer["!raises"] in ("OSError", "ConnectionRefusedError")


def test_its_world_is_empty_and_the_same_everywhere(
    worker: Worker, phase: Phase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(phase.root))
    monkeypatch.setenv("PYTEST_ADDOPTS", "--collect-only")
    variables, path, folder, isolated, no_site = call(worker, "world")
    assert (isolated, no_site) == (1, 1)
    assert folder == variables["HOME"] == variables["TMPDIR"]
    extra = {child.LIMITS, "LC_CTYPE", "PWD"}
    assert set(variables) - extra == set(sandbox.environment(Path("x")))
    assert not [entry for entry in path if Path(entry).is_relative_to(phase.root)]


def test_nothing_stays_from_one_worker_to_the_next(worker: Worker) -> None:
    assert call(worker, "leave_a_mark") is False
    assert call(worker, "leave_a_mark") is True
    worker.close()
    assert call(worker, "leave_a_mark") is False


def test_the_engine_lacks_the_reference(phase: Phase, tmp_path: Path) -> None:
    (phase.root / "toy" / "__pycache__").mkdir(exist_ok=True)
    sandbox.build(tmp_path, phase, {phase.modules[0]: b"mine = 1\n"})
    files = {str(p.relative_to(tmp_path / "engine")) for p in tmp_path.glob("engine/**/*.py")}
    assert "toy/fifo.py" in files
    assert (tmp_path / "engine/toy/fifo.py").read_text() == "mine = 1\n"
    assert not list(tmp_path.rglob("__pycache__"))
    for file in tmp_path.rglob("*.py"):
        assert "both bounds count" not in file.read_text(), f"{file} holds the reference"


# ------------------------------------------------------------------ kernels
def imports_of(name: str) -> set[str]:
    """The files of labkit that a file of labkit imports when it is imported itself."""
    tree = ast.parse((HOME / name).read_text(encoding="utf-8"))
    found = set()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "labkit":
            for target in [f"{node.module}.{alias.name}" for alias in node.names] + [node.module]:
                path = "/".join(str(target).split(".")[1:])
                found |= {f for f in (f"{path}.py",) if (HOME / f).is_file()}
    return found


def test_a_kernels_worker_has_the_tools_that_it_needs_and_no_oracle() -> None:
    patterns = (*sandbox.TOOLS, *sandbox.KERNEL_TOOLS)
    given = {path.relative_to(HOME).as_posix() for path in sandbox.files_of(patterns)}
    for name in given:
        assert imports_of(name) <= given, name
    assert not [name for name in given if name.startswith("kernels/verdict/")]
    assert "kernels/check.py" not in given


@pytest.mark.slow
def test_the_kernel_checker_judges_on_every_rung(rung: type[Rung], tmp_path: Path) -> None:
    pytest.importorskip("triton", reason="not run: Triton exists on Linux only")
    from labkit.kernels.check import Checker

    for name in ("phases", "mini_vllm"):  # a checkout that is closed to other users
        shutil.copytree(find_root() / name, tmp_path / name)
    phase = Course(tmp_path).phase("07")
    files = {module: phase.reference_file(module) for module in phase.modules}
    box = Sandbox(phase, sandbox.declared(files), rung, python_for(rung, phase))
    right = next(path for path in files.values() if path.name == "fused.py")
    with Checker(workers=1, launcher=box.for_kernels) as checker:
        result = checker.check("silu_mul", right, seed=7, sample=2)
        assert result.score == 1.0, result.stages
        assert {stage.status for stage in result.stages} == {"passed"}


# ------------------------------------------------------------------ the ladder itself
def test_the_strongest_rung_is_taken_and_the_others_explained(phase: Phase) -> None:
    rung, reasons = sandbox.choose_rung(phase)
    names = list(LADDER)
    assert list(reasons) == names[: names.index(rung.name)]
    assert all(reasons.values())


def test_a_grader_with_closed_files_shuts_no_worker_out(
    rung: type[Rung], phase: Phase, tmp_path: Path
) -> None:
    """As in a grader's image, where root keeps the course to itself: the worker may be another
    user, and what it is shown must be readable all the same."""
    python = python_for(rung, phase)
    closed = make_course(tmp_path).phase("0")
    for path in tmp_path.rglob("*"):
        path.chmod(path.stat().st_mode & 0o700)
    limits = child.Limits(seconds=SECONDS, memory_mb=256)
    before = os.umask(0o077)
    try:
        assert sandbox.choose_rung(closed, rung.name, python)[0] is rung
        box = Sandbox(closed, {closed.modules[0]: (ENGINE + HOSTILE).encode()}, rung, python)
        with Worker(closed.root, {}, limits, "toy", box, SECONDS) as worker:
            assert call(worker, "clamp", 9, 3, 4) == 3
    finally:
        os.umask(before)


def test_a_rung_that_does_not_show_what_it_should_is_not_taken(
    rung: type[Rung], open_folder: Path
) -> None:
    """Its probe would come up, and every worker would die without a word of help."""
    only(rung, "other-uid", why="a rung that is the same user, or root's mount, reads it all")
    first, second, root, packages = (open_folder / name for name in ("1", "2", "root", "packages"))
    for folder in (first, second, root, packages):
        folder.mkdir()
    python = "/usr/bin/python3"
    seen = isolation.View((Path(python).parents[1], packages), first, root)
    if reason := isolation.why_not(rung, seen, python):
        pytest.skip(f"not run: {rung.name} does not work here: {reason}")
    seen = replace(seen, scratch=second)
    packages.chmod(0o700)
    assert isolation.why_not(rung, seen, python) == f"{packages} cannot be read"


LITTER = """
import os, sys
for folder in sys.argv[1:]:
    os.makedirs(folder + "/in/it")
    open(folder + "/in/file", "w").close()
    os.symlink("/etc", folder + "/link")
    os.chmod(folder + "/in", 0)
    os.chmod(folder, 0)
print("left")
"""


def test_what_another_user_leaves_in_open_folders_is_removed(
    rung: type[Rung], open_folder: Path
) -> None:
    only(rung, "other-uid", why="the other rungs have folders of their own, or the grader's user")
    first, root = open_folder / "scratch", open_folder / "root"
    for folder in (first, root):
        folder.mkdir()
    python = "/usr/bin/python3"
    seen = isolation.View((Path(python).parents[1],), first, root)
    if reason := isolation.why_not(rung, seen, python):
        pytest.skip(f"not run: {rung.name} does not work here: {reason}")
    name = f"left-by-{os.getpid()}"
    left = [os.path.join(folder, name) for folder in isolation.OPEN_FOLDERS]
    started = rung()
    process = started.start([python, "-I", "-S", "-c", LITTER, *left], {}, seen)
    try:
        assert process.stdout and process.stdout.readline() == b"left\n"
        assert all(map(os.path.lexists, left))
    finally:
        started.end(process)
        process.wait()
    assert not any(map(os.path.lexists, left)) and os.path.exists("/etc/passwd")


def test_a_rung_that_shows_a_secret_is_not_taken(
    phase: Phase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What counts is what the probe can read."""

    class Leaky(isolation.Plain):
        name, hides = "namespaces", True

    monkeypatch.setitem(LADDER, "namespaces", Leaky)
    with pytest.raises(ValueError, match=r"namespaces: .*\.py can be read|\.toml can be read"):
        sandbox.choose_rung(phase, "namespaces")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A temporary folder that another uid may enter; pytest's own lie in a closed one."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as name:
        os.chmod(name, 0o755)
        yield Path(name)


def test_a_virtual_environment_inside_the_checkout_betrays_nothing(
    rung: type[Rung], open_folder: Path
) -> None:
    """That is where `make setup` puts it: the checkout is hidden, its environment is not."""
    course, first, second, root = (open_folder / name for name in ("course", "1", "2", "root"))
    for folder in (course / ".venv" / "lib", first, second, root):
        folder.mkdir(parents=True)
    for file in (course / "answer.py", course / ".venv" / "lib" / "package.py"):
        file.write_text("text")
    course.chmod(0o711)
    (course / "answer.py").chmod(0o600)
    for python in (os.path.realpath(sys.executable), "/usr/bin/python3"):
        readable = (Path(python).parents[1], course / ".venv")
        if not isolation.why_not(rung, isolation.View(readable, first, root), python):
            seen = isolation.View(readable, second, root, secret=(course,))
            assert isolation.why_not(rung, seen, python) == ""
            return
    pytest.skip(f"not run: {rung.name} does not work here")


@pytest.mark.slow
@pytest.mark.serial
def test_a_worker_starts_fast(rung: type[Rung], phase: Phase) -> None:
    box = launcher(rung, phase)
    taken = []
    for _ in range(4):
        begin = time.monotonic()
        with Worker(phase.root, {}, child.Limits(20), "toy", box) as worker:
            assert worker.call("labkit.inside.basic:ping") == "pong"
            taken.append(time.monotonic() - begin)
    assert min(taken) < 1.5, taken
