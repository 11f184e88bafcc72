"""The certificate that new clients get: the one in the files now, or the last good one."""

from __future__ import annotations

import ssl
import time
from typing import Final

import structlog

from pwgrid.common.certificate import server_context, stamp_of
from pwgrid.common.errors import GridError
from pwgrid.common.kernel_tls import KernelTls

log = structlog.get_logger()

LOOK_S: Final = 1.0
"""How often at most the files are looked at while clients come."""


class CertificateFiles:
    """Loads both files, and again when one of them has changed. Raises GridError where the first load fails. With
    `kernel` clients are served as far as the kernel can."""

    def __init__(self, certificate: str, key: str, kernel: KernelTls | None = None) -> None:
        self._paths = certificate, key
        self._kernel = kernel
        self._stamp = stamp_of(certificate, key)
        self.context = self._new_context()
        """What new clients are served with."""
        self.problem: str | None = None
        """Why it is not the one that the files have now."""
        self._is_told = False
        self._look_at = 0.0

    def look_if_due(self) -> None:
        """Looks at the files, unless that was just done."""
        if time.monotonic() >= self._look_at:
            self.look()

    def look(self) -> None:
        """Takes what the files have, if that is new and whole. Of two files the second one may come a moment later: a
        pair that does not fit is told of when it is still the same at the next look. It is tried again all the same:
        perhaps it only could not be read (no descriptor was free)."""
        self._look_at = time.monotonic() + LOOK_S
        stamp = stamp_of(*self._paths)
        is_new = stamp != self._stamp
        if not is_new and self.problem is None:
            return
        self._stamp = stamp
        try:
            self.context = self._new_context()
        except GridError as error:
            self.problem = error.sentence
            if is_new:
                self._is_told = False
            elif not self._is_told:
                self._is_told = True
                log.error("certificate_not_taken", reason=self.problem, about="new clients get the one before it")
            return
        self.problem = None
        log.info("certificate_taken", file=self._paths[0])

    def _new_context(self) -> ssl.SSLContext:
        context = server_context(*self._paths)
        if self._kernel is not None:
            self._kernel.apply(context)
        return context
