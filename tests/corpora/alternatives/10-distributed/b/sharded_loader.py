"""The places come first, from running sums; padding is written behind what was read."""


def projection_targets(module, parameter):
    spec = getattr(parameter, "spec", None)
    data = parameter.data
    if not spec:
        yield Target(data, {}, [*data.shape])
        return
    both = zip(module.parts, module.whole_parts, strict=False)
    pieces = [(spec.entries(part), spec.entries(whole)) for part, whole in both]
    views = [data] * len(pieces)
    if spec.per_part:
        views = list(data.unbind(0))
    elif spec.out_dim is not None:
        lengths = [cut[spec.out_dim].stop - cut[spec.out_dim].start for cut, _ in pieces]
        views = list(data.split(lengths, spec.out_dim))
    for view, (cuts, whole) in zip(views, pieces, strict=False):
        sizes = {dim: size for dim, size in enumerate(view.shape)}
        sizes.update({dim: every.stop for dim, every in whole.items()})
        yield Target(view, cuts, [sizes[dim] for dim in sorted(sizes)], optional=spec.optional)


def copy_slice(target, tensors, name, file):
    def within(dim):
        if dim not in target.cuts:
            return slice(None)
        start, stop, _ = target.cuts[dim].indices(target.shape[dim])
        return slice(start, stop)

    found = tensors.get_slice(name)[tuple(within(dim) for dim in range(len(target.shape)))]
    room = target.view
    for dim, size in enumerate(found.shape):
        room.narrow(dim, size, room.shape[dim] - size).zero_()
        room = room.narrow(dim, 0, size)
    copy_weight(room, found, name, file)
