"""An adapter's name is given to other weights: their KV is other KV."""

from labkit.maintain.rig import LoRARequest, make_request


def first_hash(name="tuned", number=1, path="/adapters/monday"):
    return make_request(
        "r", [100 + i for i in range(32)], lora=LoRARequest(name, number, path)
    ).block_hashes[0]


def the_bug(draw):
    days = draw.sample(["monday", "tuesday", "friday", "v1", "v2"], 2)
    old, new = (first_hash(path=f"/adapters/{day}") for day in days)
    assert old != new, "the prefix cache hands the KV of the old weights to the new ones"


def neighbour_the_same_files_share():
    assert first_hash() == first_hash() == first_hash(number=2), (
        "the number of an adapter says nothing about its weights"
    )


def neighbour_the_base_model_shares_with_none():
    base = make_request("r", [100 + i for i in range(32)]).block_hashes[0]
    assert (
        base != first_hash()
        and base == make_request("q", [100 + i for i in range(32)]).block_hashes[0]
    )
