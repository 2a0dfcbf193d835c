"""What a report needs beside Foredraft itself."""

from __future__ import annotations

from importlib.util import find_spec

from foredraft.errors import ConfigError

NEEDED = {"scipy": "intervals", "matplotlib": "plots"}


def check_libraries() -> None:
    """Raise `ConfigError` before a run, and not after it, when its report could not be made."""
    for name, purpose in NEEDED.items():
        if find_spec(name) is None:
            raise ConfigError(
                f"a benchmark's report needs {name} for its {purpose}; "
                "install it with pip install 'foredraft[bench]'"
            )
