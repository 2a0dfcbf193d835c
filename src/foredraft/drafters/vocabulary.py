"""Do a drafter's token ids mean the same tokens as the target's?"""

from __future__ import annotations

from typing import Any

from foredraft.errors import VocabularyError


def check_same_vocabulary(target_tokenizer: Any, draft_tokenizer: Any) -> None:
    """Compare two tokenizers id by id. Ids that only one of them has (padding) are tolerated.

    Raises:
        VocabularyError: an id means two things; the message names the first one.
    """
    target, draft = _tokens_by_id(target_tokenizer), _tokens_by_id(draft_tokenizer)
    for token_id in sorted(target.keys() & draft.keys()):
        if target[token_id] != draft[token_id]:
            raise VocabularyError(
                f"the drafter has another vocabulary: token {token_id} is {draft[token_id]!r} there and "
                f"{target[token_id]!r} in the target; use a drafter of the same model family, or "
                "force_vocabulary=True (--force-vocabulary): the text stays right, but drafts hardly help"
            )


def _tokens_by_id(tokenizer: Any) -> dict[int, str]:
    return {token_id: token for token, token_id in tokenizer.get_vocab().items()}
