"""Candidates for a step in a dictionary; functions by one pass over sorted stacks."""


def classify_step(profile):
    floor = max(profile.memory_seconds, profile.arithmetic_seconds)
    launches = profile.num_launches * profile.launch_seconds
    times = (
        profile.kernel_seconds,
        profile.num_launches,
        profile.launch_seconds,
        profile.memory_seconds,
        profile.arithmetic_seconds,
    )
    if profile.seconds <= 0 or min(times) < 0 or profile.kernel_seconds > 1.001 * profile.seconds:
        raise ValueError(f"impossible step: {profile}")
    wait = max(profile.seconds - profile.kernel_seconds, 0)
    kernels = "arithmetic" if profile.arithmetic_seconds > profile.memory_seconds else "memory"
    parts = {"launches": min(launches, wait)}
    parts["scheduler"] = wait - parts["launches"]
    parts[kernels] = max(profile.kernel_seconds - floor, 0)
    by = next(name for name, size in parts.items() if size == max(parts.values()))
    if profile.kernel_seconds >= wait and floor >= parts[by]:
        by = kernels
    rest = profile.seconds - parts[by]
    return Bound(by=by, seconds=parts[by], factor=math.inf if rest <= 0 else profile.seconds / rest)


def amdahl(share, faster):
    if share < 0 or share > 1 or faster <= 0 or math.isnan(share + faster):
        raise ValueError(f"share {share} must be 0 to 1 and factor {faster} above 0")
    rest = (1 - share) + (0 if math.isinf(faster) else share / faster)
    return 1 / rest if rest else math.inf


def which_to_mend(stacks):
    total = math.fsum(stacks.values())
    if total <= 0:
        return []
    own, whole = Counter(), Counter()
    for stack, seconds in stacks.items():
        if stack:
            own[stack[-1]] += seconds
        whole.update(dict.fromkeys(stack, seconds))
    found = [
        Candidate(name, own[name] / total, time / total, amdahl(min(time / total, 1.0), math.inf))
        for name, time in whole.items()
    ]
    found.sort(key=lambda one: one.name)
    found.sort(key=lambda one: (one.own, one.whole), reverse=True)
    return found
