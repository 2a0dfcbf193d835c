"""Models Foredraft fetches by a short name.

`zoo.path("smollm2")` is an ordinary model folder: `transformers` loads it like any other. The
first call fetches it into the user's cache; later calls only look there.
"""

from foredraft.zoo.registry import EMBEDDED, EmbeddedModel, gguf_file, is_embedded, path

__all__ = ["EMBEDDED", "EmbeddedModel", "gguf_file", "is_embedded", "path"]
