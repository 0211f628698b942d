"""The answer's bits are found from the highest down."""


def first_difference(num_layers, differs):
    right = 0  # so many leading layers are known to be right
    for bit in reversed(range(num_layers.bit_length())):
        step = 1 << bit
        if right + step <= num_layers and not differs(right + step - 1):
            right += step
    return right if right < num_layers else None
