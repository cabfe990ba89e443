"""What the tests of the road of tensors share: exports of one's own modules, and their faults."""

from __future__ import annotations

from pathlib import Path

import pytest

from export.bundle import export_model
from export.errors import ExportError
from export.modules.tensors import TensorOptions
from export.seal import Exported

FIXTURES = Path(__file__).parents[1] / "fixtures"
OWN = FIXTURES / "own_modules.py"


def export_own(name: str, out: Path, options: TensorOptions | None = None) -> Exported:
    """Export a class of `fixtures/own_modules.py`."""
    return export_model(f"{OWN}:{name}", out, options=options or TensorOptions())


def refused(name: str, tmp_path: Path, options: TensorOptions | None = None) -> ExportError:
    """The refusal of a class of `fixtures/own_modules.py`; nothing was written."""
    with pytest.raises(ExportError) as caught:
        export_own(name, tmp_path / "out", options)
    assert list(tmp_path.iterdir()) == []
    return caught.value
