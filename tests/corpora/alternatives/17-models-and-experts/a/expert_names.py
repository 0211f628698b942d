"""Parts first, then experts: the dict is put into order at the end."""


def rows_of(projection, size, is_interleaved):
    if projection == "gate_up_proj":
        first, second = (
            (slice(None, None, 2), slice(1, None, 2))
            if is_interleaved
            else (slice(None, size // 2), slice(size // 2, None))
        )
        return dict(gate_proj=slice(*first.indices(size)), up_proj=slice(*second.indices(size)))
    return {projection: slice(*slice(None).indices(size))}


def expert_parts(name, shape, is_transposed, is_interleaved):
    match = STACKED.fullmatch(name)
    if not match:
        return {}
    where, projection, kind = match.groups()
    last = "bias" if kind in ("_bias", ".bias") else "weight"
    num_experts, *matrix = shape
    if last == "weight" and is_transposed:
        matrix.reverse()
    found = {}
    prefix = common_name(f"{where}.")
    parts = rows_of(projection, matrix[0], is_interleaved)
    for expert in range(num_experts):
        for part in parts:
            rows = parts[part]
            length = (
                (rows.stop - rows.start + rows.step - 1) // rows.step
                if rows.step
                else (rows.stop - rows.start)
            )
            found[f"{prefix}{expert}.{part}.{last}"] = ExpertPart(
                expert=expert, rows=rows, shape=tuple([length] + matrix[1:])
            )
    return found
