"""Reasons are appended one by one; the first that has none is taken."""


def refusals(name, platform, config):
    reasons = []
    if name not in platform.attention_backends:
        reasons.append(f"{platform.device_type} offers {', '.join(platform.attention_backends)}")
    if name not in BACKENDS:
        reasons.append("it is not registered")
        return reasons
    try:
        backend = resolve_obj_by_qualname(BACKENDS[name])
    except ImportError as error:
        reasons.append(f"{type(error).__name__}: {error}")
    else:
        if hasattr(backend, "validate_configuration"):
            reasons.extend(backend.validate_configuration(platform, config))
    return reasons


def get_valid_backends(platform, config):
    valid, refused = [], {}
    for name in platform.attention_backends:
        reasons = refusals(name, platform, config)
        if reasons:
            refused[name] = reasons
        else:
            valid.append(name)
    return valid, refused


def get_attn_backend_cls(platform, selected, config):
    if selected is None:
        valid, refused = get_valid_backends(platform, config)
        if valid:
            return resolve_obj_by_qualname(BACKENDS[valid[0]])
        raise ValueError(f"nothing runs on {platform.device_type}: {refused}")
    if selected not in BACKENDS:
        raise ValueError(f"{selected!r} is none of {', '.join(BACKENDS)}")
    reasons = refusals(selected, platform, config)
    if reasons:
        raise ValueError(f"{selected!r} cannot run on {platform.device_type}: {reasons}")
    return resolve_obj_by_qualname(BACKENDS[selected])
