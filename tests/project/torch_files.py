"""Which files of ours import torch at their top, beside the models: others import them on demand only."""

from __future__ import annotations

NEED_TORCH = (
    "service/runners/torch.py",
    "export/modules/assertions.py",
    "export/modules/calls.py",
    "export/modules/code.py",
    "export/modules/module.py",
    "export/modules/state.py",
    "export/modules/trace.py",
    "export/texts/read/torch_file.py",
    "export/texts/traced/encoder.py",
    "export/texts/traced/reference.py",
)
