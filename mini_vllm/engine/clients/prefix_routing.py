"""Which of several engines should get a prompt, if one has its beginning in its cache already.

::

    prompt     [b0][b1][b2][b3]          to compute     for the queue     together
    engine 0   [b0][b1][b2]                      16     5 run:   320           336
    engine 1                                     64     none:      0            64    here

An engine's cache is not visible from outside, so the router remembers which prompt went where. That
only approximates the cache: an engine may have evicted a block, which it then computes again.

vLLM 0.22.1 looks at the load alone (:class:`~mini_vllm.distributed.dp_router.DPRouter`).
"""

from __future__ import annotations

from mini_vllm.core.block_hash import BlockHasher
from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.distributed.dp_router import DPRouter
from mini_vllm.kv_transfer.routing import choose_worker
from mini_vllm.request import Request

REQUEST_TOKENS = 64
"""What a running request counts for, in tokens of a prompt; a waiting one counts four times that.
How many tokens either will still make is not known."""


class PrefixRouting:
    """Chooses the engine for each request, by load and by what the engines were sent before.

    Args:
        num_engines: how many there are.
        block_size: tokens of a block.
        num_blocks: blocks of each engine's cache; of what was sent to it, so many are remembered.
    """

    def __init__(self, num_engines: int, block_size: int, num_blocks: int) -> None:
        self.block_size, self.num_blocks = block_size, num_blocks
        self.hasher = BlockHasher(block_size)
        self.sent: list[dict[bytes, None]] = [{} for _ in range(num_engines)]
        """Hashes of each engine's blocks, the one that was used longest ago first."""

    def choose(
        self, request: EngineCoreRequest, router: DPRouter, wanted: int | None = None
    ) -> int:
        """The engine that is done with the prompt first, and remember that it has it.

        Equal ones take turns, as they do in the router. Another one may be ``wanted``.
        """
        if wanted is not None:
            self._remember(wanted, self._hashes(request))
            return wanted
        num_engines = len(self.sent)
        in_turn = [(router.next_engine + i) % num_engines for i in range(num_engines)]
        hashes = self._hashes(request)
        chosen = in_turn[
            choose_worker(
                [self._num_known(engine, hashes) for engine in in_turn],
                [REQUEST_TOKENS * router.score(engine) for engine in in_turn],
                len(request.prompt_token_ids),
                self.block_size,
            )
        ]
        router.next_engine = (chosen + 1) % num_engines
        self._remember(chosen, hashes)
        return chosen

    def clear(self) -> None:
        """The engines' caches were emptied."""
        for known in self.sent:
            known.clear()

    def _hashes(self, request: EngineCoreRequest) -> list[bytes]:
        """Names of the prompt's full blocks; salt, adapter and images are part of them."""
        adapter = request.lora_request
        return self.hasher(
            Request(
                request.request_id,
                request.prompt_token_ids,
                request.sampling_params,
                cache_salt=request.cache_salt,
                lora_name=None if adapter is None else adapter.lora_name,
                mm_features=request.mm_features,
            )
        )

    def _num_known(self, engine: int, hashes: list[bytes]) -> int:
        known = self.sent[engine]
        return next((i for i, name in enumerate(hashes) if name not in known), len(hashes))

    def _remember(self, engine: int, hashes: list[bytes]) -> None:
        known = self.sent[engine]
        for name in reversed(hashes):  # the end of a prefix goes first, as in the engine
            known.pop(name, None)
            known[name] = None
        while len(known) > self.num_blocks:
            del known[next(iter(known))]
