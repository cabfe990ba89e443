"""What `pip install 'qkv[cpu,export]'` brings along: small, and without torch."""

from __future__ import annotations

from importlib.metadata import Distribution, distribution
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

MAX_MB = 350
PIP_MB = 15  # the virtual environment's own


def serving_packages() -> dict[str, Distribution]:
    """Every package that serving and building need, by name, as installed here."""
    found: dict[str, Distribution] = {}
    wanted = [Requirement("qkv[cpu,export]")]
    while wanted:
        requirement = wanted.pop()
        package = found[canonicalize_name(requirement.name)] = distribution(requirement.name)
        for needed in map(Requirement, package.requires or ()):
            extras = requirement.extras or {""}
            is_needed = needed.marker is None or any(needed.marker.evaluate({"extra": extra}) for extra in extras)
            if is_needed and (needed.extras or canonicalize_name(needed.name) not in found):
                wanted.append(needed)
    return found


def size_mb(package: Distribution) -> float:
    """Its files on the disk."""
    paths = [Path(str(package.locate_file(file))) for file in package.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file()) / 1e6


def test_the_serving_environment_is_small_and_has_no_torch() -> None:
    packages = serving_packages()
    assert {"onnxruntime", "onnx", "fastapi", "tokenizers", "uvloop"} <= set(packages)
    assert set(packages) & {"torch", "transformers", "sentence-transformers"} == set()
    sizes = {name: size_mb(package) for name, package in packages.items()}
    assert 100 < sum(sizes.values()) < MAX_MB - PIP_MB, sizes
