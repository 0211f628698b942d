"""Numbers by the length of what both ends share; objects by a recursion over what follows."""


def digits_between(low, high):
    shared = 0
    while shared < len(low) and low[shared] == high[shared]:
        shared += 1
    if shared == len(low):
        return concat(*low) if low else EMPTY
    rest = len(low) - shared - 1
    lowest, highest = low[shared + 1 :], high[shared + 1 :]
    choices = [
        concat(*low[: shared + 1], digits_between(lowest, "9" * rest)),
        concat(*high[: shared + 1], digits_between("0" * rest, highest)),
    ]
    first, last = ord(low[shared]) + 1, ord(high[shared]) - 1
    if first <= last:
        middle = concat(*low[:shared], chars([(first, last)]), Repeat(DIGIT, rest, rest))
        choices.insert(1, middle)
    return Union(tuple(choices))


def object_pattern(members, needed, others, comma):
    def rest(index):
        """What may follow behind a member that stands before `index`."""
        if index == len(members):
            return [] if others is None else [Repeat(concat(comma, others), 0, None)]
        part = concat(comma, members[index])
        return [part if needed[index] else Repeat(part, 0, 1), *rest(index + 1)]

    cases = []
    for index in range(len(members)):
        if any(needed[:index]):
            break
        cases.append(Concat((members[index], *rest(index + 1))))
    if others is not None and not any(needed):
        cases.append(Concat((others, *rest(len(members)))))
    return Union(tuple(cases))
