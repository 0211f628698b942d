"""Open slices; parts are counted off from a nested table of names."""


def rows_of(projection, size, is_interleaved):
    if projection != "gate_up_proj":
        return {projection: slice(None)}
    if is_interleaved:
        return {"gate_proj": slice(None, None, 2), "up_proj": slice(1, None, 2)}
    return {"gate_proj": slice(None, size // 2), "up_proj": slice(size // 2, None)}


def expert_parts(name, shape, is_transposed, is_interleaved):
    match = STACKED.fullmatch(name)
    if match is None:
        return {}
    where, projection, kind = match[1], match[2], match[3] or ".weight"
    is_bias = kind.endswith("bias")
    ending = ".bias" if is_bias else ".weight"
    num_experts, *sides = shape
    if is_bias:
        rows, others = sides[0], ()
    elif is_transposed:
        rows, others = sides[1], (sides[0],)
    else:
        rows, others = sides[0], tuple(sides[1:])
    parts = {}
    for expert in range(num_experts):
        for own, taken in rows_of(projection, rows, is_interleaved).items():
            number = len(range(rows)[taken])
            key = f"{common_name(where + '.')}{expert}.{own}{ending}"
            parts[key] = ExpertPart(expert=expert, rows=taken, shape=(number, *others))
    return parts
