"""What tells one corpus, or one module to train, from another."""

from __future__ import annotations

import hashlib
import json
import zlib
from typing import Any

import numpy as np
from torch import nn

from foredraft.train.batches import Samples

DIGITS = 16


def corpus_identity(corpus: Samples) -> dict[str, Any]:
    """Size and a digest of a corpus: of its manifest, every token and every span."""
    digest = hashlib.sha256(json.dumps(dict(corpus.manifest), sort_keys=True).encode())
    total = 0
    for index in range(len(corpus)):
        sample = corpus[index]
        total = zlib.crc32(np.ascontiguousarray(sample.token_ids).tobytes(), total)
        total = zlib.crc32(repr(sample.spans).encode(), total)
    digest.update(str(total).encode())
    return {"samples": len(corpus), "digest": digest.hexdigest()[:DIGITS]}


def module_identity(module: nn.Module) -> dict[str, Any]:
    """Parameters and a digest of their names and shapes."""
    shapes = {name: list(p.shape) for name, p in module.state_dict().items()}
    digest = hashlib.sha256(json.dumps(shapes, sort_keys=True).encode())
    return {
        "parameters": sum(p.numel() for p in module.parameters() if p.requires_grad),
        "digest": digest.hexdigest()[:DIGITS],
    }
