"""What every test runs under: no network, one thread a process, reproducible examples."""

import os

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import torch
from hypothesis import settings

# Tests run in parallel processes; threads inside each would only wait for one another.
torch.set_num_threads(1)

settings.register_profile("offline", deadline=None, derandomize=True, database=None)
settings.load_profile("offline")
