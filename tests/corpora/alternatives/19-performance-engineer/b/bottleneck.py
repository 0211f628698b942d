"""What is left of the step decides; shares by comprehension."""


def classify_step(profile):
    p = profile
    launch = p.num_launches * p.launch_seconds
    if not p.seconds > 0 or p.kernel_seconds / p.seconds > 1.001:
        raise ValueError(f"a step of {p.seconds} s, kernels of {p.kernel_seconds} s")
    if sorted([p.kernel_seconds, launch, p.memory_seconds, p.arithmetic_seconds])[0] < 0:
        raise ValueError(f"a step with a time below 0: {p}")
    floor, unit = max(
        [(p.memory_seconds, "memory"), (p.arithmetic_seconds, "arithmetic")], key=lambda one: one[0]
    )
    wait = max(0.0, p.seconds - p.kernel_seconds)
    parts = [
        (min(wait, launch), "launches"),
        (wait - min(wait, launch), "scheduler"),
        (max(0.0, p.kernel_seconds - floor), unit),
    ]
    saved, by = max(parts, key=lambda part: part[0])
    if wait <= p.kernel_seconds and saved <= floor:
        saved, by = parts[2]
    left = p.seconds - saved
    return Bound(by, saved, p.seconds / left if left > 0 else float("inf"))


def amdahl(share, faster):
    if not (0 <= share <= 1 and faster > 0):
        raise ValueError(f"no share {share}, or no factor {faster}")
    try:
        return (
            faster / (faster * (1 - share) + share) if faster != float("inf") else 1 / (1 - share)
        )
    except ZeroDivisionError:
        return float("inf")


def which_to_mend(stacks):
    total = sum(stacks.values())
    if not total:
        return []
    names = {name for stack in stacks for name in stack}
    own = dict.fromkeys(names, 0.0)
    whole = dict.fromkeys(names, 0.0)
    for stack, seconds in stacks.items():
        for name in set(stack):
            whole[name] += seconds
        for name in stack[-1:]:
            own[name] += seconds
    order = sorted(names, key=lambda name: (-own[name], -whole[name], name))
    return [
        Candidate(
            name,
            own[name] / total,
            whole[name] / total,
            float("inf") if whole[name] == total else total / (total - whole[name]),
        )
        for name in order
    ]
