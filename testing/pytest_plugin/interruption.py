"""Keeps pytest silent once Ctrl-C has interrupted it, for the runner says so in one line."""

import pytest


@pytest.hookimpl
def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(_Silencer(config))


class _Silencer:
    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_keyboard_interrupt(self) -> None:
        """Take the reporter away before it prints where the interruption came."""
        self._config.pluginmanager.unregister(name="terminalreporter")
