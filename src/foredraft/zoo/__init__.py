"""Models Foredraft fetches by a short name.

`zoo.path("smollm2")` is an ordinary model folder: `transformers` loads it like any other. The
first call fetches it into the user's cache; later calls only look there. `zoo.shipped_head("smollm2")`
is the folder of a drafter for it, which comes with the package.
"""

from foredraft.zoo.registry import (
    EMBEDDED,
    EmbeddedModel,
    gguf_file,
    is_embedded,
    path,
    published_name,
)
from foredraft.zoo.shipped import BEST_METHODS, shipped, shipped_head

__all__ = [
    "BEST_METHODS",
    "EMBEDDED",
    "EmbeddedModel",
    "gguf_file",
    "is_embedded",
    "path",
    "published_name",
    "shipped",
    "shipped_head",
]
