"""Many prompts side by side: each answer is the one that its prompt gets alone."""

from __future__ import annotations

import argparse

import foredraft

QUESTIONS = (
    "Name three rivers in Europe.",
    "What is the capital of Peru?",
    "Count from one to ten.",
    "Why is the sky blue?",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    parser.add_argument("--max-batch", type=int, default=3)
    given = parser.parse_args()

    engine = foredraft.load(given.model)
    prompts = [[{"role": "user", "content": question}] for question in QUESTIONS]
    options = foredraft.GenerationOptions(max_new_tokens=given.max_new_tokens)
    results = engine.generate_batch(prompts, options, max_batch=given.max_batch)
    for question, result in zip(QUESTIONS, results, strict=True):
        print(f"{question}\n  {' '.join(result.text.split())}")
    pooled = foredraft.Statistics.pool(result.stats for result in results)
    print(f"{pooled.completion_tokens} tokens, {pooled.mean_acceptance_length:.2f} a round")


if __name__ == "__main__":
    main()
