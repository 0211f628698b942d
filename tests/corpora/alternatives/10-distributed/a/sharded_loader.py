"""Offsets by hand, and a copy that is zero before it is filled."""


def projection_targets(module, parameter):
    data, spec = parameter.data, getattr(parameter, "spec", None)
    if spec is None:
        return iter([Target(data, {}, list(data.shape))])
    found, offset = [], 0
    for number in range(len(module.parts)):
        here = spec.entries(module.parts[number])
        whole = spec.entries(module.whole_parts[number])
        if spec.per_part:
            view = data[number]
        elif spec.out_dim is None:
            view = data
        else:
            rows = here[spec.out_dim]
            index = [slice(None)] * data.dim()
            index[spec.out_dim] = slice(offset, offset + rows.stop - rows.start)
            view = data[tuple(index)]
            offset = index[spec.out_dim].stop
        shape = list(view.shape)
        for dim, every in whole.items():
            shape[dim] = every.stop
        found.append(Target(view, here, shape, spec.optional))
    return iter(found)


def copy_slice(target, tensors, name, file):
    index = []
    for dim, size in enumerate(target.shape):
        cut = target.cuts.get(dim, slice(0, size))
        index.append(slice(min(size, cut.start), min(size, cut.stop)))
    piece = tensors.get_slice(name)[tuple(index)]
    target.view.fill_(0)
    room = target.view
    for dim in range(piece.dim()):
        room = room.narrow(dim, 0, piece.shape[dim])
    copy_weight(room, piece, name, file)
