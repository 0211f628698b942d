"""Partition text in place of cutting it up."""


def projections(name, stacked):
    import re

    if not stacked:
        return [name]
    found = re.search(r"(?:^|(?<=\.))(" + "|".join(map(re.escape, stacked)) + r")(?=\.|$)", name)
    if found is None:
        return [name]
    return [name[: found.start()] + part + name[found.end() :] for part in stacked[found[1]]]


def renamed(name, pieces):
    for ours in pieces:
        name = pieces[ours].join(name.split(ours))
    return name
