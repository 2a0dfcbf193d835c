"""What `generate` can be asked for and speculation cannot honour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig
from transformers.generation.configuration_utils import GenerationMode

from foredraft.errors import ConfigError

MODES = (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE)
OF_OTHER_MODES = (
    "num_beams",
    "constraints",
    "force_words_ids",
    "penalty_alpha",
    "prompt_lookup_num_tokens",
    "assistant_early_exit",
    "use_mtp",
    "dola_layers",
)
"""Options that choose another way of decoding."""
CACHES = ("quantized", "offloaded", "offloaded_static")
"""Cache implementations that change results or save memory; all others give the answers that ours gives."""
KNOWN = ("attention_mask", "position_ids", "use_cache", "logits_to_keep", "cache")
"""What `generate` prepares for the model's passes, and is read here or given by our own passes."""
SHOWN = ("output_attentions", "output_hidden_states")


def refuse(config: GenerationConfig, prepared: Mapping[str, Any]) -> None:
    """Check a call.

    Args:
        config: as prepared by `generate`.
        prepared: the other arguments for the model's passes, by name.

    Raises:
        ConfigError: something asked for cannot be honoured; the message names it.
    """
    _refuse_modes(config)
    if config.cache_implementation in CACHES:
        raise ConfigError(
            f"cache_implementation={config.cache_implementation!r} cannot be applied: drafts need a cache of "
            "our own; leave it out"
        )
    if getattr(prepared.get("cache"), "_is_user_defined", False):
        raise ConfigError(
            "a cache of your own (cache=..., past_key_values=...) cannot be used: drafts need one of ours, "
            "which can take rejected tokens back; leave it out and give the whole text as input_ids"
        )
    for name in SHOWN if config.return_dict_in_generate else ():
        if getattr(config, name):
            raise ConfigError(
                f"{name}=True cannot be honoured, as passes over drafts hold other rows; leave it out, and "
                "run the model once over the finished text to see them"
            )
    for name, value in prepared.items():
        if value is not None and name not in (*KNOWN, *SHOWN):
            raise ConfigError(
                f"{name}=... cannot be passed on to the model, whose passes read token ids alone; leave it "
                "out, or leave custom_generate out"
            )


def _refuse_modes(config: GenerationConfig) -> None:
    mode = config.get_generation_mode()
    if mode in MODES:
        return
    default = GenerationConfig(num_beams=1, use_mtp=False)
    asked = [
        f"{name}={getattr(config, name)!r}"
        for name in OF_OTHER_MODES
        if getattr(config, name, None) not in (None, False, getattr(default, name, None))
    ]
    raise ConfigError(
        f"{', '.join(asked)} asks for {mode.value.replace('_', ' ')}; with custom_generate tokens are chosen "
        "greedily or sampled: leave it out (what drafts is chosen in CustomGenerate)"
    )
