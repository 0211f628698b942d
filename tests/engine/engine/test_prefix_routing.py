"""Which engine gets a prompt whose prefix is cached already."""

from __future__ import annotations

from random import Random

import pytest

from mini_vllm.config import EngineConfig
from mini_vllm.core.engine_request import EngineCoreRequest
from mini_vllm.distributed.dp_router import DPRouter
from mini_vllm.engine.clients.prefix_routing import REQUEST_TOKENS, PrefixRouting
from mini_vllm.lora.request import LoRARequest
from mini_vllm.sampling_params import SamplingParams

BLOCK = 4


def request(tokens: list[int], name: str = "r", **more: object) -> EngineCoreRequest:
    return EngineCoreRequest(name, tokens, SamplingParams(), None, 0.0, **more)  # type: ignore[arg-type]


class Service:
    """Two engines, which say themselves how busy they are."""

    def __init__(self, num_engines: int = 2, num_blocks: int = 100) -> None:
        self.router = DPRouter(num_engines)
        self.routing = PrefixRouting(num_engines, BLOCK, num_blocks)

    def send(self, tokens: list[int], **more: object) -> int:
        asked = request(tokens, **more)
        chosen = self.routing.choose(asked, self.router)
        self.router.get_core_engine_for_request(asked.request_id, chosen)
        self.router.set_counts(chosen, 0, 0)
        return chosen


LONG = list(range(40))


def test_a_conversation_stays_where_it_began() -> None:
    service = Service()
    others = [service.send([900 + i]) for i in range(3)]
    first = service.send(LONG)
    assert others == [0, 1, 0] and first == 1
    assert [service.send([*LONG, 50, 51, i]) for i in range(5)] == [first] * 5


def test_new_prompts_take_turns() -> None:
    service = Service(3)
    assert [service.send([1000 * i + n for n in range(9)]) for i in range(7)] == [
        *(0, 1, 2), *(0, 1, 2), 0,
    ]  # fmt: skip


@pytest.mark.parametrize("running", range(4))
def test_a_prefix_is_worth_so_many_running_requests_and_no_more(running: int) -> None:
    """Ten blocks are 40 tokens: less than one running request."""
    service = Service()
    here = service.send(LONG)
    service.router.set_counts(here, 0, running)
    saved = len(LONG)
    assert (service.send([*LONG, 7]) == here) == (running * REQUEST_TOKENS < saved)


def test_other_salt_other_adapter_other_prefix() -> None:
    service = Service()
    assert [service.send(LONG, cache_salt=salt) for salt in ("a", "b", "a", "b", "b")] == [
        *(0, 1, 0, 1, 1)
    ]
    adapters = [LoRARequest(name, i + 1, "/x") for i, name in enumerate("pq")]
    prompt = list(range(500, 540))
    assert [service.send(prompt, lora_request=adapters[i]) for i in (0, 1, 0, 0)] == [0, 1, 0, 0]


def test_what_is_used_longest_ago_is_forgotten_from_its_end() -> None:
    service = Service(num_blocks=10)
    service.send(LONG)  # engine 0 is full
    service.send([2000])
    service.send([*range(100, 120)])  # five blocks: engine 0 keeps the first five of LONG
    assert service.routing._num_known(0, service.routing._hashes(request(LONG))) == 5
    assert len(service.routing.sent[0]) == 10
    service.routing.clear()
    assert not any(service.routing.sent)


def test_a_popular_prefix_does_not_stay_with_one() -> None:
    """A burst with one prefix: no request has started, so each waits where it was sent."""
    router, routing, rng = DPRouter(2), PrefixRouting(2, BLOCK, 1000), Random(3)
    chosen = []
    for number in range(200):
        asked = request([*LONG, *(rng.randrange(500) for _ in range(9))], str(number))
        chosen.append(routing.choose(asked, router))
        router.get_core_engine_for_request(asked.request_id, chosen[-1])
    assert 90 <= chosen.count(0) <= 110


def test_the_option_is_checked() -> None:
    with pytest.raises(ValueError, match=r"data_parallel_routing is 'prefxi'.*load, prefix"):
        EngineConfig.from_kwargs("storyteller", data_parallel_routing="prefxi")
