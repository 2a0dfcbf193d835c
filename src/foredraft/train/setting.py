"""What a training starts from: a frozen target, its tokenizer, and a corpus that fits them."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from foredraft.backends import hf_facts
from foredraft.backends.identity import DIGITS, target_identity, weights_digest
from foredraft.errors import ConfigError, DataError
from foredraft.train.checkpoints import Checkpoints
from foredraft.train.corpus import Corpus
from foredraft.train.digests import tokenizer_digest
from foredraft.train.folder import CHECKPOINTS
from foredraft.train.state_cache import STATES, ShardTokens, StateCache
from foredraft.train.vocabulary import coverage, most_frequent, token_counts


def check_kept(folder: Path, **asked: tuple[Any, Any]) -> None:
    """Refuse what a drafter that is trained on cannot be given anew.

    Args:
        folder: where the drafter is.
        **asked: by option, what the user asks for (None: nothing) and what the drafter has.

    Raises:
        ConfigError: they differ; the message names both.
    """
    for name, (wanted, has) in asked.items():
        if wanted is not None and wanted != has:
            raise ConfigError(
                f"--{name.replace('_', '-')} asks for {wanted}, and the drafter in {folder} has {has}, which "
                "it keeps; leave the option out, or begin without --start-from"
            )


@dataclass(frozen=True)
class Setting:
    """A target and what it is to be learnt from.

    Attributes:
        model: the `transformers` model, on its device.
        tokenizer: its tokenizer; None if there is none.
        corpus: the samples.
        keep_states: keep the target's hidden states beside the corpus, for later epochs and runs.

    Raises:
        DataError: the corpus is empty, or was made with another tokenizer or vocabulary.
    """

    model: Any
    tokenizer: Any | None
    corpus: Corpus
    keep_states: bool = False

    def __post_init__(self) -> None:
        self.model.requires_grad_(False)
        if not len(self.corpus):
            raise DataError(
                f"{self.corpus.folder} holds no conversation yet; go on with `foredraft data generate`"
            )
        vocab_size = int(hf_facts.text_config(self.model).vocab_size)
        if self.corpus.vocab_size != vocab_size:
            raise DataError(
                f"{self.corpus.folder} was made for a vocabulary of {self.corpus.vocab_size} tokens, and the "
                f"model has {vocab_size}; make a corpus with this model"
            )
        made_with = self.corpus.manifest.get("tokenizer")
        if (
            made_with
            and self.tokenizer is not None
            and made_with != tokenizer_digest(self.tokenizer)
        ):
            raise DataError(
                f"{self.corpus.folder} was made with another tokenizer or chat template than this model's; "
                "make a corpus with this model"
            )

    @cached_property
    def cache(self) -> StateCache | None:
        """Where the target's states are kept, if they are."""
        if not self.keep_states:
            return None
        return StateCache(
            self.corpus.folder / STATES,
            self.identity(),
            ShardTokens.all_of(self.corpus),
            int(hf_facts.text_config(self.model).hidden_size),
            self.model.dtype,
        )

    @cached_property
    def counts(self) -> NDArray[np.int64]:
        """int64 [V], how often the assistant wrote each token."""
        return token_counts(self.corpus, self.vocab_size)

    @property
    def vocab_size(self) -> int:
        """Rows of the target's head."""
        return int(self.model.get_output_embeddings().weight.shape[0])

    def draft_ids(self, size: int) -> Tensor | None:
        """int64 [Vd]: the most frequent tokens and the end tokens; None if it is to be all of them.

        Raises:
            ConfigError: a negative size, or one that leaves no room beside the end tokens.
        """
        if size < 0:
            raise ConfigError(
                f"--draft-vocab {size} is not allowed; give 0 for all tokens, or more"
            )
        if size == 0 or size >= self.vocab_size:
            return None
        ends = hf_facts.eos_token_ids(self.model, self.tokenizer)
        always = [token for token in ends if token < self.vocab_size]
        return most_frequent(self.counts, size, always)

    def kept_size(self, size: int | None) -> int | None:
        """A size of a draft vocabulary as users ask for it, with 0 for all tokens however it is said."""
        return 0 if size is not None and size >= self.vocab_size else size

    def start_from(self, folder: Path, module: nn.Module) -> str:
        """Take the float32 weights of the run in a folder, where it has them: what is saved is rounded.

        Returns:
            "given" and a digest of the weights: a run is gone on with from the same ones alone.

        Raises:
            ConfigError: they are of another shape than the drafter beside them.
        """
        best = Checkpoints(folder / CHECKPOINTS).best()
        try:
            if best is not None:
                module.load_state_dict(best["module"])
        except RuntimeError as error:
            raise ConfigError(
                f"the checkpoint in {folder} is of another drafter than the one beside it; remove one of them"
            ) from error
        return f"given {weights_digest(module)[:DIGITS]}"

    def identity(self) -> dict[str, Any]:
        """What tells this target from others, as JSON."""
        return target_identity(self.model)

    def vocabulary_identity(self, ids: Tensor | None) -> dict[str, Any]:
        """Size, digest and coverage of a draft vocabulary, as JSON."""
        if ids is None:
            return {"size": self.vocab_size}
        ids = ids.cpu()
        return {
            "size": len(ids),
            "digest": hashlib.sha256(ids.numpy().tobytes()).hexdigest()[:DIGITS],
            "coverage": round(coverage(self.counts, ids), 4),
        }
