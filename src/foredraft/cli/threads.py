"""How the threads of long jobs wait for one another."""

from __future__ import annotations

import os


def wait_asleep() -> None:
    """Have threads sleep while they wait, not spin. Call it before PyTorch is imported.

    A thread that spins beside other processes takes the time slice of the very thread that it waits for:
    on two busy cores a matrix product of 0.6 ms then takes 8 ms. Who sets OMP_WAIT_POLICY has the last word.
    """
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
