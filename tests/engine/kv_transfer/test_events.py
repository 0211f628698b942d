"""What others are told of the prefix cache, and what a router makes of it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import zmq

from mini_vllm import LLM, SamplingParams
from mini_vllm.config import CacheConfig, KVEventsConfig, SchedulerConfig
from mini_vllm.engine.parts.features import make_scheduler
from mini_vllm.kv_transfer.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    KVEvent,
    KVEventLog,
    event_from_wire,
)
from mini_vllm.kv_transfer.publisher import ZmqEventPublisher, endpoint_of
from mini_vllm.kv_transfer.routing import ContentIndex, PrefixIndex, choose_worker, content_hashes
from mini_vllm.request import Request


def test_events_tell_what_is_findable() -> None:
    log = KVEventLog()
    scheduler = make_scheduler(
        SchedulerConfig(max_num_batched_tokens=64, max_num_seqs=4, max_model_len=64),
        CacheConfig(block_size=4, num_gpu_blocks=5),
        kv_events=log,
    )
    a = Request("a", range(9))
    scheduler.add_request(a)
    plan = scheduler.schedule()
    assert log.take() == [BlockStored(a.block_hashes[:2], None, list(range(8)), 4)]
    scheduler.update_from_output(plan, {"a": [7]})
    scheduler.finish_requests("a", scheduler.requests["a"].status.FINISHED_ABORTED)
    b = Request("b", [*range(4), *range(50, 62)])
    scheduler.add_request(b)
    scheduler.schedule()
    removed, stored = log.take()
    assert removed == BlockRemoved([a.block_hashes[1]])
    assert stored == BlockStored(b.block_hashes[1:4], b.block_hashes[0], b.all_token_ids[4:16], 4)
    scheduler.finish_requests("b", b.status.FINISHED_ABORTED)
    assert scheduler.reset_prefix_cache()
    assert log.take() == [AllBlocksCleared()]


def test_the_wire_is_vllms() -> None:
    """The bytes that vLLM's own publisher has sent for this event."""
    stored = BlockStored([1, 2], None, [1, 2, 3, 4], 2)  # type: ignore[list-item]
    batch = [1.0, [stored.to_wire()], 0]
    wanted = [
        1.0,
        [["BlockStored", [1, 2], None, [1, 2, 3, 4], 2, None, "GPU", None, None, None, None, None]],
        0,
    ]
    assert batch == wanted
    for event in (stored, BlockRemoved([b"x"]), AllBlocksCleared()):
        wire = msgspec.msgpack.decode(msgspec.msgpack.encode(event.to_wire()))
        assert event_from_wire(wire) == event
    with pytest.raises(ValueError, match="BlockMoved"):
        event_from_wire(["BlockMoved"])


def test_batches_are_numbered_and_can_be_had_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    config = KVEventsConfig(True, endpoint="ipc://events", replay_endpoint="ipc://replay")
    publisher = ZmqEventPublisher(config)
    context = zmq.Context()
    try:
        for number in range(3):
            publisher.publish([BlockRemoved([bytes([number])])])
        publisher.publish([])
        asker = context.socket(zmq.REQ)
        asker.connect(config.replay_endpoint)
        answer: list[bytes] = []
        for _ in range(100):
            asker.send((1).to_bytes(8, "big"))
            answer = asker.recv_multipart()
            if answer[0] != (-1).to_bytes(8, "big", signed=True):
                break
            asker.close()
            asker = context.socket(zmq.REQ)
            asker.connect(config.replay_endpoint)
        number, content = answer
        assert int.from_bytes(number, "big") == 1
        assert msgspec.msgpack.decode(content)[1] == [["BlockRemoved", [b"\x01"], "GPU", None]]
    finally:
        context.destroy(linger=0)
        publisher.shutdown()


def test_engines_side_by_side_publish_beside_each_other() -> None:
    assert endpoint_of("tcp://*:5557", 0) == "tcp://*:5557"
    assert endpoint_of("tcp://*:5557", 2) == "tcp://*:5559"
    assert endpoint_of("ipc:///tmp/x:1", 1) == "ipc:///tmp/x:1_dp1"
    assert endpoint_of("tcp://*:*", 1) == "tcp://*:*"


def test_an_engine_publishes_what_a_router_can_use() -> None:
    index = ContentIndex()
    config = {"enable_kv_cache_events": True, "publisher": "null"}
    llm = LLM(
        "storyteller-draft", dtype="float32", block_size=4, num_gpu_blocks=32, max_model_len=64,
        kv_events_config=config,
    )  # fmt: skip
    told: list[KVEvent] = []
    publisher = SimpleNamespace(publish=told.extend, shutdown=lambda: None)
    llm.engine.core.kv.publisher = publisher  # type: ignore[assignment]
    prompt = list(range(20, 31))
    llm.generate([prompt], SamplingParams(temperature=0, max_tokens=3), use_tqdm=False)
    index.apply("w", told)
    assert index.score("w", [*prompt, 1, 2], 4) >= 2
    assert index.score("w", [19, *prompt[1:]], 4) == 0


def test_copies_are_counted() -> None:
    """A router that forgets the copy sends all requests elsewhere (vllm #48933)."""
    index, hashes = PrefixIndex(), [b"a", b"b", b"c"]
    index.apply("w", [BlockStored(hashes, None, [], 4), BlockStored([b"a"], None, [], 4)])
    index.apply("w", [BlockRemoved([b"a"])])
    assert index.score("w", hashes) == 3
    index.apply("w", [BlockRemoved([b"a"]), BlockRemoved([b"a"]), BlockRemoved([b"zzz"])])
    assert index.score("w", hashes) == 0, "without its beginning the rest is worth nothing"
    index.apply("w", [BlockStored([b"a"], None, [], 4)])
    assert index.score("w", hashes) == 3
    index.apply("w", [AllBlocksCleared()])
    assert index.score("w", hashes) == 0


def test_a_hot_prefix_does_not_herd() -> None:
    assert choose_worker([4, 0], [0, 0], 100, 16) == 0
    assert choose_worker([4, 0], [200, 0], 100, 16) == 1
    assert choose_worker([0, 0], [5, 5], 100, 16) == 0
    with pytest.raises(ValueError, match="no worker"):
        choose_worker([], [], 10, 16)


def test_names_by_content_are_the_same_everywhere() -> None:
    index = ContentIndex()
    index.apply("w", [BlockStored([b"1", b"2"], None, list(range(8)), 4)])
    index.apply("w", [BlockStored([b"3"], b"2", list(range(8, 12)), 4)])
    index.apply("w", [BlockStored([b"9"], b"unknown", list(range(4)), 4)])
    assert index.score("w", list(range(13)), 4) == 3
    assert len(content_hashes(list(range(13)), 4)) == 3
    index.apply("w", [BlockRemoved([b"2"])])
    assert index.score("w", list(range(13)), 4) == 1
    index.apply("w", [BlockStored([b"1"], None, list(range(4)), 4), BlockRemoved([b"1"])])
    index.apply("w", [BlockStored([b"2"], b"1", list(range(4, 8)), 4)])
    assert index.score("w", list(range(13)), 4) == 3, "of two copies of the first, one is left"
    index.apply("w", [BlockRemoved([b"3", b"2", b"1"]), BlockRemoved([b"1"])])
    assert not index.names["w"], "what is gone takes no room"
    salted = BlockStored([b"s"], None, [5, 5, 5, 5], 4, extra_keys=[("salt", "x")])
    index.apply("w", [salted])
    assert index.score("w", [5, 5, 5, 5], 4) == 0, "other KV for the same tokens"


@pytest.mark.parametrize("wrong", [{"endpoint": 5}, {"topic": 5}, {"replay_endpoint": 5}], ids=str)
def test_bad_settings_are_named(wrong: dict[str, int]) -> None:
    name = next(iter(wrong))
    with pytest.raises(ValueError, match=f"{name} is 5"):
        KVEventsConfig(True, **wrong)  # type: ignore[arg-type]
