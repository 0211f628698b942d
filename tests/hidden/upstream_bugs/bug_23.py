"""A client gives one uuid to pictures of two sizes: the cache frees what it has booked."""

from labkit.maintain.rig import EncoderCacheManager, make_request, picture


def put(cache, name, what, size):
    request = make_request(name, 80, pictures=[picture(what, 0, size)])
    if not cache.check_and_update_cache(request, 0):
        assert cache.can_allocate(request, 0, 100, 0)
        cache.allocate(request, 0)
    return request


def the_bug(draw):
    small, large = sorted(draw.sample(range(2, 15), 2))
    for first, second in ((small, large), (large, small)):
        cache = EncoderCacheManager(cache_size=20)
        requests = [put(cache, "a", "cat", first), put(cache, "b", "cat", second)]
        for request in requests:
            cache.free(request)
        found = cache.num_freeable_slots
        assert found == 20, f"sizes {first} and {second}: {found} of 20 slots can be freed"
        put(cache, "c", "dog", 20)
        assert (cache.num_free_slots, cache.num_freeable_slots) == (0, 0)


def neighbour_one_size():
    cache = EncoderCacheManager(cache_size=20)
    for request in (
        put(cache, "a", "cat", 8),
        put(cache, "b", "cat", 8),
        put(cache, "c", "dog", 5),
    ):
        cache.free(request)
    assert (cache.num_free_slots, cache.num_freeable_slots) == (7, 20)


def neighbour_a_picture_that_comes_back():
    cache = EncoderCacheManager(cache_size=20)
    cache.free(put(cache, "a", "cat", 8))
    cache.free(put(cache, "b", "dog", 20))  # evicts the cat
    again = put(cache, "c", "cat", 12)  # the same name, now of another size
    assert cache.num_free_slots == 8
    cache.free(again)
    assert cache.num_freeable_slots == 20
