"""Train drafting heads for the storyteller: small networks that guess several tokens ahead.

    python -m training.heads text      # the storyteller answers questions: what heads learn from
    python -m training.heads medusa
    python -m training.heads eagle

Both read the storyteller's last hidden state, so neither has to understand the text itself. A
Medusa head j guesses the token j + 2 places ahead and knows nothing of the guesses before it. An
EAGLE head guesses the next *hidden state* from this one and the token that was chosen, and goes on
from its own guess. Embedding, final norm and output head are the storyteller's, frozen.

Each run writes a checkpoint to `build/training/` and goes on from it when you start it again.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, Qwen3Config, Qwen3Model

from mini_vllm import bundled
from mini_vllm.engine.llm import LLM
from mini_vllm.sampling_params import SamplingParams
from mini_vllm.spec_decode.medusa import MedusaHeads
from training import corpus
from training.muon import Muon
from training.train import cpu_name, keep_freed_memory, write_atomically

TARGET = "storyteller"
NUM_HEADS = 4
WORK = Path("build/training")


@dataclass(frozen=True)
class HeadRecipe:
    """How a head is trained."""

    steps: int
    chats_per_step: int = 16
    learning_rate: float = 2e-3
    muon_learning_rate: float = 0.01
    decay_steps: int = 200


RECIPES = {"medusa": HeadRecipe(steps=400), "eagle": HeadRecipe(steps=500)}


# --- text -------------------------------------------------------------------------------------


def make_text(num_chats: int, seed: int) -> list[tuple[list[int], int]]:
    """Chats that the storyteller has answered itself: (token ids, length of the prompt) each.

    Three quarters are stories, and half of all answers are greedy: what the heads must guess is
    the storyteller's own text, not the corpus.
    """
    llm = LLM(TARGET, max_num_seqs=64, dtype="float32")
    rng = Random(seed)
    makers = (corpus.story_request,) * 3 + (corpus.exchange,)
    questions = [rng.choice(makers)(rng).question for _ in range(num_chats)]
    prompts = [llm.apply_chat_template([{"role": "user", "content": q}]) for q in questions]
    params = [
        SamplingParams(temperature=rng.choice((0.0, 1.0)), seed=index, max_tokens=220)
        for index in range(num_chats)
    ]
    outputs = llm.generate(prompts, params)
    return [(o.prompt_token_ids + o.outputs[0].token_ids, len(o.prompt_token_ids)) for o in outputs]


@torch.no_grad()
def add_hidden(chats: list[tuple[list[int], int]]) -> list[dict[str, Any]]:
    """Each chat with the storyteller's hidden states `[length, H]`, computed once for all steps."""
    target = load_target()
    chats = [chat for chat in chats if len(chat[0]) > chat[1] + NUM_HEADS + 1]
    rows = []
    for ids, num_prompt in chats:
        hidden = target.model(input_ids=torch.tensor([ids])).last_hidden_state[0]
        rows.append({"ids": torch.tensor(ids), "num_prompt": num_prompt, "hidden": hidden})
    return rows


def load_target() -> Any:
    """The frozen storyteller, float32."""
    folder = bundled.path(TARGET)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, local_files_only=True)
    return model.eval().requires_grad_(False)


# --- losses -----------------------------------------------------------------------------------


@dataclass
class Batch:
    """Chats padded at their ends. `answer` marks the positions whose next token was generated."""

    ids: Tensor
    hidden: Tensor
    answer: Tensor


def make_batch(rows: list[dict[str, Any]]) -> Batch:
    pad = nn.utils.rnn.pad_sequence
    marks = []
    for row in rows:
        mark = torch.zeros(len(row["ids"]), dtype=torch.bool)
        mark[row["num_prompt"] - 1 : -1] = True
        marks.append(mark)
    return Batch(
        pad([row["ids"] for row in rows], batch_first=True),
        pad([row["hidden"] for row in rows], batch_first=True),
        pad(marks, batch_first=True),
    )


def soft_cross_entropy(logits: Tensor, target_logits: Tensor) -> Tensor:
    """Cross entropy to the distribution that the storyteller has there: both `[N, V]`."""
    return -(target_logits.softmax(-1) * logits.log_softmax(-1)).sum(-1).mean()


def medusa_loss(heads: MedusaHeads, batch: Batch, head: nn.Module) -> Tensor:
    """Head j at position t guesses what the storyteller thinks at t + 1 + j; near ones count more.

    ::

        position     t          t + 1          t + 2
        target       x[t+1]     x[t+2]         x[t+3]
        medusa                  head 0, from t head 1, from t
    """
    losses = []
    for index in range(NUM_HEADS):
        shift = index + 1
        keep = batch.answer[:, shift:]
        logits = head(heads(batch.hidden[:, :-shift][keep], index))
        losses.append(0.8**index * soft_cross_entropy(logits, head(batch.hidden[:, shift:][keep])))
    return torch.stack(losses).sum()


class EagleTrainer(nn.Module):
    """`fc` of [embedding, hidden] and one decoder layer; the final norm is the storyteller's."""

    def __init__(self, target: Any) -> None:
        super().__init__()
        one_layer = {"num_hidden_layers": 1, "layer_types": ["full_attention"]}
        config = Qwen3Config(**{**target.config.to_dict(), **one_layer})
        self.fc = nn.Linear(2 * config.hidden_size, config.hidden_size, bias=False)
        self.body = Qwen3Model(config)
        self.body.embed_tokens = None
        self.body.norm = target.model.norm

    def forward(self, embedded: Tensor, hidden: Tensor) -> Tensor:
        """The next hidden states `[B, L, H]`, from the tokens chosen and the states before them."""
        inputs = self.fc(torch.cat((embedded, hidden), dim=-1))
        return self.body(inputs_embeds=inputs, use_cache=False).last_hidden_state


def eagle_loss(eagle: EagleTrainer, batch: Batch, target: Any) -> Tensor:
    """Two rounds: from the storyteller's states, and then from the head's own guesses of them.

    ::

        position                t            t + 1
        in                      x[t+1], h[t]
        out                                  h[t+1], whose logits guess x[t+2]
    """
    embedded = target.model.embed_tokens(batch.ids[:, 1:])
    wanted, keep = batch.hidden[:, 1:], batch.answer[:, 1:]
    target_logits = target.lm_head(wanted[keep])
    hidden, loss = batch.hidden[:, :-1], torch.zeros(())
    for _ in range(2):
        guessed = eagle(embedded, hidden)
        loss = loss + soft_cross_entropy(target.lm_head(guessed[keep]), target_logits)
        loss = loss + F.smooth_l1_loss(guessed[keep], wanted[keep])
        hidden = torch.cat((batch.hidden[:, :1], guessed[:, :-1]), dim=1)
    return loss


# --- training ---------------------------------------------------------------------------------


def train(kind: str, recipe: HeadRecipe, rows: list[dict[str, Any]]) -> tuple[nn.Module, float]:
    """Run (or go on with) the training; returns the head and the seconds it took."""
    torch.manual_seed(0)
    target = load_target()
    model: nn.Module = (
        MedusaHeads(target.config.hidden_size, NUM_HEADS)
        if kind == "medusa"
        else EagleTrainer(target)
    )
    trained = {n: p for n, p in model.named_parameters() if p.requires_grad}
    matrices = [p for p in trained.values() if p.ndim == 2]
    others = [p for p in trained.values() if p.ndim != 2]
    optimizers: list[torch.optim.Optimizer] = [
        Muon(matrices, lr=recipe.muon_learning_rate, momentum=0.95, weight_decay=0.02),
        torch.optim.AdamW(others, lr=recipe.learning_rate, weight_decay=0.0),
    ]
    peaks = [optimizer.defaults["lr"] for optimizer in optimizers]
    checkpoint = WORK / f"heads-{kind}.pt"
    step, seconds, smooth = 0, 0.0, 0.0
    if checkpoint.exists():
        state = torch.load(checkpoint, weights_only=True)
        model.load_state_dict(state["model"])
        for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)
        step, seconds, smooth = state["step"], state["seconds"], state["loss"]
    mark = time.perf_counter()
    while step < recipe.steps:
        rate = min(1.0, (step + 1) / 20, (recipe.steps - step) / recipe.decay_steps)
        for optimizer, peak in zip(optimizers, peaks, strict=True):
            optimizer.param_groups[0]["lr"] = peak * rate
        batch = make_batch(Random(step).sample(rows, recipe.chats_per_step))
        if kind == "medusa":
            loss = medusa_loss(model, batch, target.lm_head)
        else:
            loss = eagle_loss(model, batch, target)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        model.zero_grad()
        smooth = loss.item() if step == 0 else 0.95 * smooth + 0.05 * loss.item()
        step += 1
        now = time.perf_counter()
        seconds, mark = seconds + now - mark, now
        if step % 20 == 0 or step == recipe.steps:
            print(f"step {step}/{recipe.steps}  loss {smooth:.4f}  {seconds:.0f} s", flush=True)
            state = {"model": model.state_dict(), "step": step, "seconds": seconds, "loss": smooth}
            state["optimizers"] = [optimizer.state_dict() for optimizer in optimizers]
            write_atomically(checkpoint, state)
    return model, seconds


def save(kind: str, model: nn.Module, recipe: HeadRecipe, seconds: float) -> None:
    """Write weights in bfloat16, the config and a short report into the bundled folder."""
    folder = bundled.path(TARGET).parent / f"{TARGET}-{kind}"
    folder.mkdir(exist_ok=True)
    target = json.loads((bundled.path(TARGET) / "config.json").read_text())
    if kind == "medusa":
        config = {
            "architectures": ["MedusaModel"],
            "model_type": "medusa",
            "hidden_size": target["hidden_size"],
            "vocab_size": target["vocab_size"],
            "num_heads": NUM_HEADS,
            "num_hidden_layers": 1,
        }
    else:
        config = {
            **target,
            "architectures": ["EagleQwen3ForCausalLM"],
            "num_hidden_layers": 1,
            "layer_types": ["full_attention"],
        }
    weights = {
        name.removeprefix("body."): parameter.detach().to(torch.bfloat16).contiguous()
        for name, parameter in model.named_parameters()
        if parameter.requires_grad
    }
    report = {
        "parameters": sum(weight.numel() for weight in weights.values()),
        "recipe": asdict(recipe),
        "seconds": round(seconds),
        "cpu": cpu_name(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    os.chmod(folder / "model.safetensors", 0o644)
    (folder / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    (folder / "training_report.json").write_text(json.dumps(report, indent=2) + "\n")
    print(json.dumps(report, indent=2))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("text", *RECIPES))
    parser.add_argument("--chats", type=int, default=640)
    args = parser.parse_args()
    keep_freed_memory()
    text = WORK / "heads-text.pt"
    if args.what == "text":
        write_atomically(text, add_hidden(make_text(args.chats, seed=1)))
        return
    if not text.exists():
        parser.error(f"{text} is missing; run `python -m training.heads text` first")
    recipe = RECIPES[args.what]
    model, seconds = train(args.what, recipe, torch.load(text, weights_only=True))
    save(args.what, model, recipe, seconds)


if __name__ == "__main__":
    main()
