"""A salt and an adapter of the same name do not give the same block hash."""

from labkit.maintain.rig import LoRARequest, make_request


def hashes(salt=None, adapter=None, first=100):
    lora = LoRARequest(adapter, 1, f"/adapters/{adapter}") if adapter else None
    return make_request("r", [first + i for i in range(40)], salt=salt, lora=lora).block_hashes


def the_bug(draw):
    name = draw.choice(["team-a", "base", "x", "42"]) + str(draw.randint(0, 9))
    assert hashes(salt=name)[0] != hashes(adapter=name)[0], (
        f"the salt {name!r} opens the KV of the adapter {name!r}"
    )


def neighbour_different_tenants_do_not_share():
    found = [
        hashes()[0],
        hashes(salt="a")[0],
        hashes(salt="b")[0],
        hashes(adapter="a")[0],
        hashes("a", "b")[0],
        hashes("b", "a")[0],
    ]
    assert len(set(found)) == len(found)


def neighbour_equal_requests_share():
    assert hashes(salt="a") == hashes(salt="a") and hashes(adapter="a") == hashes(adapter="a")
    assert hashes("a", "b") == hashes("a", "b") and len(hashes()) == 2
