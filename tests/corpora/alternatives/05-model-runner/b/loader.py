"""Regular expressions for names, `narrow` for views, all files open at once."""


def checkpoint_names(parameter_name):
    import re

    for stacked, parts in STACKED_PARAMS.items():
        pattern = rf"(?<=\.){stacked}(?=\.)"
        if re.search(pattern, parameter_name):
            return [re.sub(pattern, part, parameter_name) for part in parts]
    return [parameter_name]


def weight_targets(model):
    from itertools import accumulate

    def of(name, parameter):
        names = checkpoint_names(name)
        if len(names) == 1:
            return {name: parameter.data}
        sizes = model.get_submodule(name.rsplit(".", 1)[0]).output_sizes
        starts = accumulate(sizes, initial=0)
        return {
            part: parameter.data.narrow(0, start, size)
            for part, size, start in zip(names, sizes, starts, strict=False)
        }

    views = [of(name, parameter) for name, parameter in model.named_parameters()]
    return {name: view for group in views for name, view in group.items()}


def load_weights(model, folder):
    from contextlib import ExitStack

    targets = weight_targets(model)
    files = weight_files(folder)
    found = [name for file in files for name in read_shapes(file)]
    check_names(targets, found, folder, tied=model.config.tie_word_embeddings)
    with ExitStack() as stack:
        opened = {file: stack.enter_context(safe_open(file, framework="pt")) for file in files}
        holder = {name: file for file, tensors in opened.items() for name in tensors.keys()}  # noqa: SIM118
        for name, target in targets.items():
            file = holder[name]
            copy_weight(target, opened[file].get_tensor(name), name, file)


def check_names(targets, found, folder, tied):
    needed, there = frozenset(targets), frozenset(found)
    optional = {name for name in there if name.endswith("rotary_emb.inv_freq")}
    if tied:
        optional.add("lm_head.weight")
    lists = {"missing from": needed - there, "unexpected in": there - needed - optional}
    for verdict, names in lists.items():
        if names:
            raise ValueError(f"{len(names)} tensor(s) {verdict} {str(folder)!r}: {min(names)!r}")


def copy_weight(target, tensor, name, file):
    if target.size() != tensor.size():
        found, asked = tuple(tensor.shape), tuple(target.shape)
        raise ValueError(f"{name!r} in {file} has shape {list(found)}, not {list(asked)}")
    target.data.view(-1).copy_(tensor.reshape(-1))
