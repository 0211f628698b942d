"""An encoding that was evicted and put in again in one step is not dropped by the worker."""

from labkit.maintain.rig import EncoderCacheManager, make_request, picture


def begin(cat, dog):
    """The cat's request has ended; room for a dog evicts the cat. Both requests come back."""
    cache = EncoderCacheManager(cache_size=20)
    first = make_request("a", 40, pictures=[picture("cat", 0, cat)])
    assert cache.can_allocate(first, 0, 100, 0)
    cache.allocate(first, 0)
    cache.free(first)
    second = make_request("b", 40, pictures=[picture("dog", 0, dog)])
    assert cache.can_allocate(second, 0, 100, 0)
    return cache, second, make_request("c", 40, pictures=[picture("cat", 0, cat)])


def the_bug(draw):
    cat = draw.randint(6, 15)
    cache, _, again = begin(cat, draw.randint(21 - cat, 20))
    # the dog's request gets no KV blocks; the cat is encoded anew, for another request
    assert not cache.check_and_update_cache(again, 0) and cache.can_allocate(again, 0, 100, 0)
    cache.allocate(again, 0)
    assert "cat" not in cache.get_freed_mm_hashes(), (
        "the worker is told to drop what was just encoded"
    )
    assert cache.check_and_update_cache(again, 0)


def neighbour_what_stays_away_is_named():
    cache, dog, _ = begin(12, 15)
    cache.allocate(dog, 0)
    assert cache.get_freed_mm_hashes() == ["cat"]
    assert cache.get_freed_mm_hashes() == [], "once"


def neighbour_others_are_still_named():
    cache = EncoderCacheManager(cache_size=20)
    for name in ("cat", "cow"):
        request = make_request(name, 40, pictures=[picture(name, 0, 10)])
        assert cache.can_allocate(request, 0, 100, 0)
        cache.allocate(request, 0)
        cache.free(request)
    assert cache.can_allocate(make_request("b", 40, pictures=[picture("dog", 0, 20)]), 0, 100, 0)
    again = make_request("c", 40, pictures=[picture("cat", 0, 10)])
    assert cache.can_allocate(again, 0, 100, 0)
    cache.allocate(again, 0)
    assert cache.get_freed_mm_hashes() == ["cow"]
