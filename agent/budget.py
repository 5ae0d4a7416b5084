"""Keeps the intrusion of fill, and its calibrated slowdown, under a host job's budget.

Intrusion over wall time is looked at twice: over a short span, which steers, and over a sliding
window and the whole job, which stop. Steering is additive increase, multiplicative decrease of the
work in flight; at its floor the least bubble grows instead, up to half of a typical bubble: a
return of training costs the same after a short bubble as after a long one. The calibrated slowdown
(calibration.py) only stops: what comes of power is not mended by less work in flight. Over the
budget filling stops for a back-off, which grows while stops follow each other closely.
"""

from __future__ import annotations

from collections import deque

from agent.settings import AgentSettings

_STEER_SPAN_NS = 5_000_000_000
_STEP_NS = 1_000_000_000
_LEAST_SPAN_NS = 10_000_000_000
_INCREASE_US = 20
_MIN_BUBBLE_STEP_US = 100
# Filling that costs too much by comparison goes on when the window is down to this part of the
# budget: a steady cost is met by filling part of the time, in stretches that are worth it.
_CALIBRATED_LOW = 0.85


class Budget:
    """One host job's budget; all times monotonic nanoseconds of the caller's clock.

    `spent_ns` is the intrusion since `started_ns` that an agent before this one has counted.
    `typical_bubble_us` is the length of the job's bubbles, weighted by length; 0: not known.
    """

    def __init__(
        self, slowdown: float, settings: AgentSettings, started_ns: int, spent_ns: int = 0
    ) -> None:
        self.slowdown = slowdown
        self.in_flight_us = settings.in_flight_us
        self.min_bubble_us = settings.min_bubble_us
        self.stopped = False
        self.typical_bubble_us = 0.0
        self._settings = settings
        self._started_ns = started_ns
        self._window_ns = round(settings.budget_window_s * 1e9)
        self._charges: deque[tuple[int, int]] = deque()
        self._window_sum_ns = 0
        self._total_ns = spent_ns
        self._calibrated_window_ns = 0.0
        self._calibrated_total_ns = 0.0
        self._stopped_until_ns = 0
        self._back_off_s = settings.back_off_s
        self._resumed_ns = started_ns
        self._last_step_ns = started_ns

    def charge(self, now_ns: int, intrusion_ns: int) -> None:
        """Adds what fill has cost the training just now."""
        if intrusion_ns <= 0:
            return
        self._charges.append((now_ns, intrusion_ns))
        self._window_sum_ns += intrusion_ns
        self._total_ns += intrusion_ns

    def calibrated(self, window_ns: float, total_ns: float) -> None:
        """What fill has cost by comparison: within the sliding window, and since the job began."""
        self._calibrated_window_ns = window_ns
        self._calibrated_total_ns = total_ns

    def calibrated_fraction(self, now_ns: int) -> float:
        """Calibrated cost over wall time: in the sliding window or in all, whichever is more."""
        in_all = self._calibrated_total_ns / self._age_ns(now_ns)
        return max(self._calibrated_window_fraction(now_ns), in_all)

    def _calibrated_window_fraction(self, now_ns: int) -> float:
        return self._calibrated_window_ns / self._window_span_ns(now_ns)

    def window_fraction(self, now_ns: int) -> float:
        """Intrusion over wall time in the sliding window, at least 10 s long."""
        while self._charges and self._charges[0][0] < now_ns - self._window_ns:
            self._window_sum_ns -= self._charges.popleft()[1]
        return self._window_sum_ns / self._window_span_ns(now_ns)

    def _window_span_ns(self, now_ns: int) -> int:
        span = min(self._window_ns, now_ns - self._started_ns)
        return max(span, min(_LEAST_SPAN_NS, self._window_ns))

    def _age_ns(self, now_ns: int) -> int:
        return max(now_ns - self._started_ns, _LEAST_SPAN_NS)

    def total_fraction(self, now_ns: int) -> float:
        """Intrusion over wall time since the job began."""
        return self._total_ns / self._age_ns(now_ns)

    def _recent_fraction(self, now_ns: int) -> float:
        recent = 0
        for at_ns, intrusion_ns in reversed(self._charges):
            if at_ns < now_ns - _STEER_SPAN_NS:
                break
            recent += intrusion_ns
        return recent / _STEER_SPAN_NS

    def control(self, now_ns: int) -> str:
        """Steers; call it every few hundred milliseconds. Returns what changed, for the audit log,
        when filling stopped or goes on, else an empty text."""
        if not self._settings.budget_control:
            return ""
        if self.stopped:
            return self._try_resume(now_ns)
        intrusion, calibrated = self._intrusion(now_ns), self.calibrated_fraction(now_ns)
        if max(intrusion, calibrated) > self.slowdown:
            return self._stop(now_ns, intrusion, calibrated)
        if now_ns - self._last_step_ns >= _STEP_NS:
            self._last_step_ns = now_ns
            self._steer(self._recent_fraction(now_ns))
        return ""

    def _intrusion(self, now_ns: int) -> float:
        return max(self.window_fraction(now_ns), self.total_fraction(now_ns))

    def _steer(self, recent: float) -> None:
        settings = self._settings
        if recent > self.slowdown / 2:
            if self.in_flight_us > settings.in_flight_min_us:
                self.in_flight_us = max(settings.in_flight_min_us, self.in_flight_us // 2)
            else:
                raised = max(self.min_bubble_us * 2, _MIN_BUBBLE_STEP_US)
                self.min_bubble_us = min(self._most_min_bubble_us(), raised)
        elif recent < self.slowdown / 4:
            if self.min_bubble_us > settings.min_bubble_us:
                lowered = self.min_bubble_us * 3 // 4 - _MIN_BUBBLE_STEP_US
                self.min_bubble_us = max(settings.min_bubble_us, lowered)
            else:
                self.in_flight_us = min(settings.in_flight_us, self.in_flight_us + _INCREASE_US)

    def _most_min_bubble_us(self) -> int:
        most = round(self.typical_bubble_us / 2) or self._settings.min_bubble_us
        return max(self._settings.min_bubble_us, min(self._settings.min_bubble_max_us, most))

    def _stop(self, now_ns: int, intrusion: float, calibrated: float) -> str:
        if intrusion > self.slowdown:
            self._adapt_back_off((now_ns - self._resumed_ns) / 1e9)
            self.in_flight_us = self._settings.in_flight_min_us
            back_off_s, what = self._back_off_s, f"intrusion {intrusion:.2%}"
        else:
            # Steady, and known by comparison: no sign that it was too early to go on.
            back_off_s, what = self._settings.back_off_s, f"measured slowdown {calibrated:.2%}"
        self.stopped = True
        self._stopped_until_ns = now_ns + round(back_off_s * 1e9)
        return (
            f"{what} is over the budget of {self.slowdown:.2%}: "
            f"filling stops for {back_off_s:g} s or more"
        )

    def _adapt_back_off(self, filled_s: float) -> None:
        """Longer after a short stretch of filling, shorter after a long one."""
        settings = self._settings
        if filled_s < self._back_off_s:
            self._back_off_s = min(settings.back_off_max_s, self._back_off_s * 2)
        elif filled_s > 2 * self._back_off_s:
            self._back_off_s = max(settings.back_off_s, self._back_off_s / 2)

    def _try_resume(self, now_ns: int) -> str:
        if now_ns < self._stopped_until_ns:
            return ""
        intrusion, calibrated = self._intrusion(now_ns), self.calibrated_fraction(now_ns)
        lately = self._calibrated_window_fraction(now_ns)
        if max(intrusion, calibrated) > self.slowdown or lately > _CALIBRATED_LOW * self.slowdown:
            return ""
        self.stopped = False
        self._resumed_ns = now_ns
        what = "intrusion" if intrusion >= calibrated else "measured slowdown"
        return f"{what} is down to {max(intrusion, calibrated):.2%}: filling goes on"
