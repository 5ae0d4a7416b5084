"""Accounts of device memory: what the processes of a fill job hold together on its GPU.

The gates of a job keep the sum below the job's limit among themselves (agent/shim/account.c), on a
page that all of them write. The agent gives each its place and clears it when the process ends.
"""

from __future__ import annotations

from agent.attachments import Fill, section_of
from agent.board import LAYOUT_VERSION, MAGIC_ACCOUNT, MAX_PLACES, AccountPage
from agent.shared_memory import SharedMemory


class Account:
    """The page of one fill job on one GPU."""

    def __init__(self, job_id: int, gpu: str, *, complete: bool) -> None:
        """`complete`: no process of the job holds memory there yet. Raises OSError."""
        self.job_id = job_id
        self.memory = SharedMemory.create(AccountPage, "sfill-account")
        page = self.memory.view
        page.version = LAYOUT_VERSION
        page.size_bytes = len(self.memory.raw)
        page.uuid = gpu.encode()
        page.job_id = job_id
        page.complete = int(complete)
        page.magic = MAGIC_ACCOUNT
        # What stands in the page is the processes' to overwrite.
        self._places: dict[int, int] = {}  # by board id
        self.complete = complete

    @property
    def used(self) -> bool:
        return bool(self._places)

    @property
    def full(self) -> bool:
        return len(self._places) == MAX_PLACES

    def join(self, board_id: int, held_bytes: int = 0) -> None:
        """Gives a process its place; `held_bytes`: what it is known to hold already."""
        taken = set(self._places.values())
        place = next(index for index in range(MAX_PLACES) if index not in taken)
        page = self.memory.view
        page.places[place].bytes = held_bytes
        page.places[place].board_id = board_id
        self._places[board_id] = place
        page.places_used = max(self._places.values()) + 1

    def leave(self, board_id: int) -> None:
        """The process has ended: its memory is free again for the others."""
        place = self._places.pop(board_id)
        page = self.memory.view
        page.places[place].board_id = 0
        page.places[place].bytes = 0

    def completed(self) -> None:
        """Every process of the job that holds memory has its place: more may be taken."""
        self.complete = True
        self.memory.view.complete = 1


class Accounts:
    """All accounts of a node, by job and GPU. Main thread only."""

    def __init__(self) -> None:
        self._accounts: dict[tuple[int, str], Account] = {}

    def of(self, fill: Fill) -> Account | None:
        return self._accounts.get((fill.job.job_id, fill.gpu))

    def full(self, job_id: int, gpu: str) -> bool:
        """Whether the job has as many processes there as an account has places."""
        account = self._accounts.get((job_id, gpu))
        return account is not None and account.full

    def join(self, fill: Fill, *, complete: bool) -> None:
        """A process has attached; `complete`: what to think of an account begun for it."""
        key = (fill.job.job_id, fill.gpu)
        if key not in self._accounts:
            self._accounts[key] = Account(*key, complete=complete)
        section = section_of(fill)
        self._accounts[key].join(fill.board_id, int(section.memory_bytes) if section else 0)

    def leave(self, fill: Fill) -> None:
        key = (fill.job.job_id, fill.gpu)
        self._accounts[key].leave(fill.board_id)
        if not self._accounts[key].used:
            self._accounts.pop(key).memory.close()

    def look(self, gpu: str, unboarded: frozenset[int]) -> None:
        """`unboarded`: jobs with a process on the GPU that has no board, by a look at it."""
        for (job_id, uuid), account in self._accounts.items():
            if uuid == gpu and not account.complete and job_id not in unboarded:
                account.completed()
