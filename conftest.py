"""A test that lacks a library is skipped, and the reason says what installs it.

Tests, their helpers and the examples of docstrings import what they need, and no test has to say
so.
"""

from collections.abc import Generator
from typing import Any

import pytest

from helpers.extras import lacking


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any, Any]:
    """Of a test."""
    report = yield
    return _skipped(report)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, Any, Any]:
    """Of a file of tests."""
    report = yield
    return _skipped(report)


def _skipped(report: Any) -> Any:
    """A report that says skipped where it failed, or was skipped, for want of a library."""
    if report.outcome != "passed":
        reason = lacking(report.longreprtext)
        if reason is not None:
            report.outcome = "skipped"
            report.longrepr = (report.nodeid, None, f"Skipped: {reason}")
    return report
