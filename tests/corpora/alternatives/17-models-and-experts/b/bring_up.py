"""Halves by calling itself, with the first layer that may differ and how many there are."""


def first_difference(num_layers, differs):
    def search(first, count):
        if count == 0:
            return first
        half = count // 2
        if differs(first + half):
            return search(first, half)
        return search(first + half + 1, count - half - 1)

    found = search(0, num_layers)
    return None if found == num_layers else found
