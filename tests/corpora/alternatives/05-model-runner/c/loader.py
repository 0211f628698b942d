"""Part -> stack instead of stack -> parts; whole files at once; shapes compared before any copy."""


def checkpoint_names(parameter_name):
    stacked = {part: stack for stack, parts in STACKED_PARAMS.items() for part in parts}
    words = parameter_name.split(".")
    parts = [part for part, stack in stacked.items() if stack in words[1:-1]]
    if not parts:
        return [parameter_name]
    return [".".join(part if w == stacked[part] else w for w in words) for part in parts]


def weight_targets(model):
    targets = {}
    for owner_name, owner in model.named_modules():
        for last, parameter in owner.named_parameters(recurse=False):
            names = checkpoint_names(f"{owner_name}.{last}".lstrip("."))
            sizes = owner.output_sizes if len(names) > 1 else [parameter.shape[0]]
            for name, view in zip(names, parameter.detach().split(sizes), strict=True):
                targets.setdefault(name, view)
    if model.config.tie_word_embeddings:
        targets.pop("lm_head.weight", None)
    return targets


def load_weights(model, folder):
    from safetensors.torch import load_file

    targets, found = weight_targets(model), {}
    for file in weight_files(folder):
        read_shapes(file)
        found.update({name: (tensor, file) for name, tensor in load_file(file).items()})
    check_names(targets.keys(), found.keys(), folder, model.config.tie_word_embeddings)
    for name in sorted(targets):
        copy_weight(targets[name], found[name][0], name, found[name][1])


def check_names(targets, found, folder, tied):
    targets, found = set(targets), set(found)

    def refuse(names, what):
        if names:
            first = sorted(names)[0]
            raise ValueError(f"{str(folder)!r}: {len(names)} tensor(s) {what}, first {first!r}")

    refuse(targets.difference(found), "missing")
    needless = {"lm_head.weight"} if tied else set()
    rest = found.difference(targets, needless)
    refuse({name for name in rest if not name.endswith("rotary_emb.inv_freq")}, "without a place")


def copy_weight(target, tensor, name, file):
    same = target.dim() == tensor.dim() and all(
        ours == theirs for ours, theirs in zip(target.shape, tensor.shape, strict=True)
    )
    if not same:
        raise ValueError(
            f"{name!r} in {file}: {list(tensor.shape)} does not fit {list(target.shape)}"
        )
    import torch

    with torch.no_grad():
        target.copy_(tensor.to(dtype=target.dtype, device=target.device))
