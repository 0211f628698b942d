"""What `gpu-report` has measured, as Markdown and as a picture. Needs no GPU: it reads the JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from labkit.gpu.decode import FEW_TOKENS, TARGET_CALLS, TARGET_FEW_MS
from labkit.gpu.workload import SHAPE, nano_vllm, num_weights, shares

Items = Mapping[str, Mapping[str, Any]]
TITLES = {
    "decode": "Decoding",
    "smoke": "Features against the CPU",
    "kernels": "Kernel checks",
    "tests": "GPU tests",
    "roofline": "Kernels against the roof",
    "end-to-end": "End to end",
}
NAMES = {
    "mini_vllm": "mini_vllm",
    "hf_continuous": "transformers, continuous batching",
    "hf": "transformers `generate`",
}
SHORT = {"hf": "transformers", "hf_continuous": "transformers,\ncontinuous"}
"""Under the bars of the picture."""


# ---------------------------------------------------------------- Markdown
def markdown(document: Mapping[str, Any]) -> str:
    """The whole report; a part that was never run says so."""
    lines = [
        f"# Measured on one {document['gpu']}",
        "",
        "Written by `make gpu-report` from `report.json` beside it; do not edit. `--part NAME`"
        " measures one part again.",
    ]
    for part, title in TITLES.items():
        items = document["parts"].get(part, {})
        lines += ["", f"## {title}", ""]
        lines += [*SECTIONS[part](items), "", *footer(items)] if items else ["Not run."]
    return "\n".join(lines) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A Markdown table; a bar inside a cell does not end it."""
    cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    return [
        f"| {' | '.join(head)} |",
        f"|{'---|' * len(head)}",
        *(f"| {' | '.join(row)} |" for row in cells),
    ]


def verdict(item: Mapping[str, Any]) -> str:
    """ "WRONG: why", "not run to its end: why", or ""."""
    if "wrong" in item:
        return f"WRONG: {item['wrong']}"
    return f"not run to its end: {item['cut']}" if "cut" in item else ""


def footer(items: Items) -> list[str]:
    """Where and when; items that were measured apart are told apart."""
    stamps: dict[str, list[str]] = {}
    for name, item in items.items():
        machine = item["machine"]
        versions = ", ".join(
            f"{key} {machine[key]}" for key in ("torch", "cuda", "triton", "transformers", "python")
        )
        text = f"{item['when']}, commit {item['commit']}, {versions}"
        stamps.setdefault(text, []).append(name)
    if len(stamps) == 1:
        return [f"*{next(iter(stamps))}.*"]
    return [f"*{', '.join(names)}: {text}.*" for text, names in stamps.items()]


def tests_section(items: Items) -> list[str]:
    good = sum("saw" in item for item in items.values())
    rows = [[name.replace("_", " "), verdict(item) or item["saw"]] for name, item in items.items()]
    return [f"{good} of {len(items)} hold.", "", *table(["what must hold", "seen"], rows)]


def decode_section(items: Items) -> list[str]:
    """A row for each shape and batch; a target is met, missed, or not set."""
    rows = []
    for name, item in items.items():
        for row in item.get("rows", []):
            kernels, target = row["kernels_ms"], row["target_ms"]
            calls = row.get("calls")
            met = "" if calls is None else "met" if calls <= TARGET_CALLS else "MISSED"
            rows.append([
                f"{name}, {row['requests']} x {row['context']}", f"{row['ms']:.2f}",
                f"{row['floor_ms']:.2f}", "" if kernels is None else f"{kernels:.2f}",
                "" if kernels is None else f"{max(1 - kernels / row['ms'], 0):.0%}",
                "" if target is None else f"{target:.1f}: {'met' if row['met'] else 'MISSED'}",
                "" if calls is None else f"{calls:.0f}, at most {TARGET_CALLS}: {met}",
                str(row["steps"]),
            ])  # fmt: skip
        if verdict(item):
            rows.append([name, verdict(item), *[""] * 6])
    head = ["shape, requests x context", "ms a token", "floor", "kernels", "device idle", "target",
            "calls a step", "steps"]  # fmt: skip
    few = [
        f"{name} {ms:.1f} ms ({'met' if ms <= TARGET_FEW_MS else 'MISSED'})"
        for name, item in items.items()
        if (ms := item.get("few_tokens_ms")) is not None
    ]
    return [
        "Median time of a step in which all requests decode. The floor is what reading weights,"
        " keys and values once takes at the bandwidth measured here. A call is a launch, a replay"
        " or a copy.",
        "",
        *table(head, rows),
        "",
        f"A prompt of {FEW_TOKENS} tokens, whose operations are launched one by one, is"
        f" answered after (at most {TARGET_FEW_MS:.0f} ms, or each prompt that arrives holds up all"
        f" decodes): {', '.join(few) or 'not measured'}.",
    ]


def kernels_section(items: Items) -> list[str]:
    rows = []
    for name, item in items.items():
        cases = item.get("cases", [])
        good = f"{sum(case[1] for case in cases)}/{len(cases)}" if cases else "not run"
        sanitizer = item.get("sanitizer", {"status": "not run", "text": ""})
        memory = sanitizer["status"]
        if memory == "not run" and sanitizer["text"]:
            memory += f" ({sanitizer['text']})"
        proof = ", ".join(item.get("proof", [])) or "none"
        rows.append(
            [
                f"`{name}`",
                verdict(item) or "passed",
                item.get("cpu", "not run"),
                good,
                proof,
                memory,
            ]
        )
    head = ["kernel", "verdict", "CPU mode", "cases on the GPU", "seen by the profiler", "memcheck"]
    return table(head, rows)


def roofline_section(items: Items) -> list[str]:
    lines: list[str] = []
    rows = []
    for name, item in items.items():
        for row in item.get("rows", []):
            rows.append(roofline_row(name, row))
        if verdict(item):
            rows.append([f"`{name}`", verdict(item), *[""] * 6])
    ceilings = measured_ceilings(items)
    if ceilings:
        lines += [
            f"Measured here: a copy moves {ceilings['bandwidth'] / 1e12:.2f} TB/s, a bfloat16"
            f" product does {ceilings['flops'] / 1e12:.0f} TFLOP/s. A share is the time that a"
            " kernel's least bytes or FLOPs take at these rates, whichever is longer, over the"
            " time it took.",
            "",
        ]
    head = ["kernel", "problem", "µs", "p20 to p80", "floor", "GB/s", "TFLOP/s", "bound", "share",
            "target"]  # fmt: skip
    return lines + table([*head], rows) + beside_torch(items)


def roofline_row(name: str, row: Mapping[str, Any]) -> list[str]:
    times, target = row["times"]["yours"], row.get("target")
    word = "met" if target is not None and row["share"] >= target else "MISSED"
    return [
        f"`{name}`",
        row["name"],
        f"{times['median']:.1f}",
        f"{times['p20']:.1f} to {times['p80']:.1f}" + (" (noisy)" if times["noisy"] else ""),
        f"{row['floor_us']:.1f}",
        f"{row['bytes_per_second'] / 1e9:,.0f}",
        f"{row['flops_per_second'] / 1e12:.1f}",
        row["bound"],
        f"{row['share']:.0%}",
        "" if target is None else f"{target:.0%}: {word}",
    ]


def measured_ceilings(items: Items) -> dict[str, float]:
    """The best rates that any item of a part saw; empty if none did."""
    seen = [row["ceilings"] for item in items.values() for row in item.get("rows", [])]
    return {key: max(each[key] for each in seen) for key in ("bandwidth", "flops")} if seen else {}


OF_TORCH = {
    **dict.fromkeys(
        ("paged_prefill", "tiled_prefill"), "torch's own attention over contiguous keys"
    ),
    "decode_inputs": "`StaticInputs.fill`, five copies and two fills of torch,",
}


def beside_torch(items: Items) -> list[str]:
    """A sentence for each problem that torch has a kernel for."""
    return [
        text
        for name, item in items.items()
        for row in item.get("rows", [])
        if "torch" in row["ratio"]
        for text in (
            "",
            f"`{name}`, {row['name']}: {OF_TORCH.get(name, 'the product of torch')} takes"
            f" {row['times']['torch']['median']:.1f} µs, so this kernel reaches"
            f" {1 / row['ratio']['torch']:.0%} of its rate." + host_time(row),
        )
    ]


def host_time(row: Mapping[str, Any]) -> str:
    """How long the host needs to start either; "" in a report of before this was measured."""
    host = row.get("host_us")
    if not host:
        return ""
    return (
        f" The host starts this kernel in {host['yours']:.1f} µs, torch's in"
        f" {host['torch']:.1f} µs."
    )


def end_to_end_section(items: Items) -> list[str]:
    workload = nano_vllm()
    lines = [
        f"{len(workload.prompts)} prompts, {workload.input_tokens:,} tokens in,"
        f" {workload.output_tokens:,} out, temperature 0.6, EOS ignored; a model of Qwen3-0.6B's"
        f" shape ({num_weights(SHAPE):,} weights) with random weights in bfloat16.",
        "",
    ]
    rows = []
    for engine, title in NAMES.items():
        item = items.get(engine, {"cut": "never begun"})
        if "output_tokens" not in item:
            rows.append([title, verdict(item), "", ""])
            continue
        sample = "" if item["whole"] else " (a sample: it stopped when its time was up)"
        rate = item["output_tokens"] / item["seconds"]
        rows.append([title, f"{item['output_tokens']:,}{sample}", f"{item['seconds']:.1f}",
                     f"{rate:,.0f}"])  # fmt: skip
    return [*lines, *table(["engine", "tokens out", "seconds", "tokens/s"], rows), *limits(items)]


def limits(items: Items) -> list[str]:
    """Our run beside transformers', and as a share of what the GPU could do at most."""
    ours, theirs = items.get("mini_vllm", {}), items.get("hf", {})
    lines = []
    if "output_tokens" in ours and "output_tokens" in theirs:
        rates = [item["output_tokens"] / item["seconds"] for item in (ours, theirs)]
        lines += ["", f"{rates[0] / rates[1]:.1f} times the tokens per second of transformers."]
    if "output_tokens" in ours and "bandwidth" in items.get("ceilings", {}):
        ceilings = {key: items["ceilings"][key] for key in ("bandwidth", "flops")}
        share = shares(nano_vllm(), ours["seconds"], ours["prefill_seconds"], ceilings)
        lines += [
            "",
            f"The prompts alone take {ours['prefill_seconds']:.2f} s. The rest decodes: reading"
            " weights, keys and values once takes at least"
            f" {share['decode_floor_seconds']:.2f} s at the {ceilings['bandwidth'] / 1e12:.2f} TB/s"
            f" measured here, so decoding reaches **{share['decode_share']:.0%}** of the bandwidth"
            f" limit. Prefill reaches {share['prefill_share']:.0%} of the FLOP rate of a large"
            f" product, the whole run {share['total_share']:.0%} of the limit of both.",
        ]
    return lines


SECTIONS = {
    "decode": decode_section,
    "smoke": tests_section,
    "kernels": kernels_section,
    "tests": tests_section,
    "roofline": roofline_section,
    "end-to-end": end_to_end_section,
}


# ---------------------------------------------------------------- the picture
def draw(document: Mapping[str, Any], file: Path) -> None:
    """Left: the kernels under the roof. Right: tokens a second of both engines and the limit."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    from labkit.kernels.measure.roofline import Gpu, draw_roof

    figure, (left, right) = pyplot.subplots(1, 2, figsize=(12, 5), width_ratios=(3, 2))
    roofline = document["parts"].get("roofline", {})
    ceilings = measured_ceilings(roofline)
    if ceilings:
        gpu = Gpu(document["gpu"], ceilings["bandwidth"], ceilings["flops"], "measured")
        draw_roof(left, list(points(roofline)), gpu)
    else:
        nothing(left, "roofline: not run")
    rates = dict(token_rates(document["parts"].get("end-to-end", {})))
    if rates:
        bars = right.bar(list(rates), list(rates.values()), color=["#0072B2", "#E69F00", "#BBBBBB"])
        right.bar_label(bars, [f"{rate:,.0f}" for rate in rates.values()])
        right.set(ylabel="tokens per second", title="nano-vLLM's workload, Qwen3-0.6B's shape")
    else:
        nothing(right, "end-to-end: not run")
    figure.tight_layout()
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def nothing(axes: Any, text: str) -> None:
    axes.text(0.5, 0.5, text, ha="center", va="center")
    axes.set_axis_off()


def points(items: Items) -> Iterator[Any]:
    """Each timed problem as a point under the roof."""
    from labkit.kernels.measure.roofline import Point

    for name, item in items.items():
        for row in item.get("rows", []):
            work = (row["bytes"], row["flops"])
            title = f"{name}, {row['name']}: {row['share']:.0%}"
            yield Point(title, *work, *work, row["times"]["yours"]["median"])


def token_rates(items: Items) -> Iterator[tuple[str, float]]:
    """Tokens a second of each engine that ran, and the most that bytes and FLOPs allow."""
    for engine in NAMES:
        item = items.get(engine, {})
        if "output_tokens" in item:
            yield (
                SHORT.get(engine, engine),
                item["output_tokens"] / item["seconds"],
            )
    ours, ceilings = items.get("mini_vllm", {}), items.get("ceilings", {})
    if "output_tokens" in ours and "bandwidth" in ceilings:
        rates = {key: ceilings[key] for key in ("bandwidth", "flops")}
        share = shares(nano_vllm(), ours["seconds"], ours["prefill_seconds"], rates)
        yield "limit", ours["output_tokens"] / ours["seconds"] / share["total_share"]
