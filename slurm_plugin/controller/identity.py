"""Who is speaking: munge says which uid on which host, Slurm says where a node lives."""

from __future__ import annotations

import hashlib
import hmac
import logging
import socket
import threading
import time
from collections.abc import Iterable

from db.wire import munge
from db.wire.munge import Credential, MungeError
from slurm_plugin.cluster.interface import ClusterError, SlurmCluster

log = logging.getLogger(__name__)

# How long a node's addresses are believed before they are looked up again.
KEEP_S = 600.0
RETRY_S = 5.0


class RefusedError(Exception):
    """A request that is not believed; `status` is the HTTP status, the text one sentence."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class Identity:
    """Checks credentials. Safe to share between threads."""

    def __init__(
        self,
        cluster: SlurmCluster,
        *,
        munge_socket: str | None,
        slurm_user_id: int,
        check_addresses: bool,
        node_addresses: dict[str, list[str]],
    ) -> None:
        self._cluster = cluster
        self._socket = munge_socket
        self._allowed_uids = {0, slurm_user_id}
        self._check_addresses = check_addresses
        self._given = node_addresses
        self._lock = threading.Lock()
        self._known: dict[str, tuple[float, frozenset[str]]] = {}
        self._own: str | None = None

    def privileged(self, credential: str) -> Credential:
        """A credential of root or SlurmUser. Raises RefusedError."""
        if not credential:
            raise RefusedError(401, "a munge credential is needed")
        try:
            found = munge.decode(credential, self._socket)
        except MungeError as error:
            raise RefusedError(503 if error.unreachable else 401, str(error)) from None
        if found.uid not in self._allowed_uids:
            raise RefusedError(403, f"uid {found.uid} is neither root nor SlurmUser")
        return found

    def signed(self, credential: str, body: bytes) -> Credential:
        """The same, for a credential that carries the SHA-256 (hex) of `body`."""
        found = self.privileged(credential)
        digest = hashlib.sha256(body).hexdigest().encode()
        if not hmac.compare_digest(found.payload, digest):
            raise RefusedError(401, "the credential belongs to another body")
        return found

    def may_report_for(self, credential: Credential, node: str) -> None:
        """A node reports only for itself. Raises RefusedError."""
        if not self._check_addresses:
            return
        addresses = self._addresses(node)
        if credential.host not in addresses:
            where = ", ".join(sorted(addresses)) or "unknown"
            raise RefusedError(
                403,
                f"{credential.host} may not report for {node}, whose address is {where}"
                " (setting node_addresses)",
            )

    def _addresses(self, node: str) -> frozenset[str]:
        now_s = time.monotonic()
        with self._lock:
            kept = self._known.get(node)
        if kept and now_s < kept[0]:
            return kept[1]
        given = {*self._given.get(node, ()), *self._given.get("*", ())}
        try:
            found = frozenset(given | self._resolve(self._cluster.hosts_of(node)))
            until_s = now_s + KEEP_S
        except ClusterError as error:
            # What was known goes on to hold while slurmctld is away.
            log.warning("where %s lives is not known now: %s", node, error)
            found = frozenset(given | (kept[1] if kept else set()))
            until_s = now_s + RETRY_S
        with self._lock:
            self._known[node] = (until_s, found)
        return found

    def _resolve(self, hosts: Iterable[str]) -> set[str]:
        addresses: set[str] = set()
        for host in hosts:
            try:
                addresses |= {str(info[4][0]) for info in socket.getaddrinfo(host, None)}
            except OSError:
                continue
        if any(address.startswith("127.") or address == "::1" for address in addresses):
            # A node on the controller's own host: munged there signs with the host's address.
            addresses.add(self._own_address())
        return addresses

    def _own_address(self) -> str:
        if self._own is None:
            try:
                self._own = munge.decode(munge.encode(b"", self._socket), self._socket).host
            except MungeError as error:
                log.warning("this host's address in credentials is unknown: %s", error)
                return "127.0.0.1"
        return self._own
