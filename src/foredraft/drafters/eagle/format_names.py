"""The forms in which heads are written for other programs, by name; nothing heavy is imported here."""

from __future__ import annotations

from typing import Literal

Format = Literal["speculators", "eagle3", "sglang", "eagle1"]
FORMATS: tuple[Format, ...] = ("speculators", "eagle3", "sglang", "eagle1")
"""For `speculators` and vLLM; for EAGLE's own code (EAGLE-3); for SGLang; for EAGLE's own code (EAGLE-1)."""
