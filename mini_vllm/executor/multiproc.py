"""Several workers, each in a process of its own, on this machine.

One ring of shared memory tells them all what to do; each answers through a pipe. A thread reads
the pipes, and sleeps on the processes themselves: a death is noticed when it happens.

Source: vllm/v1/executor/multiproc_executor.py#L101-L534 (MultiprocExecutor) @ v0.22.1
"""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import pickle
import signal
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_EXCEPTION, Future
from concurrent.futures import wait as wait_for
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from mini_vllm.config import EngineConfig
from mini_vllm.core.scheduler_output import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from mini_vllm.distributed.parallel_state import STEP_SECONDS, Rendezvous, open_store
from mini_vllm.distributed.shm_broadcast import MessageQueue
from mini_vllm.errors import EngineDeadError
from mini_vllm.executor.base import GRACE_SECONDS, Executor, Method, most_batches
from mini_vllm.executor.functions import pack_function
from mini_vllm.executor.worker_process import Answer, Call, run_worker
from mini_vllm.platforms import platform_of

FELLOW_SECONDS = 0.3
"""How long to wait, after a rank has failed, for the death of another rank that caused the
failure."""
LEAVE_SECONDS = 4.0
"""How long a worker may take to end before it is made to."""


@dataclass(frozen=True)
class WorkerHandle:
    """The engine's end of one worker."""

    rank: int
    process: BaseProcess
    answers: Connection

    def __str__(self) -> str:
        return f"worker {self.rank} (pid {self.process.pid})"

    def last_words(self) -> str:
        """How it ended."""
        self.process.join(1.0)
        code = self.process.exitcode
        if code is not None and code < 0:
            return f"{self} was killed by signal {-code} ({_signal_name(-code)})"
        return f"{self} ended with exit code {code}"


class Answers:
    """Hands every answer to the call that waits for it, and notices when none can come any more.

    A thread of its own, so that Ctrl-C in the main thread never leaves half an answer in a pipe.
    It has no reference to the executor, which can be freed while it runs.

    Attributes:
        dead: why the engine is gone; None while it runs.
    """

    def __init__(self, workers: Sequence[WorkerHandle]) -> None:
        self.workers = workers
        self.dead: str | None = None
        self.closing = False
        self.tell: Callable[[str], None] = lambda reason: None
        self._lock = threading.Lock()
        self._expected: dict[tuple[int, int], Future[Any]] = {}
        """By number of the call, and rank."""
        self._deadlines: dict[int, float] = {}
        """Of steps, by number of the call."""
        threading.Thread(target=self._run, name="answers", daemon=True).start()

    def expect(self, number: int, seconds: float | None = None) -> list[Future[Any]]:
        """The answers of all ranks to a call that is about to be sent.

        Args:
            seconds: how long the engine can live without them; None: as long as the workers do.
        """
        futures: list[Future[Any]] = [Future() for _ in self.workers]
        with self._lock:
            if self.dead is not None:
                raise EngineDeadError(self.dead)
            self._expected |= {(number, rank): future for rank, future in enumerate(futures)}
            if seconds is not None:
                self._deadlines[number] = time.monotonic() + seconds
        return futures

    def forget(self, number: int) -> None:
        """This call is not waited for any more; what is still answered is dropped."""
        with self._lock:
            for rank in range(len(self.workers)):
                self._expected.pop((number, rank), None)
            self._deadlines.pop(number, None)

    def _run(self) -> None:
        by_source: dict[Any, WorkerHandle] = {}
        for worker in self.workers:
            by_source |= {worker.answers: worker, worker.process.sentinel: worker}
        while self.dead is None and not self.closing:
            for source in wait(list(by_source), timeout=1.0):
                worker = by_source[source]
                if source is not worker.answers:
                    self._worker_ended(worker)
                elif not self._read(worker):
                    del by_source[source]  # its process ends, too, and says how
            self._check_deadlines()

    def _read(self, worker: WorkerHandle) -> bool:
        try:
            message = worker.answers.recv_bytes()
        except (EOFError, OSError):
            return False
        try:
            answer: Answer = pickle.loads(message)
        except Exception as error:  # the call that it answers is unknown, and would wait for ever
            self.die(f"{worker} sent an answer that cannot be read: {error!r}; start a new engine")
            return True
        if answer.is_fatal:
            self._step_failed(worker, answer)
            return True
        with self._lock:
            future = self._expected.pop((answer.number, worker.rank), None)
            if not any(number == answer.number for number, _ in self._expected):
                self._deadlines.pop(answer.number, None)
        if future is not None and answer.error is not None:
            future.set_exception(answer.error)
        elif future is not None:
            future.set_result(answer.value)
        return True

    def _worker_ended(self, worker: WorkerHandle) -> None:
        while worker.answers.poll() and self._read(worker):
            pass  # answers that it sent before it ended
        if not self.closing:
            self.die(f"{worker.last_words()}; start a new engine")

    def _step_failed(self, worker: WorkerHandle, answer: Answer) -> None:
        """A rank has failed in a step: by its own fault, or because another rank is gone."""
        gone = wait([other.process.sentinel for other in self.workers], timeout=FELLOW_SECONDS)
        for other in self.workers:
            if other.process.sentinel in gone:
                self._worker_ended(other)
                return
        error = answer.error
        self.die(
            f"{worker} failed in a step: {type(error).__name__}: {error}{self._silent(worker)}; "
            "start a new engine"
        )

    def _silent(self, failed: WorkerHandle) -> str:
        """Names the ranks that have not answered: the failed rank may have waited for one of
        them."""
        with self._lock:
            ranks = {rank for _, rank in self._expected} - {failed.rank}
        others = [str(worker) for worker in self.workers if worker.rank in ranks]
        return f"; no answer yet from {', '.join(others)}" if others else ""

    def _check_deadlines(self) -> None:
        now = time.monotonic()
        with self._lock:
            late = [number for number, deadline in self._deadlines.items() if now > deadline]
            ranks = {rank for number, rank in self._expected if number in late}
        if late:
            silent = ", ".join(str(self.workers[rank]) for rank in sorted(ranks))
            self.die(f"{silent} did not answer sample_tokens in time; start a new engine")

    def die(self, reason: str) -> None:
        """Kill the workers, because live ones may hang for ever, and fail all calls that wait."""
        for worker in self.workers:
            worker.process.kill()
        stop(self.workers, LEAVE_SECONDS)
        with self._lock:
            self.dead = self.dead or reason
            waiting, self._expected, self._deadlines = list(self._expected.values()), {}, {}
        for future in waiting:
            future.set_exception(EngineDeadError(reason))
        if not self.closing:
            self.tell(reason)


def _signal_name(number: int) -> str:
    """Real-time signals have a number only."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return "real-time"


def stop(workers: Sequence[WorkerHandle], seconds: float) -> None:
    """Wait for the workers to end, then terminate them, then kill them: each step takes
    ``LEAVE_SECONDS`` at most."""
    for patience, push in ((seconds, "terminate"), (LEAVE_SECONDS, "kill"), (LEAVE_SECONDS, "")):
        deadline = time.monotonic() + patience
        for worker in workers:
            worker.process.join(max(deadline - time.monotonic(), 0.0))
        left = [worker for worker in workers if worker.process.is_alive()]
        if not left:
            break
        for worker in left if push else []:
            getattr(worker.process, push)()


class MultiprocExecutor(Executor):
    """Starts its workers, and sends every call to all of them in the same order.

    Args:
        replica: which of several engines on this machine this is: their devices are neighbours.

    Raises:
        ValueError: if there are fewer GPUs than workers.
    """

    def __init__(self, config: EngineConfig, replica: int = 0) -> None:
        parallel = config.parallel
        world_size = parallel.world_size
        _check_devices(config)
        _check_main_module()
        self.max_concurrent_batches = most_batches(config)
        self.output_rank = world_size - parallel.tensor_parallel_size
        step_seconds = parallel.distributed_timeout_seconds or STEP_SECONDS
        self._step_seconds = step_seconds + GRACE_SECONDS
        self._numbers = itertools.count()
        self._started: int | None = None
        self._queue = MessageQueue(world_size)
        self._store = open_store() if world_size > 1 else None
        rendezvous = Rendezvous("127.0.0.1", self._store.port) if self._store else None
        workers: list[WorkerHandle] = []
        try:
            for rank in range(world_size):
                index = replica * world_size + rank
                workers.append(_start(config, rank, rendezvous, index, self._queue))
        except BaseException:
            stop(workers, seconds=0.0)
            raise
        self.workers = workers
        self._answers = Answers(workers)
        # Forgotten or at the end of the program: the workers end with it.
        self._finalizer = weakref.finalize(self, _close, self._answers, self._queue, self._numbers)

    def collective_rpc(
        self,
        method: Method,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        number = next(self._numbers)
        packed = method if isinstance(method, str) else pack_function(method)
        futures = self._answers.expect(number)
        try:
            self._queue.enqueue(Call(number, packed, tuple(args), kwargs), timeout)
            done, _ = wait_for(futures, timeout, FIRST_EXCEPTION)
        finally:
            self._answers.forget(number)
        for future in futures:
            if future in done:
                future.result()  # raises what went wrong there
        late = [str(w) for w, f in zip(self.workers, futures, strict=True) if f not in done]
        if late:
            name = method if isinstance(method, str) else getattr(method, "__name__", method)
            raise TimeoutError(f"{', '.join(late)} did not answer {name} within {timeout} s")
        return [future.result() for future in futures]

    def execute_model(self, plan: SchedulerOutput) -> None:
        if self._answers.dead is not None:
            raise EngineDeadError(self._answers.dead)
        self._queue.enqueue(Call(next(self._numbers), "execute_model", (plan,)), self._step_seconds)

    def sample_tokens(self, masks: GrammarOutput | None) -> Future[ModelRunnerOutput]:
        number = next(self._numbers)
        futures = self._answers.expect(number, self._step_seconds)
        call = Call(number, "sample_tokens", (masks,), output_rank=self.output_rank)
        self._queue.enqueue(call, self._step_seconds)
        return futures[self.output_rank]

    def register_failure_callback(self, callback: Callable[[str], None]) -> None:
        self._answers.tell = callback
        if self._answers.dead is not None:
            callback(self._answers.dead)

    def shutdown(self) -> None:
        self._finalizer()


def _start(
    config: EngineConfig,
    rank: int,
    rendezvous: Rendezvous | None,
    device_index: int,
    queue: MessageQueue,
) -> WorkerHandle:
    """Start one worker. Spawned, not forked: a fork would copy threads' locks, and CUDA does not
    survive it."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(
        target=run_worker,
        args=(config, rank, rendezvous, device_index, queue.export_handle(), theirs),
        name=f"worker-{rank}",
        daemon=True,
    )
    process.start()
    theirs.close()  # or its end would not be the pipe's end
    return WorkerHandle(rank, process, ours)


def _close(answers: Answers, queue: MessageQueue, numbers: Any) -> None:
    """End the workers, by asking first."""
    answers.closing = True
    if answers.dead is None:
        with contextlib.suppress(TimeoutError):
            queue.enqueue(Call(next(numbers), "shutdown", ()), timeout=1.0)
        stop(answers.workers, LEAVE_SECONDS)
        answers.die("the engine was shut down")
    queue.close()


def _check_devices(config: EngineConfig) -> None:
    """Raises ValueError if there are fewer GPUs than workers."""
    wanted, num_workers = config.model.device, config.parallel.num_workers
    count = platform_of(wanted).device_count()
    if count == 0:  # all share one, or there is none, which a worker tells
        return
    if num_workers > 1 and ":" in wanted:
        raise ValueError(
            f"device is {wanted!r}, but there are {num_workers} workers; use "
            f"{wanted.partition(':')[0]!r}, each worker then takes a GPU of its own"
        )
    if count < num_workers:
        raise ValueError(
            f"{num_workers} workers need a GPU each; this machine has {count}; lower "
            "tensor_parallel_size, pipeline_parallel_size or data_parallel_size, or use "
            'device="cpu"'
        )


def _check_main_module() -> None:
    """Raises RuntimeError in a worker that imports its parent's script and would start workers
    itself."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise RuntimeError(
            "a worker imports the script that started it, and this script starts workers when it "
            'is imported; put its last lines under `if __name__ == "__main__":`'
        )
