"""TLS between nodes, on top of the shared key: each side shows a certificate that the same authority has signed."""

from __future__ import annotations

import ssl
from dataclasses import asdict, dataclass

from strobe.model.errors import Misuse

__all__ = ["Tls"]


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM: this node's certificate and key, and the authority that everyone's certificates come from."""

    certificate: str
    key: str
    authority: str

    def accepting(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_SERVER)

    def dialling(self) -> ssl.SSLContext:
        return self._context(ssl.PROTOCOL_TLS_CLIENT)

    def to_json(self) -> dict[str, str]:
        return asdict(self)

    def _context(self, side: int) -> ssl.SSLContext:
        context = ssl.SSLContext(side)
        # Nodes are reached by address and prove by the key who they are; the certificate proves that they belong here.
        context.check_hostname = False
        context.verify_mode = ssl.CERT_REQUIRED
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        try:
            context.load_cert_chain(self.certificate, self.key)
            context.load_verify_locations(self.authority)
        except (OSError, ssl.SSLError) as error:
            raise Misuse(
                f"TLS cannot be set up from {self.certificate}, {self.key} and {self.authority}: {error}.",
                untouched="Nothing was started.",
                next="Name files in PEM: a certificate, its key, and the authority's certificate.",
            ) from error
        return context
