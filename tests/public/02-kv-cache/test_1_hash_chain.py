"""Task 02.1: the name of a block covers everything that its keys and values depend on."""

from __future__ import annotations

import hashlib
from array import array
from typing import Any

from labkit.testing import expect
from mini_vllm.core.block_hash import BlockHasher, extra_hash_keys, hash_block


def test_02_1_a_hash_is_sha256_of_parent_and_tokens() -> None:
    """SHA-256 over the parent's bytes, then each token as a 64-bit integer."""
    raw = b"parent" + array("q", [11, 12, 13, 14]).tobytes()
    right = hashlib.sha256(raw).digest()
    at = 'hash_block(b"parent", [11, 12, 13, 14])'
    expect(hash_block(b"parent", [11, 12, 13, 14]), right, at=at)
    expect(hash_block(b"parent", [11, 12, 13, 14], ()), right, at=at + ", extra_keys=()")


def test_02_1_equal_tokens_after_another_parent_are_another_content() -> None:
    """Attention has mixed the whole prefix into a block, so the parent is part of its name."""
    tokens = [11, 12, 13, 14]
    one, two = hash_block(b"after ana", tokens), hash_block(b"after ben", tokens)
    assert one != two, "the same 4 tokens after two different prefixes got one and the same hash"


def test_02_1_extra_keys_are_part_of_the_name() -> None:
    """Equal tokens with other extra keys are another content."""
    tokens = [11, 12, 13, 14]
    keys: list[tuple[object, ...]] = [(), (("lora", "a"),), (("lora", "b"),), (("salt", "a"),)]
    names = [hash_block(b"parent", tokens, extra) for extra in keys]
    expect(len(set(names)), 4, at=f"different hashes for the extra keys {keys}")
    again = hash_block(b"parent", tokens, (("lora", "a"),))
    expect(again, names[1], at="the same tokens and the same extra keys once more")


def test_02_1_plain_text_has_no_extra_keys(kv: Any) -> None:
    """No adapter, no salt, no image: an empty tuple."""
    expect(extra_hash_keys(kv.request("ana", 8), 0, 4), (), at="ana sends plain text, tokens 0-3")


def test_02_1_the_salt_marks_the_first_block_and_the_adapter_every_block(kv: Any) -> None:
    """A salt need not be repeated: the chain carries it on. An adapter changes every block."""
    salted = kv.request("ana", 8, cache_salt="acme")
    assert extra_hash_keys(salted, 0, 4) != (), "block 0 of a salted request has no extra key"
    expect(extra_hash_keys(salted, 4, 8), (), at="cache_salt='acme', tokens 4-7: the second block")
    empty = extra_hash_keys(kv.request("cleo", 8, cache_salt=""), 0, 4)
    assert empty != (), "cache_salt='' is a salt like any other; only None is none"
    adapted = kv.request("ben", 8, lora_name="acme")
    assert extra_hash_keys(adapted, 0, 4) != (), "block 0 of an adapter's request has no extra key"
    at = "lora_name='acme', tokens 4-7 against tokens 0-3"
    expect(extra_hash_keys(adapted, 4, 8), extra_hash_keys(adapted, 0, 4), at=at)
    both = kv.hashes(4, cache_salt="acme"), kv.hashes(4, lora_name="acme")
    expect([len(hashes) for hashes in both], [1, 1], at="hashes of 4 tokens, 4 to a block")
    assert both[0] != both[1], "a salt and an adapter of the same name lead to the same hash"


def test_02_1_an_image_marks_the_blocks_that_it_overlaps(kv: Any) -> None:
    """Placeholders 3 to 8 of one image lie in the blocks 0-3, 4-7 and 8-11, not in 12-15."""
    cat = kv.request("ana", 16, mm_hashes=[(3, 6, "cat")])
    marked = [bool(extra_hash_keys(cat, start, start + 4)) for start in (0, 4, 8, 12)]
    expect(marked, [True, True, True, False], at="blocks that an image at tokens 3-8 marks")
    edge = kv.request("ben", 12, mm_hashes=[(4, 4, "cat")])
    marked = [bool(extra_hash_keys(edge, start, start + 4)) for start in (0, 4, 8)]
    expect(marked, [False, True, False], at="blocks that an image at tokens 4-7 marks")


def test_02_1_an_image_counts_by_content_and_by_place_in_the_block(kv: Any) -> None:
    """Another image, or the same one moved by a token, is another content."""

    def keys(offset: int, content: str, start: int) -> tuple[object, ...]:
        image = kv.request("ana", 12, mm_hashes=[(offset, 2, content)])
        return extra_hash_keys(image, start, start + 4)

    assert keys(1, "cat", 0) != keys(1, "dog", 0), "cat and dog at the same place have equal keys"
    assert keys(1, "cat", 0) != keys(2, "cat", 0), "a moved image has the same keys"
    at = "the cat at the second token of block 4-7, against the second token of block 0-3"
    expect(keys(5, "cat", 4), keys(1, "cat", 0), at=at)


def test_02_1_only_full_blocks_have_hashes(kv: Any) -> None:
    """A block with room left will change, so it has no name yet."""
    lengths = [1, 3, 4, 5, 7, 8, 9]
    at = f"number of hashes of prompts with {lengths} tokens, 4 to a block"
    expect([len(kv.hashes(n)) for n in lengths], [0, 0, 1, 1, 1, 2, 2], at=at)


def test_02_1_the_hasher_goes_on_where_it_stopped(kv: Any) -> None:
    """Each hash is the parent of the next, the root of the first; only new ones are returned."""
    hasher = BlockHasher(4, b"root")
    ana = kv.request("ana", 4, cache_salt="acme")
    first = hasher(ana)
    right = hash_block(b"root", kv.CHAT[:4], extra_hash_keys(ana, 0, 4))
    expect(first, [right], at="4 tokens, no hash yet: the parent is the root")
    ana.block_hashes.extend(first)
    expect(hasher(ana), [], at="called again with nothing new")
    ana.all_token_ids.extend(kv.CHAT[4:13])
    second = hash_block(first[0], kv.CHAT[4:8])
    third = hash_block(second, kv.CHAT[8:12])
    names = {first[0]: "of 0-3", second: "of 4-7", third: "of 8-11"}
    at = "9 more tokens, one hash held: the hashes of tokens 4-7 and 8-11"
    expect([names.get(found, found) for found in hasher(ana)], ["of 4-7", "of 8-11"], at=at)
    expect(ana.block_hashes, first, at="request.block_hashes: the hasher returns, its caller fills")
