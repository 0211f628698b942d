"""Questions of phase 19: laws of a service, what bounds a step, and measurements that can be
trusted."""

from __future__ import annotations

import math
from random import Random

from labkit.practice.question import Question


def at_once(rng: Random) -> Question:
    rate, stay = rng.randint(2, 20), rng.randint(2, 12)
    tokens, block = rng.choice((160, 320, 800, 1600)), 16

    def engine() -> int:
        from mini_vllm.observability.capacity import Flow, blocks_for

        return blocks_for(Flow(rate, stay, rate * stay), tokens, block, headroom=1.0)

    return Question(
        f"{rate} requests a second leave a service, and each stays {stay} s. A request has {tokens}"
        f" tokens on average, in blocks of {block}; half of its last block is empty besides. How"
        " many blocks do the requests hold that are there at a time?",
        engine,
        lambda: math.ceil(rate * stay * (tokens / block + 0.5)),
        f"{rate} x {stay} = {rate * stay} at a time, and {tokens // block} and a half blocks each.",
    )


def knee(rng: Random) -> Question:
    host, device = rng.randint(1, 5), rng.randint(6, 12)
    think = rng.choice((1, 2, 4))

    def engine() -> float:
        from mini_vllm.observability.capacity import operational_laws

        busy = {"host": float(host), "device": float(device)}
        return operational_laws(busy, 100, 20.0, think=float(think)).knee

    return Question(
        f"In 20 s a host was busy for {host} s and a device for {device} s; 100 requests left, and"
        f" a client thinks {think} s between two. With how many of them does the device become"
        " full?",
        engine,
        lambda: ((host + device) / 100 + think) / (device / 100),
        f"A turn takes {(host + device) / 100:g} s and {think} s of thought, and the device"
        f" {device / 100:g} s of it.",
        tolerance=0.05,
    )


def most(rng: Random) -> Question:
    host, device, faster = rng.randint(2, 6), rng.randint(7, 15), rng.choice((2, 4))

    def engine() -> float:
        from mini_vllm.observability.capacity import operational_laws

        return operational_laws({"host": float(host), "device": device / faster}, 100, 20.0).most

    return Question(
        f"In 20 s, 100 requests left; the host was busy for {host} s, the device for {device} s."
        f" The device becomes {faster} times as fast. How many requests a second can leave at most?",
        engine,
        lambda: 100 / max(host, device / faster),
        f"A request then takes the host {host / 100:g} s and the device"
        f" {device / faster / 100:g} s; the larger sets the limit.",
        tolerance=0.01,
    )


def bound(rng: Random) -> Question:
    floor = rng.choice((2, 4, 6))
    kernels = floor + rng.choice((1, 3, 5))
    wait = rng.choice((2, 4, 7))

    def engine() -> str:
        from mini_vllm.observability.bottleneck import StepProfile, classify_step

        profile = StepProfile(kernels + wait, kernels, 1, 0.0, floor, 0.1)
        return classify_step(profile).by

    saved = kernels - floor
    floor_binds = kernels >= wait and floor >= max(saved, wait)

    def by_hand() -> str:
        return "memory" if saved > wait or floor_binds else "scheduler"

    return Question(
        f"A step of {kernels + wait} ms. Its kernels take {kernels} ms; to read its bytes takes"
        f" {floor} ms, its arithmetic 0.1 ms. Its one launch takes no time. What is it bound by:"
        " memory or scheduler?",
        engine,
        by_hand,
        f"The device waits {wait} ms, and kernels take {saved} ms above their floor of {floor} ms.",
        choices=("memory", "scheduler"),
    )


def amdahl_left(rng: Random) -> Question:
    share, faster = rng.choice((20, 30, 40, 50, 60, 80)), rng.choice((2, 4, 5, 10))

    def engine() -> float:
        from mini_vllm.observability.bottleneck import amdahl

        return amdahl(share / 100, faster)

    return Question(
        f"A function has {share} % of a run's time and becomes {faster} times as fast. How many"
        " times as fast is the run?",
        engine,
        lambda: 100 / (100 - share + share / faster),
        f"{100 - share} % stay, and {share} / {faster} = {share / faster:g} % are left of the rest.",
        tolerance=0.01,
    )


def rank(rng: Random) -> Question:
    count, percent = rng.choice((10, 20, 40, 50)), rng.choice((50, 90, 95, 99))
    values = sorted(rng.sample(range(10, 400), count))

    def engine() -> float:
        from mini_vllm.observability.capacity import percentile

        return percentile(values, percent)

    place = -(-percent * count // 100)
    near = ", ".join(str(value) for value in values[max(0, place - 2) : place + 1])
    return Question(
        f"{count} latencies. Sorted, numbers {max(1, place - 1)} to {min(count, place + 1)} are"
        f" {near} ms. What is the p{percent} in ms?",
        engine,
        lambda: values[place - 1],
        f"{percent} % of {count} is {percent * count / 100:g}, rounded up {place}: the value of that"
        " rank.",
    )


def omitted(rng: Random) -> Question:
    interval, hang = rng.choice((10, 20, 50)), rng.randint(2, 12)
    latency = interval * hang + rng.choice((0, interval // 2))

    def engine() -> int:
        from mini_vllm.observability.capacity import with_omitted

        return len(with_omitted([latency / 1000], interval / 1000)) - 1

    return Question(
        f"A client sends every {interval} ms, but only after its last answer. One answer took"
        f" {latency} ms. How many latencies are missing?",
        engine,
        lambda: hang - 1,
        f"Requests were due every {interval} ms meanwhile; each that would have waited"
        f" {interval} ms or more counts.",
    )


def halving(rng: Random) -> Question:
    configs, least, doublings = rng.randint(3, 16), rng.choice((4, 8)), rng.randint(1, 3)

    def engine() -> int:
        from mini_vllm.observability.experiments import Promise, successive_halving

        asked: list[int] = []

        def measure(config: int, requests: int) -> tuple[float, float]:
            asked.append(requests)
            return 1.0 + config, 1.0

        most = least * 2**doublings
        successive_halving(range(configs), measure, Promise(1.0, 1.0), least, most)
        return sum(asked)

    def by_hand() -> int:
        left, requests, total, largest = configs, least, 0, least * 2**doublings
        while True:
            requests = largest if left == 1 else requests
            total += left * requests
            if requests == largest:
                return total
            left, requests = -(-left // 2), 2 * requests

    return Question(
        f"Successive halving, {configs} configurations, from {least} to"
        f" {least * 2**doublings} requests each. How many requests are measured in all?",
        engine,
        by_hand,
        "Each round measures half as many configurations, rounded up, with twice as many requests.",
    )


KINDS = {
    "at-once": at_once,
    "knee": knee,
    "most": most,
    "bound": bound,
    "amdahl": amdahl_left,
    "percentile": rank,
    "omitted": omitted,
    "halving": halving,
}
