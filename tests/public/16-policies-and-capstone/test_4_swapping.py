"""Task 16.4: V0's scheduler swaps a group out of the queue, and in again."""

from __future__ import annotations

from typing import Any

from labkit.testing import expect
from mini_vllm.request import Request, RequestStatus


def swapped(scheduler: Any) -> list[list[str] | str]:
    """The swapped queue by names; of an entry that is no group, the one name."""
    return [
        entry.request_id if isinstance(entry, Request) else [r.request_id for r in entry]
        for entry in scheduler.swapped
    ]


def victim(desk: Any, scheduler: Any, name: str, prompt: int = 6, computed: int = 6) -> Any:
    """A request that has just been picked: it runs no more, and still holds its blocks."""
    return desk.stop(scheduler, desk.run(scheduler, desk.request(name, prompt), computed))


def test_16_4_the_plan_says_what_to_copy_out(desk: Any) -> None:
    """Only the worker can move keys and values, and it knows only the plan."""
    scheduler = desk.v0()
    ana, ben = victim(desk, scheduler, "ana"), victim(desk, scheduler, "ben")
    plan = scheduler.new_plan(64)
    scheduler._swap_out(plan, [ana])
    scheduler._swap_out(plan, [ben])
    at = "ana (blocks 1, 2), then ben (3, 4) are swapped out in one step"
    host = scheduler.kv_cache_manager.host_tables
    wanted = list(zip([1, 2, 3, 4], host["ana"] + host["ben"], strict=True))
    expect(sorted(plan.blocks_to_swap_out), wanted, at=f"{at}: (device, host) in the plan")


def test_16_4_they_wait_in_order_as_groups_and_keep_their_count(desk: Any) -> None:
    """A group that went together comes back together; nothing is computed again."""
    scheduler = desk.v0()
    people = [victim(desk, scheduler, name) for name in ("ana", "ben", "cleo")]
    plan = scheduler.new_plan(64)
    group = people[:2]
    scheduler._swap_out(plan, group)
    scheduler._swap_out(plan, people[2:])
    group.clear()  # the caller's list is the caller's
    at = "ana and ben are swapped out as a group, then cleo alone"
    expect(swapped(scheduler), [["ana", "ben"], ["cleo"]], at=f"{at}: the queue")
    counts = [request.num_computed_tokens for request in people]
    expect(counts, [6, 6, 6], at=f"{at}: their computed tokens")
    expect(scheduler.kv_cache_manager.num_free_blocks, 12, at=f"{at}: free blocks, of 12")


def on_host(desk: Any, scheduler: Any, requests: list[Any]) -> None:
    """Bring victims to the host with the block manager."""
    scheduler.kv_cache_manager.swap_out(requests)


def test_16_4_the_plan_says_what_to_copy_back_and_where_it_lies(desk: Any) -> None:
    """Copies first; then the request is entered with its whole table, slots for more included."""
    scheduler = desk.v0()
    ana = victim(desk, scheduler, "ana", prompt=8, computed=8)
    on_host(desk, scheduler, [ana])
    desk.hold(scheduler.kv_cache_manager, "zoe", 8)
    plan = scheduler.new_plan(64)
    first, second = scheduler.kv_cache_manager.host_tables["ana"]
    scheduler._swap_in(plan, [ana], {ana: 1})
    at = f"ana has host blocks {first} and {second}, both full; zoe holds device blocks 3 and 4"
    table = desk.table(scheduler.kv_cache_manager, "ana")
    expect(sorted(table), [5, 6, 7], at=f"{at}: ana's blocks, one for more tokens among them")
    wanted = sorted(zip((first, second), table, strict=False))
    expect(sorted(plan.blocks_to_swap_in), wanted, at=f"{at}: (host, device) in the plan")
    expect(plan.new_block_ids, {"ana": table}, at=f"{at}: ana's table in the plan")
    expect(plan.num_scheduled_tokens, {"ana": 1}, at=f"{at}: tokens in the plan")


def test_16_4_they_run_on_where_they_were(desk: Any) -> None:
    """Running again, nothing forgotten, and charged to the budget."""
    scheduler = desk.v0()
    ana = victim(desk, scheduler, "ana")
    on_host(desk, scheduler, [ana])
    plan = scheduler.new_plan(64)
    scheduler._swap_in(plan, [ana], {ana: 1})
    at = "ana comes back with 6 computed tokens and computes 1"
    expect(ana.status, RequestStatus.RUNNING, at=f"{at}: her status")
    expect(desk.names(scheduler.running), ["ana"], at=f"{at}: who runs")
    expect(ana.num_computed_tokens, 6, at=f"{at}: her computed tokens before the step")
    left = plan.budget.remaining_token_budget()
    expect(left, 63, at=f"{at}: what is left of a budget of 64")


def test_16_4_a_shared_block_is_copied_before_a_write(desk: Any) -> None:
    """Two members come back with a half full block in common: one copies it, either of them."""
    scheduler = desk.v0()
    manager = scheduler.kv_cache_manager
    ana, ben = victim(desk, scheduler, "ana"), victim(desk, scheduler, "ben")
    manager.free(ben)
    manager.req_to_blocks["ben"] = list(manager.req_to_blocks["ana"])
    manager.num_cached_blocks["ben"] = 0
    manager.block_pool.touch(manager.req_to_blocks["ben"])
    on_host(desk, scheduler, [ana, ben])
    plan = scheduler.new_plan(64)
    scheduler._swap_in(plan, [ana, ben], {ana: 1, ben: 1})
    returned = {device for _, device in plan.blocks_to_swap_in}
    tables = {name: desk.table(manager, name) for name in ("ana", "ben")}
    mine, yours = sorted((tables[name][1] for name in tables), key=returned.__contains__)
    at = f"ana and ben share 2 blocks, the second half full; both write; their tables: {tables}"
    came = (mine in returned, yours in returned)
    expect(came, (False, True), at=f"{at}: does one have a copy, the last holder the original?")
    expect(plan.blocks_to_copy, [(yours, mine)], at=f"{at}: copies in the plan")


def test_16_4_out_and_in_again_in_whole_steps(desk: Any) -> None:
    """The scheduler with your methods: ben's tokens survive, and nothing is computed twice."""
    scheduler = desk.v0(blocks=5, swap=True)
    people = [desk.request("ana", 7, max_tokens=8), desk.request("ben", 7, max_tokens=8)]
    desk.add(scheduler, *people)
    plans = [desk.step(scheduler) for _ in range(3)]
    at = "5 blocks; ana and ben have 9 tokens each and need 3 blocks each"
    expect(plans[2].preempted_req_ids, ["ben"], at=f"{at}: who is preempted?")
    expect(people[1].num_computed_tokens, 8, at=f"{at}: ben's computed tokens, on the host")
    wanted = [{"ana": 1}] * 5 + [{"ben": 1}]
    expect(desk.plans(scheduler, 6), wanted, at=f"{at}: ana's last tokens, then ben's next one")
