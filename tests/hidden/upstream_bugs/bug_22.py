"""A prompt shows one picture twice: after the first time it is still needed."""

from labkit.maintain.rig import EncoderCacheManager, make_request, picture


def begin(cat, count=2):
    cache = EncoderCacheManager(cache_size=20)
    places = [picture("cat", 60 * n, cat) for n in range(count)]
    request = make_request("a", 60 * count, pictures=places)
    assert cache.can_allocate(request, 0, 100, 0)
    cache.allocate(request, 0)
    for n in range(1, count):
        assert cache.check_and_update_cache(request, n)
    return cache, request


def room_for_a_dog(cache, size=15):
    return cache.can_allocate(make_request("b", 40, pictures=[picture("dog", 0, size)]), 0, 100, 0)


def the_bug(draw):
    count = draw.randint(2, 4)
    cache, request = begin(draw.randint(6, 15), count)
    for n in range(count - 1):
        cache.free_encoder_input(request, n)
        assert not room_for_a_dog(cache), (
            f"after {n + 1} of {count} times another picture may evict it"
        )
        assert cache.check_and_update_cache(request, n + 1)
    cache.free_encoder_input(request, count - 1)
    assert room_for_a_dog(cache), "after the last time it may go"


def neighbour_an_abort_gives_all_back():
    cache, request = begin(12)
    cache.free_encoder_input(request, 0)
    cache.free(request)
    assert cache.num_freeable_slots == 20 and room_for_a_dog(cache, 20)


def neighbour_two_requests_with_one_picture():
    cache, first = begin(12, 1)
    second = make_request("c", 40, pictures=[picture("cat", 0, 12)])
    assert cache.check_and_update_cache(second, 0)
    cache.free_encoder_input(first, 0)
    assert not room_for_a_dog(cache), "the second request needs it"
    cache.free_encoder_input(second, 0)
    assert room_for_a_dog(cache)


def neighbour_a_name_that_comes_again():
    cache, request = begin(12)
    cache.free(request)
    again = make_request("a", 120, pictures=[picture("cat", 0, 12), picture("cat", 60, 12)])
    assert cache.check_and_update_cache(again, 0) and cache.check_and_update_cache(again, 1)
    cache.free_encoder_input(again, 0)
    assert not room_for_a_dog(cache), "a second request of the same id starts anew"
