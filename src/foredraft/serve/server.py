"""The process: a socket, signals, and an end without cutting answers off."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from foredraft.errors import ConfigError
from foredraft.serve.app import create_app
from foredraft.serve.service import Service

CLOSING_S = 5
"""Seconds for responses to be written after their answers have ended."""


class DrainingServer(uvicorn.Server):
    """On the first signal it refuses new requests and finishes those that run; the second ends it at once.

    Args:
        service: what it serves.
        host, port: where; port 0 takes a free one.
        report: is called with sentences when it listens.
    """

    def __init__(
        self, service: Service, host: str, port: int, report: Callable[[str], None]
    ) -> None:
        config = uvicorn.Config(
            create_app(service),
            host=host,
            port=port,
            log_level="warning",
            timeout_graceful_shutdown=CLOSING_S,
        )
        super().__init__(config)
        self._service, self._report = service, report
        self._drain_until: float | None = None

    @property
    def port(self) -> int:
        """The port that it listens at."""
        number: int = self.servers[0].sockets[0].getsockname()[1]
        return number

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen; as uvicorn calls it."""
        try:
            await super().startup(sockets)
        except SystemExit:
            raise ConfigError(
                f"the server cannot listen at host={self.config.host!r}, port={self.config.port}; give others"
            ) from None
        if self.started:
            host = self.config.host
            base = f"http://{f'[{host}]' if ':' in host else host}:{self.port}"
            self._report(f"the page is at {base}/")
            self._report(f"listening at {base}/v1")

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The signal handler."""
        if self._drain_until is not None:
            self.should_exit = self.force_exit = True
            return
        grace = self._service.settings.grace_s
        self._drain_until = time.monotonic() + grace
        self._service.worker.drain()

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second, whether to end; as uvicorn calls it."""
        if self._drain_until is not None:
            worker = self._service.worker
            if time.monotonic() > self._drain_until:
                worker.abort()  # which tells those who wait
            self.should_exit |= worker.idle
        return await super().on_tick(counter)


def serve(service: Service, host: str, port: int, report: Callable[[str], None]) -> None:
    """Serve until a signal. Arguments as in `DrainingServer`."""
    DrainingServer(service, host, port, report).run()
