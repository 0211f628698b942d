"""The first piece that is known, by `next`; a fold over the table."""


def projections(name, stacked):
    pieces = name.split(".")
    place = next((index for index, piece in enumerate(pieces) if piece in stacked), None)
    if place is None:
        return [name]
    names = []
    for part in stacked[pieces[place]]:
        copy = list(pieces)
        copy[place] = part
        names.append(".".join(copy))
    return names


def renamed(name, pieces):
    from functools import reduce

    return reduce(lambda text, row: text.replace(*row), pieces.items(), name)
