"""Questions as generators, errors as exceptions of their own."""


def refusals(name, platform, config):
    def ask():
        offered = list(platform.attention_backends)
        if name not in offered:
            yield f"it is not among {offered}"
        path = BACKENDS.get(name)
        if path is None:
            yield f"{name} is not registered"
            return
        try:
            validate = getattr(resolve_obj_by_qualname(path), "validate_configuration", None)
        except ImportError as error:
            yield f"ImportError: {error!s}"
            return
        if validate:
            yield from validate(platform, config)

    return list(ask())


def get_valid_backends(platform, config):
    every = [(name, refusals(name, platform, config)) for name in platform.attention_backends]
    return [n for n, why in every if not why], {n: why for n, why in every if why}


def get_attn_backend_cls(platform, selected, config):
    device = platform.device_type
    if selected is not None and selected not in BACKENDS:
        raise ValueError(f"unknown backend {selected}: there are {' '.join(BACKENDS)}")
    if selected:
        valid, refused = [selected], {selected: refusals(selected, platform, config)}
        if refused[selected]:
            valid = []
    else:
        valid, refused = get_valid_backends(platform, config)
    for name in valid:
        return resolve_obj_by_qualname(BACKENDS[name])
    lines = [f"{name}: {reason}" for name, reasons in refused.items() for reason in reasons]
    raise ValueError(f"on {device} " + "; ".join(lines))
