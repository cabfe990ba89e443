"""Each graph proves itself at its first use, here, by the stored probes: until then no answer of it is believed."""

from __future__ import annotations

import logging
import threading

from service.bundle import Bundle
from service.errors import StartupError
from service.graph_spec import Role
from service.manifest import PROBES, Manifest
from service.parity.probes import Probes, check_probes
from service.runners.base import Runner

_log = logging.getLogger(__name__)


class GraphProofs:
    """What is known of each graph. A fault is found once and remembered: a broken graph is never tried again."""

    def __init__(self, bundle: Bundle[Manifest], runner: Runner, probes: Probes | None) -> None:
        """probes: None only where a fake model runs."""
        self._bundle = bundle
        self._runner = runner
        self._probes = probes
        self._faults: dict[Role, str | None] = {}
        self._lock = threading.Lock()

    def fault(self, role: Role) -> str | None:
        """What is wrong with a graph, naming file and gate; None when it is proved. Blocking at the first call."""
        if role in self._faults:
            return self._faults[role]
        with self._lock:
            if role not in self._faults:
                self._faults[role] = fault = self._find(role)
                if fault is not None:
                    _log.error("graph %s of %s is not served: %s", role, self._bundle.manifest.name, fault)
            return self._faults[role]

    def known_fault(self) -> str | None:
        """The fault of any graph that was looked at."""
        return next((fault for fault in list(self._faults.values()) if fault is not None), None)

    def _find(self, role: Role) -> str | None:
        try:
            self._runner.load(role)
        except StartupError as error:
            return str(error)
        if self._probes is None:
            return None
        manifest = self._bundle.manifest
        report = check_probes(manifest, self._runner, self._probes, roles=(role,))
        if report.passed:
            return None
        faults = "; ".join(f"{gate.name}: {gate.worst} over {gate.limit} ({gate.case})" for gate in report.failures)
        return f"{self._bundle.file(PROBES)}: {manifest.graph(role).file} does not give the stored outputs: {faults}"
