"""Names of contents: random prompts with adapters, salts and images get equal hashes exactly where
the reference gives them. Only which blocks share a name is compared; bytes are fixed for those
without extra keys."""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from labkit.process.worker import Program

many = settings(max_examples=40)

IMAGES = st.lists(
    st.tuples(st.integers(0, 10), st.integers(1, 5), st.sampled_from(["cat", "dog"])), max_size=3
)
PROMPTS = st.fixed_dictionaries(
    {
        "prompt": st.lists(st.integers(0, 1), min_size=1, max_size=13),
        "cache_salt": st.sampled_from([None, "acme", "zeta"]),
        "lora_name": st.sampled_from([None, "acme", "zeta"]),
        "mm_hashes": IMAGES,
    }
)


def request(p: Program, hasher: Any, name: str, prompt: Sequence[int], **keys: Any) -> Any:
    made = p.new("mini_vllm.request:Request", name, list(prompt), **keys)
    made.set_block_hasher(hasher)
    return made


def pattern(hashes: Sequence[Sequence[bytes]]) -> list[list[int]]:
    """Each hash as the number of the place where it was first seen."""
    first: dict[bytes, int] = {}
    return [[first.setdefault(h, len(first)) for h in row] for row in hashes]


def both(subject: Any, reference: Any, p: Program) -> tuple[list[list[int]], list[list[int]]]:
    return pattern(subject.run(p)), pattern(reference.run(p))


@many
@given(prompts=st.lists(PROMPTS, min_size=2, max_size=4))
def test_02_1_equal_names_mean_equal_contents(
    subject: Any, reference: Any, prompts: list[dict[str, Any]]
) -> None:
    """Two blocks share a name exactly if tokens, prefix, adapter, salt and images agree."""
    p = Program()
    hasher = p.new("mini_vllm.core.block_hash:BlockHasher", 4, b"root")
    for number, keys in enumerate(prompts):
        p.see(request(p, hasher, f"r{number}", **keys).block_hashes)
    yours, right = both(subject, reference, p)
    assert yours == right


def test_02_1_an_adapter_and_a_salt_together(subject: Any, reference: Any) -> None:
    """Tenants of one adapter do not share, and neither do adapters of one tenant."""
    p = Program()
    hasher = p.new("mini_vllm.core.block_hash:BlockHasher", 4, b"root")
    for lora in (None, "a", "b"):
        for salt in (None, "a", "b"):
            made = request(p, hasher, "r", range(8), lora_name=lora, cache_salt=salt)
            p.see(made.block_hashes)
    yours, right = both(subject, reference, p)
    assert len({tuple(row) for row in right}) == 9
    assert yours == right


def test_02_1_two_images_in_one_block(subject: Any, reference: Any) -> None:
    """The second image of a block counts as well."""
    p = Program()
    hasher = p.new("mini_vllm.core.block_hash:BlockHasher", 4, b"root")
    for second in ("cat", "dog", "cow"):
        made = request(p, hasher, "r", [0] * 4, mm_hashes=[(0, 1, "cat"), (2, 1, second)])
        p.see(made.block_hashes)
    yours, right = both(subject, reference, p)
    assert right == [[0], [1], [2]]
    assert yours == right


def test_02_1_an_image_in_front_hides_none(subject: Any) -> None:
    """The first image lies in the first block; the second block is told by the second one."""
    p = Program()
    hasher = p.new("mini_vllm.core.block_hash:BlockHasher", 4, b"root")
    for second in ("cat", "dog"):
        images = [(0, 1, "cat"), (5, 1, second)]
        p.see(request(p, hasher, "r", [0] * 8, mm_hashes=images).block_hashes)
    one, two = subject.run(p)
    assert one[0] == two[0] and one[1] != two[1]


@many
@given(
    prompt=st.lists(st.integers(0, 1), min_size=1, max_size=6),
    output=st.lists(st.integers(0, 1), max_size=12),
    size=st.integers(1, 5),
)
def test_02_1_token_by_token_is_the_same_as_at_once(
    subject: Any, prompt: list[int], output: list[int], size: int
) -> None:
    """Names do not depend on how the tokens came."""
    p = Program()
    hasher = p.new("mini_vllm.core.block_hash:BlockHasher", size, b"root")
    slow = request(p, hasher, "slow", prompt)
    for token in output:
        slow.append_output_token_ids(token)
    quick = request(p, hasher, "quick", prompt)
    quick.append_output_token_ids(output)
    once = request(p, hasher, "once", prompt + output)
    for made in (slow, quick, once):
        p.see(made.block_hashes)
    one, two, three = subject.run(p)
    assert one == two == three
    assert len(one) == (len(prompt) + len(output)) // size


@many
@given(
    parent=st.binary(min_size=32, max_size=32),
    tokens=st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=6),
)
def test_02_1_bug_vllm_11829_a_name_is_sha256(
    subject: Any, parent: bytes, tokens: list[int]
) -> None:
    """A short hash can be made to collide, and then a parent stands for another prefix."""
    p = Program()
    p.see(p.call("mini_vllm.core.block_hash:hash_block", parent, tokens))
    right = hashlib.sha256(parent + array("q", tokens).tobytes()).digest()
    assert subject.run(p) == [right]


def test_02_1_bug_vllm_12621_the_root_is_random(subject: Any) -> None:
    """A constant root lets one client compute the hashes of others."""
    p = Program()
    for _ in range(2):
        hasher = p.new("mini_vllm.core.block_hash:BlockHasher", 4)
        p.see(request(p, hasher, "r", range(4)).block_hashes)
    one, two = subject.run(p)
    assert one != two
