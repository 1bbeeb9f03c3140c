"""The pytest plugin: every file ``*.case`` is a test. Installed with steptrace; ``-p no:steptrace`` turns it off."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> CaseFile | None:
    """Collects case files."""
    return CaseFile.from_parent(parent, path=file_path) if file_path.suffix == ".case" else None


def pytest_configure(config: pytest.Config) -> None:
    """Makes the marker known that ``equal slow`` puts on a case; refuses to rewrite expected texts in CI."""
    config.addinivalue_line("markers", "slow: takes more than a few seconds")
    if os.environ.get("STEPTRACE_UPDATE"):
        from steptrace.testing.expected import UpdateInCiError, updating

        try:
            updating()
        except UpdateInCiError as error:
            raise pytest.UsageError(str(error)) from error


class CaseFile(pytest.File):
    """A case file: one test, named after it."""

    def collect(self) -> Iterator[CaseItem]:
        """The test."""
        item = CaseItem.from_parent(self, name=self.path.stem)
        if "\n--- equal slow\n" in self.path.read_text(encoding="utf-8"):
            item.add_marker(pytest.mark.slow)
        yield item


class CaseItem(pytest.Item):
    """The test of a case file."""

    def runtest(self) -> None:
        """Runs the case; see ``steptrace.testing.cases``."""
        from steptrace.testing.cases import read_case, run_case

        run_case(read_case(self.path))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: object = None) -> str:
        """What went wrong with the case, without a stack where it is the case that is wrong or differs."""
        from steptrace.testing.cases import CaseError
        from steptrace.testing.edits import EditError

        if isinstance(excinfo.value, AssertionError | CaseError | EditError):
            return f"{self.path.name}: {excinfo.value}"
        return str(super().repr_failure(excinfo))

    def reportinfo(self) -> tuple[Path, int, str]:
        """Where the test is, for pytest."""
        return self.path, 0, self.name
