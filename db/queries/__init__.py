"""What the command line and the dashboard read; every function takes a session and only reads.

Times are UTC microseconds since the epoch (`*_at_us`, `since_us` inclusive, `until_us` exclusive),
lengths microseconds. Shares and fractions are None where there is nothing to divide by.
"""

from db.queries.audit import AuditFilter, AuditRow, EventFilter, EventRow, Key, Page, audit, events
from db.queries.jobs import FillStart, HostJobRow, JobFilter, fill_jobs, host_jobs
from db.queries.overview import Bucket, GpuNow, gpus_now, timeline
from db.queries.totals import Totals, filling_is_off, totals

__all__ = [
    "AuditFilter",
    "AuditRow",
    "Bucket",
    "EventFilter",
    "EventRow",
    "FillStart",
    "GpuNow",
    "HostJobRow",
    "JobFilter",
    "Key",
    "Page",
    "Totals",
    "audit",
    "events",
    "fill_jobs",
    "filling_is_off",
    "gpus_now",
    "host_jobs",
    "timeline",
    "totals",
]
