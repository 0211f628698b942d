"""Two cache groups: blocks for external tokens of the first do not evict the hits of the second."""

from labkit.maintain.rig import make_request, make_scheduler, step

GROUPS = (
    {"kind": "full", "block_size": 16},
    {"kind": "sliding_window", "block_size": 16, "window": 256},
)


def scene(hits, external, others=49, first=100):
    """Request "b" finds `hits` blocks of "a" in each group, and a connector brings `external` more."""
    scheduler = make_scheduler(num_gpu_blocks=17, groups=GROUPS)
    tokens = [first + i for i in range(112)]
    scheduler.add_request(make_request("a", tokens[: 16 * hits + 1], max_tokens=1, ignore_eos=True))
    step(scheduler)
    scheduler.add_request(make_request("z", others, max_tokens=1, ignore_eos=True))
    step(scheduler)
    manager, request = (
        scheduler.kv_cache_manager,
        make_request("b", tokens, max_tokens=4, ignore_eos=True),
    )
    blocks, found = manager.get_computed_blocks(request)[:2]
    assert found == 16 * hits
    wanted = [[block.block_id for block in group] for group in blocks.blocks]
    free = manager.block_pool.get_num_free_blocks()
    assert manager.allocate_slots(
        request, 0, num_new_computed_tokens=found, new_computed_blocks=blocks,
        num_external_computed_tokens=16 * external, delay_cache_blocks=True,
    ) is not None  # fmt: skip
    held = [[block.block_id for block in group] for group in manager.get_blocks("b").blocks]
    return manager, request, free, wanted, held


def the_bug(draw):
    _, _, _, wanted, held = scene(
        3, draw.choice([3, 4]), draw.choice([49, 50]), draw.randint(1, 9999)
    )
    flat = [block for group in held for block in group if block]
    assert len(flat) == len(set(flat)), f"one block is held twice: {held}"
    assert all(h[:3] == w for h, w in zip(held, wanted)), f"found {wanted}, held {held}"


def neighbour_all_come_back():
    manager, request, free, _, _ = scene(2, 1)
    assert manager.block_pool.get_num_free_blocks() == free - 6
    manager.free(request)
    assert manager.block_pool.get_num_free_blocks() == free, "a block is never given back"


def neighbour_without_hits():
    scheduler = make_scheduler(num_gpu_blocks=17, groups=GROUPS)
    scheduler.add_request(make_request("a", 49, max_tokens=9, ignore_eos=True))
    step(scheduler)
    held = [[b.block_id for b in g] for g in scheduler.kv_cache_manager.get_blocks("a").blocks]
    assert [len(group) for group in held] == [4, 4] and len({*held[0], *held[1]}) == 8
