"""Lossless speculative decoding with drafts whose shape follows the text.

```python
import foredraft

engine = foredraft.load("smollm2")
result = engine.generate([{"role": "user", "content": "Name three rivers."}], max_new_tokens=64)
print(result.text, result.stats.tokens_per_s)
```
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foredraft import hf as hf
    from foredraft.config import GenerationOptions
    from foredraft.engine.engine import Engine
    from foredraft.engine.load import load
    from foredraft.errors import (
        CacheError,
        ConfigError,
        DataError,
        ForedraftError,
        ModelError,
        NumericsError,
        PromptError,
        VocabularyError,
    )
    from foredraft.results import Result, Statistics, Step

__version__ = "0.1.0"

_HOMES = {
    "foredraft.config": ["GenerationOptions"],
    "foredraft.engine.engine": ["Engine"],
    "foredraft.engine.load": ["load"],
    "foredraft.errors": [
        "CacheError",
        "ConfigError",
        "DataError",
        "ForedraftError",
        "ModelError",
        "NumericsError",
        "PromptError",
        "VocabularyError",
    ],
    "foredraft.results": ["Result", "Statistics", "Step"],
}
_PACKAGES = ("hf",)
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "CacheError",
    "ConfigError",
    "DataError",
    "Engine",
    "ForedraftError",
    "GenerationOptions",
    "ModelError",
    "NumericsError",
    "PromptError",
    "Result",
    "Statistics",
    "Step",
    "VocabularyError",
    "load",
]


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that `import foredraft` stays quick."""
    if name in _PACKAGES:
        return importlib.import_module(f"foredraft.{name}")
    if name not in _HOME_OF:
        raise AttributeError(f"module 'foredraft' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOME_OF[name]), name)


def __dir__() -> list[str]:
    return sorted([*__all__, *_PACKAGES, "__version__"])
