"""Block hashes: the chain, and what else is mixed into it."""

from __future__ import annotations

import hashlib
from array import array

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mini_vllm.core.block_hash import BlockHasher, extra_hash_keys, hash_block
from tests.engine.core.build import make_request

ROOT = b"root"


def hashes(prompt: list[int], block_size: int = 4, **kwargs: object) -> list[bytes]:
    request = make_request("r", prompt, **kwargs)  # type: ignore[arg-type]
    request.set_block_hasher(BlockHasher(block_size, ROOT))
    return request.block_hashes


def test_hash_is_sha256_over_parent_and_int64_tokens() -> None:
    raw = b"parent" + array("q", [1, 2, 3, 4]).tobytes()
    assert hash_block(b"parent", [1, 2, 3, 4]) == hashlib.sha256(raw).digest()
    with_extra = hashlib.sha256(raw + repr(("x",)).encode()).digest()
    assert hash_block(b"parent", [1, 2, 3, 4], ("x",)) == with_extra


def test_hash_depends_on_the_parent() -> None:
    """The same four tokens as a first and as a second block are different contents."""
    twice = hashes([1, 2, 3, 4, 1, 2, 3, 4])
    assert twice[0] != twice[1]
    assert twice[0] == hashes([1, 2, 3, 4, 9])[0]
    assert twice[1] != hashes([5, 6, 7, 8, 1, 2, 3, 4])[1]
    assert twice[1] == hash_block(twice[0], [1, 2, 3, 4])


@pytest.mark.parametrize(
    ("num_tokens", "num_hashes"), [(1, 0), (3, 0), (4, 1), (5, 1), (7, 1), (8, 2), (9, 2)]
)
def test_only_full_blocks_have_hashes(num_tokens: int, num_hashes: int) -> None:
    assert len(hashes(list(range(num_tokens)))) == num_hashes


def test_the_hasher_continues_where_it_stopped() -> None:
    request = make_request("r", 9)
    hasher = BlockHasher(4, ROOT)
    request.set_block_hasher(hasher)
    assert hasher(request) == []
    request.all_token_ids.extend([1, 2, 3])
    third = hasher(request)
    assert third == [hash_block(request.block_hashes[1], request.all_token_ids[8:12])]


@pytest.mark.history("vllm#12621")
def test_bug_vllm_12621_root_is_not_predictable() -> None:
    """The chain began at a constant, so a client could compute foreign hashes."""
    first, second = BlockHasher(4), BlockHasher(4)
    assert len(first.root) == 32 and first.root != second.root


@pytest.mark.history("vllm#11829")
@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 3), max_size=12), st.lists(st.integers(0, 3), max_size=12))
def test_bug_vllm_11829_equal_hash_means_equal_prefix(left: list[int], right: list[int]) -> None:
    """A weak hash with a comparison of one block's tokens still let other prefixes through."""
    for index, (a, b) in enumerate(zip(hashes(left, 2), hashes(right, 2), strict=False)):
        end = 2 * (index + 1)
        assert (a == b) == (left[:end] == right[:end])


def test_salt_is_in_the_first_block_and_the_chain_carries_it_on() -> None:
    request = make_request("r", 8, cache_salt="tenant")
    assert extra_hash_keys(request, 0, 4) == (("salt", "tenant"),)
    assert extra_hash_keys(request, 4, 8) == ()
    plain, salted = hashes([1] * 8), hashes([1] * 8, cache_salt="tenant")
    assert plain[0] != salted[0] and plain[1] != salted[1]
    assert salted == hashes([1] * 8, cache_salt="tenant")
    assert salted != hashes([1] * 8, cache_salt="other")


def test_adapter_is_in_every_block() -> None:
    request = make_request("r", 8, lora_name="a")
    assert extra_hash_keys(request, 0, 4) == extra_hash_keys(request, 4, 8) == (("lora", "a"),)
    assert not set(hashes([1] * 8)) & set(hashes([1] * 8, lora_name="a"))


def test_salt_and_adapter_of_one_name_differ() -> None:
    assert hashes([1] * 4, cache_salt="a") != hashes([1] * 4, lora_name="a")


def test_images_mark_the_blocks_they_overlap() -> None:
    """Placeholders at 3 .. 8; blocks of 4: [0,4) holds the first, [8,12) the last of them."""
    request = make_request("r", 16, mm_hashes=[(3, 6, "cat")])
    assert extra_hash_keys(request, 0, 4) == (("mm", "cat", 3),)
    assert extra_hash_keys(request, 4, 8) == (("mm", "cat", -1),)
    assert extra_hash_keys(request, 8, 12) == (("mm", "cat", -5),)
    assert extra_hash_keys(request, 12, 16) == ()
    ends_at_border = make_request("r", 8, mm_hashes=[(0, 4, "cat")])
    assert extra_hash_keys(ends_at_border, 4, 8) == ()


def test_image_content_and_place_change_the_hash() -> None:
    tokens = [0] * 8
    cat, dog = hashes(tokens, mm_hashes=[(1, 2, "cat")]), hashes(tokens, mm_hashes=[(1, 2, "dog")])
    moved = hashes(tokens, mm_hashes=[(2, 2, "cat")])
    assert len({cat[0], dog[0], moved[0], hashes(tokens)[0]}) == 4
