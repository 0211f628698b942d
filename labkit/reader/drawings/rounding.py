"""Phase 09: what one loud number does to the steps of its group."""

from __future__ import annotations

from labkit.reader.drawings.canvas import BLUE, GREY, INK, PALE, RED, Canvas

QUIET = (0.31, -0.08, 0.02, 0.17)
LOUD = 2.1
FAR = 0.05
"""An error that is drawn in red."""
LEFT, WIDTH, LIMIT = 60.0, 640.0, 0.42


def outlier() -> Canvas:
    """Four weights, and the 4-bit numbers that they become: alone, and beside a loud one."""
    canvas = Canvas(760, 300, "Four weights rounded to four bits, alone and beside an outlier")
    _group(canvas, 70, "a group of quiet weights", QUIET)
    _group(canvas, 210, f"the same beside one of {LOUD}", (*QUIET, LOUD))
    return canvas


def _group(canvas: Canvas, y: float, title: str, weights: tuple[float, ...]) -> None:
    import torch

    from mini_vllm.quantization.packing import choose_qparams, dequantize, quantize

    row = torch.tensor([weights])
    scale, zero = choose_qparams(row, bits=4, group_size=-1, symmetric=True)
    back = dequantize(quantize(row, scale, zero, bits=4), scale, zero)[0].tolist()
    step = scale.item()

    def x(value: float) -> float:
        return LEFT + WIDTH * (value + LIMIT) / (2 * LIMIT)

    canvas.text(LEFT, y - 46, f"{title}: a step is {step:.3f}", bold=True)
    canvas.line([(x(-LIMIT), y + 24), (x(LIMIT), y + 24)], colour=PALE)
    for number in range(-8, 8):
        if abs(number * step) <= LIMIT:
            canvas.line([(x(number * step), y + 14), (x(number * step), y + 34)], colour=INK)
            words = f"{number * step:.2f}"
            canvas.text(x(number * step), y + 46, words, size=10.5, colour=GREY, anchor="middle")
    for weight, rounded in zip(QUIET, back, strict=False):
        colour = RED if abs(rounded - weight) > FAR else BLUE
        canvas.dot(x(weight), y - 14, colour)
        canvas.text(x(weight), y - 28, f"{weight:g}", size=11, anchor="middle")
        canvas.line([(x(weight), y - 8), (x(rounded), y + 14)], colour=colour, arrow=True)
