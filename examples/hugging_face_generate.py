"""Speculation inside of `model.generate` of transformers: the same call, one argument more."""

from __future__ import annotations

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import foredraft
from foredraft import zoo


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2", help="smollm2, a hub id or a folder")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    given = parser.parse_args()

    place = zoo.path(given.model) if zoo.is_embedded(given.model) else given.model
    tokenizer = AutoTokenizer.from_pretrained(place)
    model = AutoModelForCausalLM.from_pretrained(place, dtype=torch.float32)
    inputs = tokenizer("The cat sat on the mat. The dog sat on", return_tensors="pt")

    speculation = foredraft.hf.CustomGenerate(method="ngram", tokenizer=tokenizer)
    options = {"max_new_tokens": given.max_new_tokens, "do_sample": False}
    ours = model.generate(**inputs, custom_generate=speculation, **options)
    theirs = model.generate(**inputs, **options)
    print(tokenizer.decode(ours[0], skip_special_tokens=True))
    print(f"{speculation.last_stats.mean_acceptance_length:.2f} tokens a pass")
    print(f"the same words as generate alone: {torch.equal(ours, theirs)}")


if __name__ == "__main__":
    main()
