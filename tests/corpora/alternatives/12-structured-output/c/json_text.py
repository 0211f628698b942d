"""What follows a first member, in one helper."""


def object_pattern(members, needed, others, comma):
    def after(rest, rest_needed):
        parts = []
        for member, must in zip(rest, rest_needed, strict=True):
            with_comma = Concat((comma, member))
            parts.append(with_comma if must else optional(with_comma))
        if others is not None:
            parts.append(Repeat(Concat((comma, others)), 0, None))
        return parts

    cases = []
    for index, member in enumerate(members):
        if any(needed[:index]):
            break
        cases.append(Concat((member, *after(members[index + 1 :], needed[index + 1 :]))))
    if others is not None and not any(needed):
        cases.append(Concat((others, *after([], []))))
    return Union(tuple(cases))


def digits_between(low, high):
    if low == "":
        return EMPTY
    if low[0] == high[0]:
        return concat(low[0], digits_between(low[1:], high[1:]))
    num_more = len(low) - 1
    between = chars([(ord(low[0]) + 1, ord(high[0]) - 1)])
    return union(
        concat(low[0], digits_between(low[1:], "9" * num_more)),
        concat(between, Repeat(DIGIT, num_more, num_more)),
        concat(high[0], digits_between("0" * num_more, high[1:])),
    )
