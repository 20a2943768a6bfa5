"""Profiles of some steps of the engine (`StepProfiler`), as trace files for Perfetto and Chrome."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from tidewire_server.generation.checkpoint_folder import LoadError
from tidewire_server.generation.torch_engine.step_scheduler import StepPlan

logger = logging.getLogger(__name__)

STARTS = (10, 100, 1000, 10_000)
"""Numbers of steps after which a profile begins. The first steps are left out, because they allocate memory."""
LENGTH = 10
"""Number of steps in one profile."""


class StepProfiler:
    """Writes a trace file for each of a few ranges of steps. All other steps run without a profiler.

    Use one profiler in one thread.

    Args:
        folder: Folder for the files `steps-FIRST-LAST-TIME.json`, which only the user who runs the server can read. It
            is created if necessary.

    Raises:
        LoadError: The folder cannot be created.
    """

    def __init__(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise LoadError(
                f"the folder for profiles {folder} cannot be created: {error.strerror}"
            ) from error
        # Take an empty profile first. Otherwise the profiler logs an error if it starts in a thread that did not import torch.
        with profile(activities=[ProfilerActivity.CPU]):
            pass
        self._folder = folder
        self._steps = 0
        self._profile: profile | None = None

    @contextmanager
    def step(self, plan: StepPlan[Any]) -> Iterator[None]:
        """Execute the body of a `with` statement as the next step. Record this step if its number is in a profiled range."""
        if self._steps in STARTS:
            devices = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * torch.cuda.is_available()
            self._profile = profile(activities=devices)
            self._profile.start()
        self._steps += 1
        if self._profile is None:
            yield
            return
        prompts = sum(part.end - part.start for part in plan.prefill)
        try:
            with record_function(f"step {self._steps}: {len(plan.decode)} texts, {prompts} prompt tokens"):
                yield
        finally:
            if self._steps - LENGTH in STARTS:
                self.finish()

    def finish(self) -> None:
        """Write the profile that has begun, if there is one."""
        if self._profile is None:
            return
        self._profile.stop()
        first = max(start for start in STARTS if start < self._steps) + 1
        file = self._folder / f"steps-{first}-{self._steps}-{time.strftime('%Y%m%d-%H%M%S')}.json"
        try:
            # torch creates a file that all users can read. Create it in a private folder, so that no other user can open it
            # before its mode is set.
            with TemporaryDirectory(dir=self._folder) as private:
                written = Path(private, file.name)
                self._profile.export_chrome_trace(str(written))
                written.chmod(0o600)
                written.replace(file)
        except (OSError, RuntimeError):
            logger.exception("the profile %s cannot be written; check the folder of --profile", file)
        else:
            logger.info("wrote the profile %s; open it at https://ui.perfetto.dev", file)
        self._profile = None
