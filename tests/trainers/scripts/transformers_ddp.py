"""transformers' Trainer on a tiny model made from its configuration; knows nothing of ddptop.

transformers_ddp.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

STEPS = 20


class Sentences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Made-up token numbers."""

    def __init__(self, count: int) -> None:
        self.tokens = torch.randint(0, 64, (count, 16), generator=torch.Generator().manual_seed(3))

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.tokens[index]}


def main() -> None:
    folder = Path(sys.argv[1])
    torch.set_num_threads(1)
    set_seed(7)
    size = {"vocab_size": 64, "n_positions": 16, "n_embd": 32, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        output_dir=str(folder / "out"),
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=4,
        per_device_eval_batch_size=8,
        gradient_accumulation_steps=2,
        learning_rate=1e-3,
        logging_steps=5,
        eval_strategy="steps",
        eval_steps=10,
        save_strategy="no",
        report_to=[],
        disable_tqdm=True,
    )
    data = Sentences(2 * 2 * 4 * STEPS)
    trainer = Trainer(model=model, args=arguments, train_dataset=data, eval_dataset=Sentences(32))
    trainer.train()
    torch.save(model.state_dict(), folder / f"weights-{arguments.process_index}.pt")


if __name__ == "__main__":
    main()
