"""Reasons are added to a list; the class is looked up last."""


def refusals(name, platform, config):
    reasons = []
    if name not in platform.attention_backends:
        reasons.append(f"of {platform.attention_backends} it is none")
    if name not in BACKENDS:
        return [*reasons, f"no backend is registered as {name}"]
    try:
        backend = resolve_obj_by_qualname(BACKENDS[name])
    except Exception as error:
        return [*reasons, show(error)]
    if hasattr(backend, "validate_configuration"):
        reasons += backend.validate_configuration(platform, config)
    return reasons


def get_valid_backends(platform, config):
    valid, others = [], {}
    for name in platform.attention_backends:
        reasons = refusals(name, platform, config)
        if reasons:
            others[name] = reasons
        else:
            valid.append(name)
    return valid, others


def get_attn_backend_cls(platform, selected, config):
    if selected is not None:
        if selected not in BACKENDS:
            raise ValueError(f"no attention backend {selected!r}; there are {sorted(BACKENDS)}")
        reasons = refusals(selected, platform, config)
        if reasons:
            raise ValueError(f"{selected} cannot be used: {'; '.join(reasons)}")
        return resolve_obj_by_qualname(BACKENDS[selected])
    valid, others = get_valid_backends(platform, config)
    if not valid:
        raise ValueError(f"no backend of {platform.device_type}: {others}")
    return resolve_obj_by_qualname(BACKENDS[valid[0]])
