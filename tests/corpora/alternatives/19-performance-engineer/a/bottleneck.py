"""Cases one by one; a dict of pairs."""


def classify_step(profile):
    seconds, kernels = profile.seconds, profile.kernel_seconds
    launches = profile.num_launches * profile.launch_seconds
    times = [kernels, launches, profile.memory_seconds, profile.arithmetic_seconds]
    if seconds <= 0 or any(time < 0 for time in times):
        raise ValueError(f"a step of {seconds} s with times {times}: give times of 0 or more")
    if kernels > seconds * 1.001:
        raise ValueError(f"kernels of {kernels} s in a step of {seconds} s")
    name, floor = "memory", profile.memory_seconds
    if profile.arithmetic_seconds > floor:
        name, floor = "arithmetic", profile.arithmetic_seconds
    wait = seconds - kernels if seconds > kernels else 0.0
    if launches > wait:
        launches = wait
    host = wait - launches
    above = kernels - floor if kernels > floor else 0.0
    best = max(launches, host, above)
    if kernels >= wait and floor >= best:
        by, saved = name, above
    elif best == launches:
        by, saved = "launches", launches
    elif best == host:
        by, saved = "scheduler", host
    else:
        by, saved = name, above
    return Bound(by, saved, seconds / (seconds - saved) if saved < seconds else float("inf"))


def amdahl(share, faster):
    if not 0 <= share <= 1 or faster <= 0:
        raise ValueError(f"the share is {share}, the factor {faster}")
    after = (1 - share) + (share / faster)
    return float("inf") if after == 0 else 1 / after


def which_to_mend(stacks):
    times = {}
    total = 0.0
    for stack, seconds in stacks.items():
        total += seconds
        for name in dict.fromkeys(stack):
            times.setdefault(name, [0.0, 0.0])[1] += seconds
        if stack:
            times[stack[-1]][0] += seconds
    if total == 0:
        return []
    rows = []
    for name in sorted(times):
        own, whole = times[name]
        rows.append(
            Candidate(name, own / total, whole / total, amdahl(whole / total, float("inf")))
        )
    rows.sort(key=lambda row: (row.own, row.whole), reverse=True)
    return rows
