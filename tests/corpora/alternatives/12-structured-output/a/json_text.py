"""From the back to the front: what may follow is known before what leads to it."""


def digits_between(low, high):
    if low == "":
        return EMPTY
    if len(low) == 1:
        return chars([(ord(low), ord(high))])
    first, last, rest = int(low[0]), int(high[0]), len(low) - 1
    choices = []
    for digit in range(first, last + 1):
        least = low[1:] if digit == first else "0" * rest
        most = high[1:] if digit == last else "9" * rest
        tail = (
            Repeat(DIGIT, rest, rest)
            if (least, most) == ("0" * rest, "9" * rest)
            else digits_between(least, most)
        )
        choices.append(concat(str(digit), tail))
    return Union(tuple(choices))


def object_pattern(members, needed, others, comma):
    more = EMPTY if others is None else Repeat(Concat((comma, others)), 0, None)
    # of each place: what may stand if something stands before it, and if nothing does
    behind, fresh = more, None
    if others is not None:
        fresh = Concat((others, more))
    for member, must in zip(reversed(members), reversed(needed), strict=True):
        here = Concat((member, behind))
        fresh = here if must or fresh is None else Union((here, fresh))
        part = Concat((comma, member))
        behind = Concat((part if must else Repeat(part, 0, 1), behind))
    return Union(()) if fresh is None else fresh
