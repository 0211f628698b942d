"""Shapes from the views; the file asked for its own."""


def projection_targets(module, parameter):
    spec = getattr(parameter, "spec", None)
    if spec is None:
        yield Target(parameter.data, {}, list(parameter.shape))
        return
    offset = 0
    for index, (part, whole) in enumerate(zip(module.parts, module.whole_parts, strict=True)):
        cuts = spec.entries(part)
        view = parameter.data
        if spec.per_part:
            view = view[index]
        elif spec.out_dim is not None:
            length = cuts[spec.out_dim].stop - cuts[spec.out_dim].start
            view = view.narrow(spec.out_dim, offset, length)
            offset += length
        shape = list(view.shape)
        for dim, entries in spec.entries(whole).items():
            shape[dim] = entries.stop
        yield Target(view, cuts, shape, spec.optional)


def copy_slice(target, tensors, name, file):
    source = tensors.get_slice(name)
    index, place = [], []
    for dim, size in enumerate(source.get_shape()):
        cut = target.cuts.get(dim, slice(0, size))
        start, stop = min(cut.start, size), min(cut.stop, size)
        index.append(slice(start, stop))
        place.append(slice(0, stop - start))
    target.view.zero_()
    if all(part.stop > part.start for part in index):
        copy_weight(target.view[tuple(place)], source[tuple(index)], name, file)
