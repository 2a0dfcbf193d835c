"""Load a model, ask it something, and see what drafting saved."""

from __future__ import annotations

import argparse

import foredraft


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    given = parser.parse_args()

    engine = foredraft.load(given.model)  # or a hub id, a folder, a .gguf file
    messages = [{"role": "user", "content": "Name three rivers in Europe."}]
    result = engine.generate(messages, max_new_tokens=given.max_new_tokens)
    stats = result.stats
    print(result.text)
    print(f"{stats.completion_tokens} tokens in {stats.target_passes} passes of the model")

    print("\nThe same, sampled and as it comes:")
    sampled = {"temperature": 0.7, "seed": 1, "max_new_tokens": given.max_new_tokens}
    for step in engine.stream(messages, **sampled):
        print(step.text, end="", flush=True)

    plain = engine.without_drafts().generate(messages, max_new_tokens=given.max_new_tokens)
    print(f"\n\nThe same words without drafts: {plain.token_ids == result.token_ids}")


if __name__ == "__main__":
    main()
