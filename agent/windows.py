"""Windows of some seconds: bubble time of each (GPU, host job), and what each fill made of it.

Rows add up: bubbles and bubble time stand only in the training's own row (fill job None), uses,
GPU time, kernels and intrusion only in the rows of the fills.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from agent.bubbles import BubblesOfBoard, bubble_time, watched_time
from agent.node import Node
from db.wire.messages import WindowRecord

# A bubble is written to its board a little after it ended, and read a little after that: what is
# told of too late for its window would stand in none.
_SETTLE_NS = 20_000_000
_MOST_PIECES = 64  # of a window that a standstill of the agent made long
_SHARE_WEIGHT = 0.3  # of the newest window in a GPU's recent bubble share


@dataclass
class _UseSum:
    uses: int = 0
    gpu_time_ns: int = 0
    intrusion_ns: int = 0
    kernels: int = 0


@dataclass
class Windows:
    """The window that is open now, over all GPUs. Main thread only."""

    node: Node
    began_ns: int
    lost_bubbles: int = 0
    _bubbles: dict[tuple[str, int], BubblesOfBoard] = field(default_factory=dict)
    _uses: dict[tuple[str, int, int], _UseSum] = field(default_factory=lambda: defaultdict(_UseSum))
    # Since when there has been no row of these in the open window: of fills that ended in it.
    _written_ns: dict[tuple[str, int, int], int] = field(default_factory=dict)

    def bubbles_of(self, gpu: str, board_id: int, attached_ns: int) -> BubblesOfBoard:
        """The bubbles of one board on one GPU, to be added to."""
        key = (gpu, board_id)
        if key not in self._bubbles:
            self._bubbles[key] = BubblesOfBoard(attached_ns=attached_ns)
        self._bubbles[key].gone_ns = 0  # a process may have attached again
        return self._bubbles[key]

    def gone(self, board_id: int, ended_ns: int) -> None:
        """The process of a board has ended."""
        for (_, each), bubbles in self._bubbles.items():
            if each == board_id:
                bubbles.open_since_ns, bubbles.gone_ns = 0, ended_ns

    def use(
        self,
        gpu: str,
        host_job_id: int,
        fill_job_id: int,
        *,
        uses: int,
        gpu_time_ns: int,
        intrusion_ns: int,
        kernels: int,
    ) -> None:
        """Adds uses of bubbles."""
        total = self._uses[gpu, host_job_id, fill_job_id]
        total.uses += uses
        total.gpu_time_ns += gpu_time_ns
        total.intrusion_ns += intrusion_ns
        total.kernels += kernels

    def close_due(self, now_ns: int) -> None:
        """Closes the window when its time is up, at a moment before which all has been read."""
        settled_ns = now_ns - _SETTLE_NS
        if settled_ns - self.began_ns >= self.node.settings.window_s * 1e9:
            self.close(settled_ns)

    def close(self, now_ns: int) -> None:
        """Writes the window's rows and begins the next; one that has become long, since the agent
        stood still, is cut into some of the usual length."""
        length_ns = round(self.node.settings.window_s * 1e9)
        length_ns = max(length_ns, (now_ns - self.began_ns) // _MOST_PIECES)
        while now_ns - self.began_ns >= 2 * length_ns:
            self._close_at(self.began_ns + length_ns)
        self._close_at(now_ns)

    def _close_at(self, now_ns: int) -> None:
        for gpu in self.node.gpus.values():
            self._close_gpu(gpu.uuid, now_ns)
        for key, total in self._uses.items():
            self._write_uses(key, total, now_ns)
        self._uses.clear()
        self._written_ns.clear()
        live = self.node.trainings.keys()
        self._bubbles = {
            key: value
            for key, value in self._bubbles.items()
            if key[1] in live or value.gone_ns > now_ns
        }
        for bubbles in self._bubbles.values():
            bubbles.forget_before(now_ns)
        self._tell_lost()
        self.began_ns = now_ns

    def fill_left(self, fill_job_id: int, now_ns: int) -> None:
        """Writes a fill job's rows now if it has ended and its last process has left.

        Its figures are wanted then. The window stays open: a bubble that is over may not stand on
        its board yet, and would be in none.
        """
        attached = {each.job.job_id for each in self.node.fills.values()}
        if fill_job_id in self.node.jobs.fills or fill_job_id in attached:
            return
        for key in [each for each in self._uses if each[2] == fill_job_id]:
            self._write_uses(key, self._uses.pop(key), now_ns)
            self._written_ns[key] = now_ns

    def _write_uses(self, key: tuple[str, int, int], total: _UseSum, now_ns: int) -> None:
        gpu, host_job_id, fill_job_id = key
        # A job that came back has a row of its own: one of the same beginning replaces the first.
        began_ns = self._written_ns.get(key, self.began_ns)
        self.node.ledger.add(
            WindowRecord(
                gpu=gpu,
                host_job_id=host_job_id,
                fill_job_id=fill_job_id,
                began_at_us=self.node.clock.utc_us(began_ns),
                window_us=(now_ns - began_ns) // 1000,
                bubbles=0,
                bubble_us=0.0,
                used_bubbles=total.uses,
                gpu_time_us=total.gpu_time_ns / 1000,
                intrusion_us=total.intrusion_ns / 1000,
                kernels=total.kernels,
            )
        )

    def _close_gpu(self, uuid: str, now_ns: int) -> None:
        boards = [bubbles for (gpu, _), bubbles in self._bubbles.items() if gpu == uuid]
        host = self.node.jobs.host_of(uuid)
        gpu = self.node.gpus[uuid]
        watched_ns = watched_time(boards, self.began_ns, now_ns)
        if host is None or not watched_ns:
            gpu.bubble_share *= 1 - _SHARE_WEIGHT
            return
        found = bubble_time(boards, self.began_ns, now_ns)
        length_us = found.length_ns / 1000
        host.bubble_us += length_us
        host.watched_us += watched_ns / 1000
        self.node.budget_of(host).typical_bubble_us = found.typical_ns / 1000
        share = found.length_ns / watched_ns
        gpu.bubble_share += _SHARE_WEIGHT * (share - gpu.bubble_share)
        self.node.ledger.add(
            WindowRecord(
                gpu=uuid,
                host_job_id=host.job_id,
                began_at_us=self.node.clock.utc_us(self.began_ns),
                # Shares are of the time in which somebody watched: a job does not begin with a
                # window.
                window_us=watched_ns // 1000,
                bubbles=found.count,
                bubble_us=length_us,
            )
        )
        self.node.ledger.add(host.record())

    def _tell_lost(self) -> None:
        if self.lost_bubbles:
            self.node.ledger.event(
                "lost", f"{self.lost_bubbles} bubbles were overwritten before they were read"
            )
            self.lost_bubbles = 0
