"""Hold-outs: random short times in which no fill of a host job runs, to measure what it costs.

They follow from the job's id and the time of day alone, so that all GPUs of a job are held out
together, on other nodes too: ranks that wait for each other show nothing otherwise.
"""

from __future__ import annotations

from hashlib import blake2b

from agent.settings import AgentSettings

_CYCLES = 4
_MOST_DOUBLINGS = 5
_EARLY_NS = 10_000_000_000
_EARLY_CYCLES = 60
_EARLY_FACTOR = 4
_MOST_FRACTION = 0.5
_EARLY_AGAIN = 6  # times the early time lies between the begins of two


class HoldOuts:
    """Of one host job."""

    def __init__(self, job_id: int, settings: AgentSettings) -> None:
        self._job_id = job_id
        self._fraction = settings.calibration_fraction
        self._hold_us = round(settings.calibration_hold_s * 1e6)
        self._early_since_ns = 0

    def held(self, utc_us: int, now_ns: int, filled_since_ns: int, cycle_ns: float) -> bool:
        """Whether fills are held out now.

        `filled_since_ns`: when the fills of now began to fill; 0: not yet, so there is nothing to
        measure. For some seconds from then on hold-outs come more often, so that there soon is a
        first estimate. `cycle_ns`: a bubble and what follows it; a hold-out lasts for several.
        """
        if not self._fraction or not filled_since_ns:
            return False
        hold_us = self._length_us(cycle_ns)
        fraction = self._fraction
        if self._early(now_ns, filled_since_ns, cycle_ns):
            fraction = min(_MOST_FRACTION, fraction * _EARLY_FACTOR)
        period_us = round(hold_us / fraction)
        number, at_us = divmod(utc_us, period_us)
        begin_us = self._random(number, hold_us) * (period_us - hold_us)
        return begin_us <= at_us < begin_us + hold_us

    def _length_us(self, cycle_ns: float) -> int:
        """Doubled until it is long enough: nodes that measure a little apart still agree."""
        length_us = self._hold_us
        for _ in range(_MOST_DOUBLINGS):
            if length_us * 1000 >= _CYCLES * cycle_ns:
                break
            length_us *= 2
        return length_us

    def _early(self, now_ns: int, filled_since_ns: int, cycle_ns: float) -> bool:
        """Fills that come and go often don't make every hold-out an early one."""
        early_ns = max(_EARLY_NS, _EARLY_CYCLES * cycle_ns)
        age_ns = now_ns - self._early_since_ns
        again = not self._early_since_ns or age_ns > _EARLY_AGAIN * early_ns
        if again and filled_since_ns and now_ns - filled_since_ns < early_ns:
            self._early_since_ns, age_ns = now_ns, 0
        return bool(self._early_since_ns) and age_ns < early_ns

    def _random(self, number: int, hold_us: int) -> float:
        """In [0, 1), the same wherever it is asked for."""
        text = f"{self._job_id} {number} {hold_us}".encode()
        return int.from_bytes(blake2b(text, digest_size=6).digest()) / (1 << 48)
