"""Give storyteller eyes: train storyteller-vision on procedurally drawn pictures.

    python -m training.vision                   # about nine minutes on one core, in one go
    python -m training.vision --minutes 2       # ... or in pieces: it goes on from its checkpoint
    python -m training.vision --evaluate        # only measure the model that is there

Two stages. First the encoder alone learns to say, for each of its tokens, which shape and color
is in that quadrant: otherwise the decoder would have to teach it through its own loss. Then
encoder and decoder learn to answer questions; half of each step is the text that storyteller was
trained on, for a model that learns only to see forgets its sums.

The layout is Qwen3-VL's, so Hugging Face and mini_vllm load the folder as it is.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    Qwen2VLImageProcessorPil,
    Qwen3VLConfig,
    Qwen3VLForConditionalGeneration,
)

from mini_vllm import bundled
from training import corpus, pictures
from training.evaluate import draw, share, sums
from training.train import (
    IGNORE,
    cpu_name,
    keep_freed_memory,
    make_batch,
    write_atomically,
    write_report,
)

NAME = "storyteller-vision"
NEW_TOKENS = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>")
VOCAB_SIZE = 2056
PATCH, MERGE = 4, 2
NUM_TOKENS = (pictures.SIZE // (PATCH * MERGE)) ** 2
TEXT_CLASSES = len(pictures.SHAPES) * len(pictures.COLORS) + 1


@dataclass(frozen=True)
class Recipe:
    """How long and how fast."""

    see_steps: int = 260
    see_batch: int = 64
    see_rate: float = 2e-3
    tell_steps: int = 700
    tell_batch: int = 20
    turns: int = 3
    text_tokens: int = 1024
    vision_rate: float = 1e-3
    text_rate: float = 5e-4
    warmup_steps: int = 30
    decay_share: float = 0.4


def make_config() -> Qwen3VLConfig:
    """Qwen3-VL around storyteller's decoder."""
    text = json.loads((bundled.path("storyteller") / "config.json").read_text("utf-8"))
    kept = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads",
        "num_key_value_heads", "head_dim", "max_position_embeddings", "rms_norm_eps",
    )  # fmt: skip
    rope = {
        "rope_type": "default",
        "rope_theta": text["rope_parameters"]["rope_theta"],
        "mrope_section": [12, 10, 10],
        "mrope_interleaved": True,
    }
    return Qwen3VLConfig(
        text_config={key: text[key] for key in kept}
        | {"vocab_size": VOCAB_SIZE, "rope_parameters": rope, "tie_word_embeddings": True},
        vision_config={
            "depth": 3,
            "hidden_size": 96,
            "intermediate_size": 192,
            "num_heads": 3,
            "patch_size": PATCH,
            "spatial_merge_size": MERGE,
            "temporal_patch_size": 2,
            "out_hidden_size": text["hidden_size"],
            "num_position_embeddings": 64,
            "deepstack_visual_indexes": [1],
        },
        vision_start_token_id=2048,
        vision_end_token_id=2049,
        image_token_id=2050,
        video_token_id=2051,  # there is none; Hugging Face wants a number
        tie_word_embeddings=True,
        eos_token_id=2,
    )


def make_model() -> Qwen3VLForConditionalGeneration:
    """A random encoder, and storyteller's decoder with a few more rows in its embedding."""
    model = Qwen3VLForConditionalGeneration(make_config())
    told = AutoModelForCausalLM.from_pretrained(bundled.path("storyteller"), dtype=torch.float32)
    weights = told.model.state_dict()
    old = weights.pop("embed_tokens.weight")
    decoder = model.model.language_model
    with torch.no_grad():
        decoder.embed_tokens.weight[: len(old)] = old
        decoder.embed_tokens.weight[len(old) :] = old.mean(0)
    left_out = decoder.load_state_dict(weights, strict=False)
    assert left_out.missing_keys == ["embed_tokens.weight"], left_out
    return model


def make_processor() -> Qwen2VLImageProcessorPil:
    return Qwen2VLImageProcessorPil(
        patch_size=PATCH,
        merge_size=MERGE,
        temporal_patch_size=2,
        size={"shortest_edge": pictures.SIZE**2, "longest_edge": (2 * pictures.SIZE) ** 2},
        image_mean=[0.5, 0.5, 0.5],
        image_std=[0.5, 0.5, 0.5],
    )


def make_tokenizer() -> Any:
    """Storyteller's, with three more special tokens."""
    tokenizer = AutoTokenizer.from_pretrained(bundled.path("storyteller"))
    tokenizer.add_special_tokens({"additional_special_tokens": list(NEW_TOKENS)})
    ids = tokenizer.convert_tokens_to_ids(list(NEW_TOKENS))
    assert ids == [2048, 2049, 2050], ids
    return tokenizer


# --- batches ----------------------------------------------------------------------------------


def patches_of(scenes: list[pictures.Scene]) -> dict[str, Tensor]:
    made = make_processor()(images=[scene.image for scene in scenes], return_tensors="pt")
    return {key: made[key] for key in ("pixel_values", "image_grid_thw")}


def quadrant_labels(scenes: list[pictures.Scene]) -> Tensor:
    """What is in the quadrant of each token: `[pictures, tokens]`; 0 is nothing."""
    side = pictures.SIZE // (PATCH * MERGE)
    labels = torch.zeros(len(scenes), side, side, dtype=torch.int64)
    colors = list(pictures.COLORS)
    for index, scene in enumerate(scenes):
        for item in scene.items:
            row, column = divmod(item.quadrant, 2)
            half = side // 2
            name = 1 + pictures.SHAPES.index(item.shape) * len(colors) + colors.index(item.color)
            rows = slice(row * half, row * half + half)
            labels[index, rows, column * half : column * half + half] = name
    return labels.flatten(1)


def chat_of(
    scene: pictures.Scene, rng: Random, turns: int, tokenizer: Any
) -> tuple[list[int], list[int]]:
    """Token ids and labels of a conversation about a picture; only the answers are learned."""
    ids: list[int] = []
    labels: list[int] = []
    for turn in range(turns):
        asked = pictures.exchange(scene, rng)
        place = NEW_TOKENS[0] + NEW_TOKENS[2] * NUM_TOKENS + NEW_TOKENS[1] if turn == 0 else ""
        question = f"{corpus.IM_START}user\n{place}{asked.question}{corpus.IM_END}\n"
        head = tokenizer.encode(f"{question}{corpus.IM_START}assistant\n", add_special_tokens=False)
        tail = tokenizer.encode(asked.answer + corpus.IM_END, add_special_tokens=False)
        end = tokenizer.encode("\n", add_special_tokens=False)
        ids += head + tail + end
        labels += [IGNORE] * len(head) + tail + [IGNORE] * len(end)
    return ids, labels


def make_chats(seed: str, size: int, turns: int, tokenizer: Any) -> dict[str, Tensor]:
    """A batch of conversations, padded on the right; label i belongs to the token after input i."""
    rng = Random(f"pictures:{seed}")
    scenes = [pictures.draw_scene(rng) for _ in range(size)]
    chats = [chat_of(scene, rng, turns, tokenizer) for scene in scenes]
    width = max(len(ids) for ids, _ in chats) - 1
    inputs = torch.zeros(size, width, dtype=torch.int64)
    labels = torch.full((size, width), IGNORE)
    for row, (ids, wanted) in enumerate(chats):
        inputs[row, : len(ids) - 1] = torch.tensor(ids[:-1])
        labels[row, : len(ids) - 1] = torch.tensor(wanted[1:])
    pad = make_config().image_token_id
    kinds = (inputs == pad).int()
    return {"input_ids": inputs, "labels": labels, "mm_token_type_ids": kinds, **patches_of(scenes)}


# --- training ---------------------------------------------------------------------------------


def rate(step: int, steps: int, recipe: Recipe) -> float:
    """Share of the peak: up, level, and down to zero at the end."""
    way_down = (steps - step) / (recipe.decay_share * steps)
    return min(1.0, (step + 1) / recipe.warmup_steps, way_down)


def see_loss(model: Any, head: nn.Module, recipe: Recipe, step: int) -> Tensor:
    """Stage 1: what the encoder says is in each quadrant, by embedding and by DeepStack."""
    rng = Random(f"see:{step}")
    scenes = [pictures.draw_scene(rng) for _ in range(recipe.see_batch)]
    made = patches_of(scenes)
    out = model.model.visual(made["pixel_values"], grid_thw=made["image_grid_thw"])
    labels = quadrant_labels(scenes).flatten()
    loss = F.cross_entropy(head(out.pooler_output), labels)
    for level in out.deepstack_features:
        loss = loss + 0.3 * F.cross_entropy(head(level), labels)
    return loss


def tell_loss(model: Any, tokenizer: Any, recipe: Recipe, step: int) -> Tensor:
    """Stage 2: the answers about pictures, and as much text of the old kind."""
    batch = make_chats(str(step), recipe.tell_batch, recipe.turns, tokenizer)
    labels = batch.pop("labels")
    keep = labels != IGNORE
    hidden = model.model(**batch, use_cache=False).last_hidden_state
    loss = F.cross_entropy(model.lm_head(hidden[keep]), labels[keep])
    inputs, labels = make_batch(f"vision:{step}", recipe.text_tokens, 512, True, tokenizer)
    keep = labels != IGNORE
    hidden = model.model.language_model(input_ids=inputs, use_cache=False).last_hidden_state
    return loss + F.cross_entropy(model.lm_head(hidden[keep]), labels[keep])


def optimizers_of(model: Any, head: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    """One for each stage."""
    see = [*model.model.visual.parameters(), *head.parameters()]
    tell = [
        {"params": list(model.model.visual.parameters()), "lr": recipe.vision_rate},
        {"params": list(model.model.language_model.parameters()), "lr": recipe.text_rate},
    ]
    options: dict[str, Any] = {"betas": (0.9, 0.98), "weight_decay": 0.0}
    return [
        torch.optim.AdamW(see, lr=recipe.see_rate, **options),
        torch.optim.AdamW(tell, **options),
    ]


def train(recipe: Recipe, checkpoint: Path, minutes: float) -> tuple[Any, dict[str, Any], bool]:
    """Train, or go on training; returns the model, what it took, and whether it is done."""
    torch.manual_seed(0)
    model, tokenizer = make_model(), make_tokenizer()
    head = nn.Linear(make_config().text_config.hidden_size, TEXT_CLASSES)
    optimizers = optimizers_of(model, head, recipe)
    peaks = [[group["lr"] for group in optimizer.param_groups] for optimizer in optimizers]
    step, seconds = 0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        head.load_state_dict(state["head"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        step, seconds = state["step"], state["seconds"]
    model.train()
    total = recipe.see_steps + recipe.tell_steps
    start = time.process_time()
    while step < total and time.process_time() - start < 60 * minutes:
        stage = int(step >= recipe.see_steps)
        within = step - stage * recipe.see_steps
        share = rate(within, (recipe.see_steps, recipe.tell_steps)[stage], recipe)
        for group, peak in zip(optimizers[stage].param_groups, peaks[stage], strict=True):
            group["lr"] = peak * share
        if stage:
            loss = tell_loss(model, tokenizer, recipe, within)
        else:
            loss = see_loss(model, head, recipe, within)
        optimizers[stage].zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizers[stage].step()
        step += 1
        if not math.isfinite(loss.item()):
            raise SystemExit(f"loss is {loss.item()} at step {step}; lower the rates")
        if step % 20 == 0:
            spent = seconds + time.process_time() - start
            print(f"step {step}/{total}  loss {loss.item():.4f}  {spent:.0f} s", flush=True)
    seconds += time.process_time() - start
    write_atomically(
        checkpoint,
        {
            "model": model.state_dict(),
            "head": head.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in optimizers],
            "step": step,
            "seconds": seconds,
        },
    )
    report = {
        "model": NAME,
        "base": "storyteller",
        "parameters": sum(p.numel() for p in model.parameters()),
        "encoder_parameters": sum(p.numel() for p in model.model.visual.parameters()),
        "recipe": asdict(recipe),
        "cpu_seconds": round(seconds),
        "last_loss": round(loss.item(), 4) if step else None,
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    return model, report, step >= total


def save(model: Any, folder: Path) -> None:
    """Write the folder as Hugging Face does, with bfloat16 weights."""
    folder.mkdir(parents=True, exist_ok=True)
    model = model.to(torch.bfloat16).eval()
    model.generation_config = GenerationConfig(eos_token_id=[2, 0], pad_token_id=0)
    with tempfile.TemporaryDirectory(dir=folder.parent) as temporary:
        model.save_pretrained(temporary)
        make_tokenizer().save_pretrained(temporary)
        make_processor().save_pretrained(temporary)
        for source in Path(temporary).iterdir():
            source.chmod(0o644)
            os.replace(source, folder / source.name)
    template = bundled.path("storyteller") / "chat_template.jinja"
    shutil.copyfile(template, folder / "chat_template.jinja")


# --- results ----------------------------------------------------------------------------------


def ask(llm: Any, scenes: list[pictures.Scene], questions: list[str]) -> list[str]:
    """Greedy answers to one question about each picture."""
    from mini_vllm import SamplingParams

    chats = [
        [
            {
                "role": "user",
                "content": [
                    {"type": "image_pil", "image_pil": scene.image},
                    {"type": "text", "text": question},
                ],
            }
        ]
        for scene, question in zip(scenes, questions, strict=True)
    ]
    outputs = llm.chat(chats, SamplingParams(temperature=0, max_tokens=40), use_tqdm=False)
    return [output.outputs[0].text.strip() for output in outputs]


def evaluate(folder: Path, count: int = 200) -> dict[str, Any]:
    """How often a whole sentence is right, about pictures that training never drew.

    `wrong_picture` shows another picture than the one that is asked about: a model that only
    guesses well would do as well there.
    """
    from mini_vllm import LLM

    llm = LLM(folder, dtype="float32", max_model_len=256)
    rng = Random("unseen")
    scenes = [pictures.draw_scene(rng) for _ in range(count)]
    asked = [pictures.exchange(scene, rng) for scene in scenes]

    def right(shown: list[pictures.Scene], wanted: list[corpus.Exchange]) -> float:
        told = ask(llm, shown, [one.question for one in wanted])
        hits = sum(text == one.answer for text, one in zip(told, wanted, strict=True))
        return round(hits / len(wanted), 4)

    by_question = {
        maker.__name__: right(scenes, [maker(scene, rng) for scene in scenes])
        for maker in pictures.QUESTIONS
    }
    return {
        "pictures": count,
        "right": right(scenes, asked),
        "wrong_picture": right(scenes[1:] + scenes[:1], asked),
        "by_question": by_question,
        "text": text_abilities(llm),
        "text_of_storyteller": text_abilities(LLM("storyteller", dtype="float32")),
    }


def text_abilities(llm: Any) -> dict[str, float]:
    """What is left of the old abilities: facts and single-digit sums, asked without a picture."""
    from mini_vllm import SamplingParams

    facts = draw(corpus.fact, 120)
    digits = sums("+", [(a, b) for a in range(10) for b in range(10)])
    found = {}
    for name, asked in (("facts", facts), ("single_digit_sums", digits)):
        chats = [[{"role": "user", "content": one.question}] for one in asked]
        outputs = llm.chat(chats, SamplingParams(temperature=0, max_tokens=60), use_tqdm=False)
        texts = [output.outputs[0].text for output in outputs]
        found[name] = share(e.expected in text for e, text in zip(asked, texts, strict=True))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="of CPU time, then stop")
    parser.add_argument("--evaluate", action="store_true", help="only measure what is there")
    parser.add_argument("--checkpoint", type=Path, default=Path("reports/training/vision.pt"))
    parser.add_argument("--output", type=Path, help="folder; default: the bundled one")
    options = parser.parse_args()
    keep_freed_memory()
    torch.set_num_threads(1)
    folder = options.output or bundled.path(NAME)
    if not options.evaluate:
        model, report, done = train(Recipe(), options.checkpoint, options.minutes)
        if not done:
            print("not finished; call again")
            return
        save(model, folder)
        write_report(folder, report)
    report = json.loads((folder / "training_report.json").read_text("utf-8"))
    report["quality"] = evaluate(folder)
    write_report(folder, report)
    print(json.dumps(report["quality"], indent=2))


if __name__ == "__main__":
    main()
