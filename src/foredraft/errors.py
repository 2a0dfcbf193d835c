"""Every error Foredraft raises for a reason a user can act on.

```
ForedraftError
├── ConfigError            an option, a name or a combination of parts that cannot work
├── PromptError            a prompt that cannot be answered (empty, longer than the context)
├── ModelError             a model that cannot be found, read or decoded speculatively
│   └── VocabularyError    a drafter whose token ids do not mean what the target's do
├── NumericsError          a model that produced NaN, or no finite logit at all
├── DataError              a corpus, or a file of prompts or answers, that cannot be read or used
└── CacheError             a KV cache that did not do what the transaction asked
```

Each message names the value, what is allowed and the way out. The command line prints it as one
sentence and exits with 2 for a `ConfigError` and 1 for the others.
"""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


class ForedraftError(Exception):
    """Base of every error in this package."""


class ConfigError(ForedraftError, ValueError):
    """An option, a name, or a combination of parts cannot work."""


class PromptError(ForedraftError, ValueError):
    """The prompt cannot be answered: it is empty or does not fit the context."""


class ModelError(ForedraftError):
    """The model cannot be found, read, or decoded speculatively."""


class VocabularyError(ModelError):
    """The drafter's token ids do not mean the same tokens as the target's."""


class NumericsError(ForedraftError):
    """A model produced NaN, or a row without one finite logit."""


class DataError(ForedraftError):
    """A training corpus or a user's data file cannot be read or used."""


class CacheError(ForedraftError):
    """The KV cache holds something else than the transaction asked for; decoding must not go on."""


def suggestion(name: str, known: Iterable[str]) -> str:
    """The way out of an unknown name: the one that was probably meant, and all there are."""
    names = list(known)
    close = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}available: {', '.join(names)}"
