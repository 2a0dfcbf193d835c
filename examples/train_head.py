"""An EAGLE-3 head from nothing but the model: it writes a corpus, and a head learns what it would say."""

from __future__ import annotations

import argparse
from pathlib import Path

import foredraft
from foredraft.engine.load import load_models
from foredraft.train.corpus import Corpus
from foredraft.train.data import DataPlan, make_corpus
from foredraft.train.eagle import EagleLoss, EagleObjective
from foredraft.train.loop import fit
from foredraft.train.options import TrainOptions
from foredraft.train.scripts import Mixture
from foredraft.train.setting import Setting


def train(model_name: str, folder: Path, plan: DataPlan, options: TrainOptions) -> Path:
    """Write `folder/corpus` and `folder/head`; returns the head's folder."""
    models = load_models(model_name, dtype="float32")
    model, tokenizer = models.target.model, models.tokenizer
    make_corpus(folder / "corpus", plan, model, tokenizer, name=model_name)
    setting = Setting(model, tokenizer, Corpus(folder / "corpus"), keep_states=True)
    objective = EagleObjective.for_target(
        model,
        3,
        draft_ids=setting.draft_ids(8192),
        max_positions=int(setting.corpus.lengths.max()),
        loss=EagleLoss(steps=3),
        cache=setting.cache,
    )
    fit(objective, setting.corpus, options, folder / "head")
    return folder / "head"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--out", type=Path, default=Path("head-example"))
    parser.add_argument("--tokens", type=int, default=20_000, help="of the corpus; take millions")
    parser.add_argument("--max-length", type=int, default=512, help="of a conversation, in tokens")
    parser.add_argument("--minutes", type=float, default=2, help="of training; take an hour")
    given = parser.parse_args()

    mixture = Mixture(max_length=given.max_length, max_user_tokens=given.max_length // 4)
    plan = DataPlan(num_tokens=given.tokens, batch=16, mixture=mixture)
    head = train(given.model, given.out, plan, TrainOptions(minutes=given.minutes))
    engine = foredraft.load(given.model, drafter=head, method="eagle2", dtype="float32")
    prompt = [{"role": "user", "content": "Name three rivers in Europe."}]
    result = engine.generate(prompt, max_new_tokens=48)
    print(result.text)
    print(f"{result.stats.mean_acceptance_length:.2f} tokens a pass with the head in {head}")


if __name__ == "__main__":
    main()
