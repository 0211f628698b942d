"""Train a bundled model from scratch on the generated text.

    python -m training.train storyteller
    python -m training.train storyteller-draft      # needs the first one: it learns from it
    python -m training.train storyteller-hybrid     # states and experts: training/hybrid.py

Batches are made on the fly from (seed, step), so a run that was stopped goes on from its last
checkpoint with the very text it would have seen. The weights are trained in float32 and saved in
bfloat16; the folder is then ready for Hugging Face transformers and for mini_vllm.
"""

from __future__ import annotations

import argparse
import ctypes
import hashlib
import json
import math
import os
import platform
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from mini_vllm import bundled
from training import corpus, hybrid
from training.muon import Muon

IGNORE = -100  # label of a token that does not count in the loss
VALIDATION_SEED = "validation"


@dataclass(frozen=True)
class Recipe:
    """One training run: the model's shape and how it is trained.

    The rest of a hybrid's shape stands in `training.hybrid`.
    """

    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    steps: int
    learning_rate: float
    tokens_per_step: int = 2048
    muon_learning_rate: float = 0.02
    warmup_steps: int = 50
    decay_steps: int = 300
    practice_step: int = 0  # from this step on the text has more practice and fewer stories
    teacher: str | None = None
    hybrid: bool = False


RECIPES = {
    "storyteller": Recipe(192, 576, 4, 4, 2, 64, steps=1400, learning_rate=3e-3, practice_step=900),
    "storyteller-draft": Recipe(
        128,
        320,
        2,
        2,
        1,
        64,
        steps=600,
        learning_rate=3e-3,
        decay_steps=200,
        practice_step=300,
        teacher="storyteller",
    ),
    "storyteller-hybrid": Recipe(
        192, 576, 4, 4, 2, 64, steps=1400, learning_rate=3e-3, practice_step=900, hybrid=True
    ),
}


def keep_freed_memory() -> None:
    """Tell glibc to keep freed memory for the next step (no effect on other platforms).

    A training step allocates and frees the same large tensors again and again. By default each one
    is mapped and unmapped, and the page faults cost several times the arithmetic.
    """
    if platform.system() != "Linux":
        return
    libc = ctypes.CDLL(None)
    trim_threshold, top_pad, mmap_threshold = -1, -2, -3  # names of glibc's malloc.h
    if hasattr(libc, "mallopt"):
        libc.mallopt(mmap_threshold, 1 << 30)
        libc.mallopt(trim_threshold, (1 << 31) - 1)
        libc.mallopt(top_pad, 1 << 29)


def make_model(recipe: Recipe, vocab_size: int) -> PreTrainedModel:
    """A Qwen3 model of the recipe's shape, or a hybrid, with random weights."""
    if recipe.hybrid:
        return hybrid.make_hybrid(vocab_size)
    config = Qwen3Config(
        vocab_size=vocab_size,
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.intermediate_size,
        num_hidden_layers=recipe.num_hidden_layers,
        num_attention_heads=recipe.num_attention_heads,
        num_key_value_heads=recipe.num_key_value_heads,
        head_dim=recipe.head_dim,
        max_position_embeddings=2048,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
        use_cache=False,
    )
    return Qwen3ForCausalLM(config)


# --- batches ----------------------------------------------------------------------------------


@dataclass
class Row:
    """Token ids and labels of one document or of one packed row."""

    ids: list[int]
    labels: list[int]


def encode(documents: list[corpus.Document], tokenizer: PreTrainedTokenizerFast) -> list[Row]:
    """Turn documents into ids; the label of an untrained token is `IGNORE`."""
    segments = [segment for document in documents for segment in document]
    encoded = iter(tokenizer([s.text for s in segments], add_special_tokens=False)["input_ids"])
    rows = []
    for document in documents:
        row = Row([], [])
        for segment in document:
            ids = next(encoded)
            row.ids += ids
            row.labels += ids if segment.trained else [IGNORE] * len(ids)
        rows.append(row)
    return rows


def pack(documents: list[Row], num_rows: int, length: int, rng: Random) -> list[Row]:
    """Pack whole documents into rows of at most `length` tokens, longest first, where they fit.

    Afterwards the documents of a row are shuffled, so that short ones also come first. Every row
    begins with the beginning of a document, as a prompt does.
    """
    bins: list[list[Row]] = [[] for _ in range(num_rows)]
    room = [length] * num_rows
    for document in sorted(documents, key=lambda d: -len(d.ids)):
        best = max(range(num_rows), key=room.__getitem__)
        if len(document.ids) <= room[best]:
            bins[best].append(document)
            room[best] -= len(document.ids)
    rows = []
    for chosen in bins:
        rng.shuffle(chosen)
        rows.append(Row([i for d in chosen for i in d.ids], [i for d in chosen for i in d.labels]))
    return rows


def make_batch(
    seed: str, tokens: int, length: int, practice: bool, tokenizer: PreTrainedTokenizerFast
) -> tuple[Tensor, Tensor]:
    """Inputs and labels, both [tokens // length, length] int64, that depend on the arguments alone.

    Label i belongs to the token after input i.
    """
    rng = Random(seed)
    num_rows = tokens // length
    documents: list[Row] = []
    while sum(len(d.ids) for d in documents) < num_rows * (length + 1):
        new = encode([corpus.document(rng, practice) for _ in range(8)], tokenizer)
        documents += [d for d in new if len(d.ids) <= length + 1]
    inputs = torch.zeros(num_rows, length, dtype=torch.int64)
    labels = torch.full((num_rows, length), IGNORE)
    for i, row in enumerate(pack(documents, num_rows, length + 1, rng)):
        inputs[i, : len(row.ids) - 1] = torch.tensor(row.ids[:-1])
        labels[i, : len(row.ids) - 1] = torch.tensor(row.labels[1:])
    return inputs, labels


def length_of_step(step: int) -> int:
    """Most steps use short rows; every fourth trains positions up to 1024."""
    return 1024 if step % 4 == 3 else 512


# --- training ---------------------------------------------------------------------------------


def learning_rate(recipe: Recipe, step: int) -> float:
    """Share of the peak learning rate: warm-up, a constant, and a linear way down at the end.

    The constant part does not know where the run ends, so a checkpoint of it can go on with another
    number of steps.
    """
    warm_up = (step + 1) / recipe.warmup_steps
    way_down = (recipe.steps - step) / recipe.decay_steps
    return min(1.0, warm_up, way_down)


def make_optimizers(model: torch.nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """Muon for the weight matrices, AdamW for the embedding and the norms."""
    named = list(model.named_parameters())
    matrices = [weight for name, weight in named if hybrid.is_matrix(name, weight)]
    others = [weight for name, weight in named if not hybrid.is_matrix(name, weight)]
    return [
        Muon(matrices, lr=recipe.muon_learning_rate, momentum=0.95, weight_decay=0.02),
        torch.optim.AdamW(
            others, lr=recipe.learning_rate, betas=(0.9, 0.98), weight_decay=0.0, fused=True
        ),
    ]


def trained_logits(model: torch.nn.Module, inputs: Tensor, keep: Tensor) -> Tensor:
    """Logits [kept tokens, vocab] of the positions where `keep` [rows, length] is true."""
    hidden = model.model(input_ids=inputs, use_cache=False).last_hidden_state
    return model.lm_head(hidden[keep])


def hybrid_loss(model: PreTrainedModel, inputs: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """As `loss_of`; what is minimised also keeps the experts busy."""
    keep = labels != IGNORE
    hidden, balance, _ = hybrid.hidden_and_balance(model, inputs)
    cross_entropy = F.cross_entropy(model.lm_head(hidden[keep]), labels[keep])
    return cross_entropy + balance, cross_entropy


def loss_of(
    model: torch.nn.Module, teacher: torch.nn.Module | None, inputs: Tensor, labels: Tensor
) -> tuple[Tensor, Tensor]:
    """(loss to minimise, cross entropy of the text), both scalars in nats per token.

    With a teacher the loss is mostly the divergence from the teacher's probabilities: they say more
    than the one token that happened to follow.
    """
    keep = labels != IGNORE
    logits = trained_logits(model, inputs, keep)
    cross_entropy = F.cross_entropy(logits, labels[keep])
    if teacher is None:
        return cross_entropy, cross_entropy
    with torch.no_grad():
        target = F.log_softmax(trained_logits(teacher, inputs, keep), dim=-1)
    divergence = F.kl_div(
        F.log_softmax(logits, dim=-1), target, log_target=True, reduction="batchmean"
    )
    return 0.9 * divergence + 0.1 * cross_entropy, cross_entropy


@torch.no_grad()
def validate(model: torch.nn.Module, tokenizer: PreTrainedTokenizerFast, batches: int = 4) -> float:
    """Mean cross entropy over text of a seed that training never sees."""
    total, count = 0.0, 0
    for i in range(batches):
        inputs, labels = make_batch(f"{VALIDATION_SEED}:{i}", 4096, 512, True, tokenizer)
        keep = labels != IGNORE
        logits = trained_logits(model, inputs, keep)
        total += F.cross_entropy(logits, labels[keep], reduction="sum").item()
        count += int(keep.sum())
    return total / count


def write_atomically(path: Path, data: Any) -> None:
    """`torch.save` to a temporary file beside `path`, then rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".tmp")
    torch.save(data, temporary)
    os.replace(temporary, path)


@dataclass
class Progress:
    """What a checkpoint remembers besides the weights."""

    step: int = 0
    seconds: float = 0.0
    tokens: int = 0
    loss: float = float("nan")


def load_teacher(recipe: Recipe) -> torch.nn.Module | None:
    """The frozen model that a draft model learns from, or None."""
    if recipe.teacher is None:
        return None
    folder = bundled.path(recipe.teacher)
    teacher = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return teacher.eval().requires_grad_(False)


def train(
    name: str, recipe: Recipe, seed: int, checkpoint: Path
) -> tuple[PreTrainedModel, Progress]:
    """Run (or go on with) the training; returns the model and what it took."""
    torch.manual_seed(seed)
    tokenizer = AutoTokenizer.from_pretrained(bundled.path(name))
    model = make_model(recipe, len(tokenizer))
    teacher = load_teacher(recipe)
    optimizers = make_optimizers(model, recipe)
    peaks = [optimizer.defaults["lr"] for optimizer in optimizers]
    progress = Progress()
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        if state["recipe"] | {"steps": recipe.steps} != asdict(recipe):
            sys.exit(f"{checkpoint} belongs to another recipe; delete it to start again")
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        progress = Progress(**state["progress"])
        print(f"going on from step {progress.step}", flush=True)

    def save() -> None:
        write_atomically(
            checkpoint,
            {
                "model": model.state_dict(),
                "optimizers": [optimizer.state_dict() for optimizer in optimizers],
                "progress": asdict(progress),
                "recipe": asdict(recipe),
            },
        )

    model.train()
    mark = time.perf_counter()
    while progress.step < recipe.steps:
        step = progress.step
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * learning_rate(recipe, step)
        inputs, labels = make_batch(
            f"{seed}:{step}",
            recipe.tokens_per_step,
            length_of_step(step),
            step >= recipe.practice_step,
            tokenizer,
        )
        if recipe.hybrid:
            loss, cross_entropy = hybrid_loss(model, inputs, labels)
        else:
            loss, cross_entropy = loss_of(model, teacher, inputs, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        if not math.isfinite(loss.item()):
            sys.exit(f"loss is {loss.item()} at step {step}; lower the learning rate")
        now = time.perf_counter()
        progress.seconds, mark = progress.seconds + now - mark, now
        progress.step, progress.tokens = step + 1, progress.tokens + inputs.numel()
        smooth = 0.95 if step else 0.0
        old = progress.loss if step else 0.0
        progress.loss = smooth * old + (1 - smooth) * cross_entropy.item()
        if progress.step % 20 == 0 or progress.step == recipe.steps:
            print(
                f"step {progress.step}/{recipe.steps}  loss {progress.loss:.4f}  "
                f"{progress.tokens / progress.seconds:.0f} tokens/s  {progress.seconds:.0f} s",
                flush=True,
            )
        if progress.step % 100 == 0:
            save()
    save()
    return model, progress


# --- results ----------------------------------------------------------------------------------


def save_model(model: PreTrainedModel, folder: Path) -> None:
    """Write bfloat16 weights, config and generation config into `folder`, each file atomically."""
    model = model.to(torch.bfloat16).eval()
    model.config.use_cache = True
    model.generation_config = GenerationConfig(eos_token_id=[2, 0], pad_token_id=0)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        model.save_pretrained(temporary)
        for file in Path(temporary).iterdir():
            file.chmod(0o644)
            os.replace(file, folder / file.name)


def cpu_name() -> str:
    """The processor's name, as the system gives it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((li.split(":", 1)[1].strip() for li in lines if li.startswith("model name")), "?")


def read_report(folder: Path) -> dict[str, Any]:
    """The contents of a model's `training_report.json`."""
    report: dict[str, Any] = json.loads((folder / "training_report.json").read_text("utf-8"))
    return report


def write_report(folder: Path, report: dict[str, Any]) -> None:
    """Write `training_report.json` atomically."""
    temporary = folder / "training_report.tmp"
    temporary.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    os.replace(temporary, folder / "training_report.json")


def report_of(
    model: PreTrainedModel, name: str, recipe: Recipe, progress: Progress, seed: int
) -> dict[str, Any]:
    """What the run took and reached; `evaluate` adds the quality measures."""
    tokenizer = AutoTokenizer.from_pretrained(bundled.path(name))
    inputs, _ = make_batch(f"{VALIDATION_SEED}:0", 4096, 512, True, tokenizer)
    shares = {"expert_shares": hybrid.expert_shares(model, inputs)} if recipe.hybrid else {}
    return {
        "model": name,
        "parameters": sum(p.numel() for p in model.parameters()),
        "recipe": asdict(recipe),
        "seed": seed,
        "steps": progress.step,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds),
        "tokens_per_second": round(progress.tokens / progress.seconds),
        "train_loss": round(progress.loss, 4),
        "validation_loss": round(validate(model, tokenizer), 4),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        **shares,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", choices=bundled.NAMES)
    parser.add_argument("--steps", type=int, help="train for fewer or more steps than the recipe")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--work-dir", type=Path, default=Path("build/training"))
    args = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(args.threads)
    recipe = RECIPES[args.name]
    if args.steps:
        recipe = replace(recipe, steps=args.steps)
    checkpoint = args.work_dir / f"{args.name}.pt"
    model, progress = train(args.name, recipe, args.seed, checkpoint)
    report = report_of(model, args.name, recipe, progress, args.seed)
    folder = bundled.path(args.name)
    save_model(model, folder)
    weights = (folder / "model.safetensors").read_bytes()
    report["weights_sha256"] = hashlib.sha256(weights).hexdigest()
    write_report(folder, report)
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
