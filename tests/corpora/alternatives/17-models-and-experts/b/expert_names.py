"""Half of the rows is known without counting a slice."""


def rows_of(projection, size, is_interleaved):
    half = size // 2
    match projection, is_interleaved:
        case "gate_up_proj", True:
            return {"gate_proj": slice(0, size, 2), "up_proj": slice(1, size, 2)}
        case "gate_up_proj", False:
            return {"gate_proj": slice(0, half), "up_proj": slice(half, 2 * half)}
        case _:
            return {projection: slice(0, size)}


def expert_parts(name, shape, is_transposed, is_interleaved):
    if (match := STACKED.fullmatch(name)) is None:
        return {}
    projection = match[2]
    is_bias = (match[3] or "").endswith("bias")
    if is_bias:
        out, rest = shape[1], ()
    elif is_transposed:
        out, rest = shape[2], (shape[1],)
    else:
        out, rest = shape[1], (shape[2],)
    size = out // 2 if projection == "gate_up_proj" else out
    base = common_name(match[1] + ".x").removesuffix("x")
    return {
        f"{base}{expert}.{part}.{'bias' if is_bias else 'weight'}": ExpertPart(
            expert, rows, (size, *rest)
        )
        for expert in range(shape[0])
        for part, rows in rows_of(projection, out, is_interleaved).items()
    }
