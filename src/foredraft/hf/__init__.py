"""Speculation inside of Hugging Face's own `generate`.

```python
custom = foredraft.hf.CustomGenerate()
output = model.generate(**inputs, custom_generate=custom, max_new_tokens=64)
print(custom.last_stats.mean_acceptance_length)
```
"""

from foredraft.hf.custom import CustomGenerate
from foredraft.hf.repository import generate

__all__ = ["CustomGenerate", "generate"]
