"""Pieces by partition and by regular expression."""


def projections(name, stacked):
    pieces = name.split(".")
    for place, piece in enumerate(pieces):
        if piece in stacked:
            head, tail = pieces[:place], pieces[place + 1 :]
            return [".".join(head + [own] + tail) for own in stacked[piece]]
    return [name]


def renamed(name, pieces):
    from functools import reduce

    return reduce(lambda text, pair: pair[1].join(text.split(pair[0])), pieces.items(), name)
