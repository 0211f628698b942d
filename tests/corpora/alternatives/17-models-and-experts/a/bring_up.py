"""The library's bisection, over a sequence that asks."""


def first_difference(num_layers, differs):
    from bisect import bisect_left

    place = bisect_left(range(num_layers), True, key=lambda index: bool(differs(index)))
    return place if place < num_layers else None
