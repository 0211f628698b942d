"""The dotted name taken apart, views cut by hand, one file after the other."""


def checkpoint_names(parameter_name):
    *before, module, last = ["", *parameter_name.split(".")]
    names = STACKED_PARAMS.get(module, [module])
    return [".".join([*before, name, last]).lstrip(".") for name in names]


def weight_targets(model):
    targets = {}
    modules = dict(model.named_modules())
    for name, parameter in model.named_parameters():
        parts = checkpoint_names(name)
        if len(parts) == 1:
            targets[parts[0]] = parameter.data
            continue
        start = 0
        module = modules[name[: name.rindex(".")]]
        for part, size in zip(parts, module.output_sizes, strict=True):
            targets[part] = parameter.data[start : start + size]
            start += size
    return targets


def load_weights(model, folder):
    targets, shapes, files = weight_targets(model), {}, weight_files(folder)
    for file in files:
        shapes.update(read_shapes(file))
    check_names(targets, shapes, folder, model.config.tie_word_embeddings)
    for file in files:
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118
                if name in targets:
                    copy_weight(targets[name], tensors.get_tensor(name), name, file)


def check_names(targets, found, folder, tied):
    needed, there = list(targets), list(found)
    for name in sorted(needed):
        if name not in there:
            count = sum(other not in there for other in needed)
            raise ValueError(
                f"{count} tensor(s) missing from {str(folder)!r}, the first is {name!r}"
            )
    extra = []
    for name in sorted(there):
        allowed = name in needed or name.endswith("rotary_emb.inv_freq")
        if not allowed and not (tied and name == "lm_head.weight"):
            extra.append(name)
    if extra:
        raise ValueError(f"{str(folder)!r} has {len(extra)} tensor(s) too many: {extra[0]!r}, …")


def copy_weight(target, tensor, name, file):
    if list(target.shape) != list(tensor.shape):
        raise ValueError(
            f"{file}: {name!r} is {list(tensor.shape)}, and config.json says {list(target.shape)}"
        )
    target[...] = tensor.to(target.dtype)
