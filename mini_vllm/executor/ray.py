"""Workers on several machines, with Ray: it finds the machines, starts processes there, and reports
when one dies. The workers exchange tensors without Ray, over gloo or NCCL.

::

    engine ── actor calls ──► [ Worker 0 ][ Worker 1 ]   machine A
                         └──► [ Worker 2 ][ Worker 3 ]   machine B
                                    └── gloo / NCCL ──┘

Source: vllm/v1/executor/ray_executor_v2.py#L205-L428 (RayExecutorV2) @ v0.22.1
"""

from __future__ import annotations

import functools
import logging
import math
import os
import sys
import textwrap
import threading
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from mini_vllm.config import EngineConfig
from mini_vllm.core.scheduler_output import GrammarOutput, ModelRunnerOutput, SchedulerOutput
from mini_vllm.distributed.parallel_state import STEP_SECONDS
from mini_vllm.errors import EngineDeadError
from mini_vllm.executor.base import GRACE_SECONDS, Executor, Method, most_batches
from mini_vllm.executor.functions import pack_function
from mini_vllm.executor.ray_worker import RayWorker
from mini_vllm.extras import from_extra
from mini_vllm.platforms import platform_of

ROOT = Path(__file__).parents[2]
PLACEMENT_SECONDS = 60
"""How long the cluster may take to find room for the workers."""
LOOK_SECONDS = 1.0
"""Between two looks at the clock, and at actors that have no call under way."""
FELLOW_SECONDS = 2.0
"""How long to wait, after a rank has failed, for the report of a dead rank that caused the
failure."""
ACCOUNT_CHARS = 500
"""How much is repeated of Ray's message about a death; the rest of it is general advice."""
PASSED_ON = ("LABKIT_OVERLAY", "HF_HOME", "OMP_NUM_THREADS", "GLOO_SOCKET_IFNAME", "NCCL_DEBUG")
"""Variables of this process that the workers get before their Python starts."""


class RayExecutor(Executor):
    """One actor a worker, in a placement group.

    The cluster is that of ``RAY_ADDRESS``, or the one that this machine belongs to, or else one of
    this machine alone, which ends with the executor.

    Raises:
        ValueError: if Ray is not installed, or the cluster is too small.
    """

    def __init__(self, config: EngineConfig) -> None:
        ray = import_ray()
        parallel = config.parallel
        self.max_concurrent_batches = most_batches(config)
        self.output_rank = parallel.world_size - parallel.tensor_parallel_size
        step_seconds = parallel.distributed_timeout_seconds or STEP_SECONDS
        is_ours = _connect(ray, parallel.num_workers)
        self._pending = Pending(step_seconds + GRACE_SECONDS)
        group = None
        try:
            group = _reserve(ray, config)
            self.actors, pids = _start(ray, config, group)
        except BaseException:
            _close(ray, self._pending, [], group, is_ours)
            raise
        self._pending.actors, self._pending.pids = self.actors, pids
        self._finalizer = weakref.finalize(
            self, _close, ray, self._pending, self.actors, group, is_ours
        )

    def collective_rpc(
        self,
        method: Method,
        timeout: float | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        ray = import_ray()
        self._pending.check()
        packed = method if isinstance(method, str) else pack_function(method)
        refs = [actor.call.remote(packed, tuple(args), kwargs) for actor in self.actors]
        try:
            return ray.get(refs, timeout=timeout)
        except ray.exceptions.GetTimeoutError as error:
            done, _ = ray.wait(refs, num_returns=len(refs), timeout=0)
            late = [f"worker {rank}" for rank, ref in enumerate(refs) if ref not in done]
            name = method if isinstance(method, str) else getattr(method, "__name__", method)
            raise TimeoutError(
                f"{', '.join(late)} did not answer {name} within {timeout} s"
            ) from error
        except ray.exceptions.RayTaskError as error:
            raise error.cause from None
        except ray.exceptions.RayError as error:
            raise EngineDeadError(self._pending.die_of(refs, error)) from error

    def execute_model(self, plan: SchedulerOutput) -> None:
        self._pending.check()
        self._pending.watch([actor.execute_model.remote(plan) for actor in self.actors])

    def sample_tokens(self, masks: GrammarOutput | None) -> Future[ModelRunnerOutput]:
        self._pending.check()
        refs = [
            actor.sample_tokens.remote(masks, rank == self.output_rank)
            for rank, actor in enumerate(self.actors)
        ]
        return self._pending.watch(refs)[self.output_rank]

    def register_failure_callback(self, callback: Callable[[str], None]) -> None:
        self._pending.tell = callback
        if self._pending.dead is not None:
            callback(self._pending.dead)

    def shutdown(self) -> None:
        self._pending.close()
        self._pending.dead = self._pending.dead or "the engine was shut down"
        self._finalizer()


class Pending:
    """Steps in flight. A failure in one of them, on any rank, fails all calls that wait.

    A rank that is stopped reports no failure, and a rank that dies between two steps fails no step.
    So a thread checks the deadlines, and pings workers that are idle.

    Args:
        seconds: how long the engine can live without the answers to a step.

    Attributes:
        dead: why the engine is gone; None while it runs.
    """

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self.dead: str | None = None
        self.actors: Sequence[Any] = ()
        self.pids: Sequence[int] = ()
        self.tell: Callable[[str], None] = lambda reason: None
        self._lock = threading.Lock()
        self._waiting: dict[Future[Any], tuple[int, float]] = {}
        """Each with its rank and its deadline."""
        self._closing = threading.Event()
        threading.Thread(target=self._look_at_the_clock, daemon=True).start()

    def check(self) -> None:
        if self.dead is not None:
            raise EngineDeadError(self.dead)

    def watch(self, refs: Sequence[Any], seconds: float | None = None) -> list[Future[Any]]:
        """A future for each reference, that is done at the latest when the engine is dead."""
        answers: list[Future[Any]] = [Future() for _ in refs]
        deadline = time.monotonic() + (self.seconds if seconds is None else seconds)
        with self._lock:
            self._waiting |= {answer: (rank, deadline) for rank, answer in enumerate(answers)}
        for ref, answer in zip(refs, answers, strict=True):
            ref.future().add_done_callback(
                lambda done, answer=answer: self._take(done, answer, refs)
            )
        return answers

    def _take(self, done: Future[Any], answer: Future[Any], refs: Sequence[Any]) -> None:
        error = done.exception()
        if error is not None:  # in another thread: Ray's own must not wait for Ray
            threading.Thread(target=self.die_of, args=(refs, error), daemon=True).start()
            return
        with self._lock:
            is_wanted = self._waiting.pop(answer, None) is not None
        if is_wanted:
            answer.set_result(done.result())

    def _look_at_the_clock(self) -> None:
        while self.dead is None and not self._closing.wait(LOOK_SECONDS):
            now = time.monotonic()
            with self._lock:
                late = {rank for rank, deadline in self._waiting.values() if now > deadline}
                is_idle = not self._waiting
            if is_idle:  # an actor that loads for an hour answers only after that
                self.watch([actor.place.remote() for actor in self.actors], math.inf)
            if late:
                who = ", ".join(f"worker {rank} (pid {self.pids[rank]})" for rank in sorted(late))
                self.die(functools.partial("{} did not answer a step in time".format, who))

    def die_of(self, refs: Sequence[Any], error: BaseException) -> str:
        """End everything because one of these calls has failed; returns the reason."""
        return self.die(lambda: _failed_worker(import_ray(), self.actors, self.pids, refs, error))

    def die(self, why: Callable[[], str]) -> str:
        """End everything; returns the reason ``why()``, or that of an earlier end."""
        ray = import_ray()
        with self._lock:
            if self.dead is None:
                self.dead = f"{why()}; start a new engine"
            waiting, self._waiting = self._waiting, {}
        for actor in self.actors:
            ray.kill(actor)
        for answer in waiting:
            answer.set_exception(EngineDeadError(self.dead))
        if not self._closing.is_set():
            self.tell(self.dead)
        return self.dead

    def close(self) -> None:
        self._closing.set()


def _failed_worker(
    ray: Any, actors: Sequence[Any], pids: Sequence[int], refs: Sequence[Any], error: BaseException
) -> str:
    """Which worker caused a failure: a dead one rather than one that noticed the death.

    So all workers are pinged; for a dead one Ray answers with an error. Ray's message is all that
    is known about the cause of a death.
    """
    signs = [actor.place.remote() for actor in actors]
    heard, _ = ray.wait(signs, num_returns=len(signs), timeout=FELLOW_SECONDS)
    for rank, death in _failures(ray, signs).items():
        if isinstance(death, ray.exceptions.RayActorError):
            account = textwrap.shorten(str(death), ACCOUNT_CHARS, placeholder=" ...")
            return f"worker {rank} (pid {pids[rank]}) has died: {account}"
    rank, cause = next(iter(_failures(ray, refs).items()), (0, error))
    cause = getattr(cause, "cause", None) or cause
    silent = [r for r, sign in enumerate(signs) if sign not in heard and r != rank]
    others = ", ".join(f"worker {r} (pid {pids[r]})" for r in silent)
    return f"worker {rank} (pid {pids[rank]}) failed in a step: {type(cause).__name__}: {cause}" + (
        f"; no answer yet from {others}" if others else ""
    )


def _failures(ray: Any, refs: Sequence[Any]) -> dict[int, BaseException]:
    """What has failed of these calls by now, by rank."""
    done, _ = ray.wait(list(refs), num_returns=len(refs), timeout=0)
    failed: dict[int, BaseException] = {}
    for rank, ref in enumerate(refs):
        if ref in done:
            try:
                ray.get(ref)
            except Exception as error:
                failed[rank] = error
    return failed


def import_ray() -> Any:
    """Raises ValueError, with what to install, if there is no Ray."""
    purpose = "distributed_executor_backend='ray'"
    with from_extra("distributed", purpose, "use 'mp' on one machine"):
        import ray
    return ray


def _connect(ray: Any, num_workers: int) -> bool:
    """Join a cluster; True if it was started for us."""
    if ray.is_initialized():
        return False
    quiet = {"logging_level": logging.ERROR, "log_to_driver": False, "include_dashboard": False}
    address = os.environ.get("RAY_ADDRESS")
    if address:
        try:
            ray.init(address=address, logging_level=logging.ERROR)
        except ConnectionError as error:
            raise ValueError(
                f"no Ray cluster answers at RAY_ADDRESS={address}; start one with `ray start "
                "--head`, or unset it"
            ) from error
        return False
    try:
        ray.init(address="auto", logging_level=logging.ERROR)
    except ConnectionError:  # this machine belongs to none
        ray.init(num_cpus=max(num_workers, os.cpu_count() or 1), **quiet)
        return True
    return False


def _reserve(ray: Any, config: EngineConfig) -> Any:
    """Room for all workers at once, on as few machines as possible.

    Raises:
        ValueError: if the cluster has not enough devices, or other programs use them.
    """
    kind = _kind_of(ray, config.model.device)
    wanted = config.parallel.world_size
    there = int(ray.cluster_resources().get(kind, 0))
    free = int(ray.available_resources().get(kind, 0))
    if there < wanted:
        raise ValueError(
            f"{wanted} workers need {wanted} {kind}s, the Ray cluster has {there}; add machines "
            "with `ray start --address=...`, or lower tensor_parallel_size or "
            "pipeline_parallel_size"
        )
    group = ray.util.placement_group([{kind: 1}] * wanted, strategy="PACK")
    try:
        ray.get(group.ready(), timeout=PLACEMENT_SECONDS)
    except ray.exceptions.GetTimeoutError as error:
        ray.util.remove_placement_group(group)
        raise ValueError(
            f"the Ray cluster found no room for {wanted} {kind}s within {PLACEMENT_SECONDS} s; of "
            f"its {there}, {free} were free"
        ) from error
    return group


def _kind_of(ray: Any, device: str) -> str:
    """What Ray counts such devices as. The workers' machines may have GPUs though this has none."""
    elsewhere = device == "auto" and ray.cluster_resources().get("GPU", 0) > 0
    return "GPU" if elsewhere else platform_of(device).ray_device_key


def _start(ray: Any, config: EngineConfig, group: Any) -> tuple[list[Any], list[int]]:
    """An actor in each bundle, and its process. Ranks are neighbours on a machine, and begin on
    this one."""
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    path = os.pathsep.join([str(ROOT), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    variables = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    variables["PYTHONPATH"] = path.strip(os.pathsep)
    bundle, worker = group.bundle_specs[0], ray.remote(RayWorker)
    actors = []
    for index in range(config.parallel.world_size):
        place = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=index)
        options = worker.options(
            num_cpus=bundle.get("CPU", 0),
            num_gpus=bundle.get("GPU", 0),
            runtime_env={"env_vars": variables},
            scheduling_strategy=place,
        )
        actors.append(options.remote(config))
    places = ray.get([actor.place.remote() for actor in actors])
    here = ray.get_runtime_context().get_node_id()
    in_order = sorted(
        zip(places, actors, strict=True), key=lambda pair: (pair[0][0] != here, pair[0][0])
    )
    actors = [actor for _, actor in in_order]
    several = len({node for node, _ in places}) > 1
    rendezvous = ray.get(actors[0].open_store.remote(several)) if len(actors) > 1 else None
    ray.get([actor.join.remote(rank, rendezvous) for rank, actor in enumerate(actors)])
    return actors, [pid for (_, pid), _ in in_order]


def _close(ray: Any, pending: Pending, actors: Sequence[Any], group: Any, is_ours: bool) -> None:
    pending.close()
    if sys.is_finalizing() or not ray.is_initialized():
        return
    for actor in actors:
        ray.kill(actor)
    if group is not None:
        ray.util.remove_placement_group(group)
    if is_ours:
        ray.shutdown()
