"""What the command line and the dashboard read; every function takes a session and only reads.

Times are UTC microseconds since the epoch (`*_at_us`, `since_us` inclusive, `until_us` exclusive),
lengths microseconds. Shares and fractions are None where there is nothing to divide by.
"""

from db.queries.audit import (
    AuditFilter,
    AuditRow,
    AuditSums,
    EventFilter,
    EventRow,
    Key,
    Page,
    audit,
    audit_sums,
    event_kinds,
    events,
)
from db.queries.jobs import FillStart, HostJobRow, JobFilter, fill_jobs, host_jobs, watched
from db.queries.overview import Bucket, FillNow, GpuNow, gpus_now, ledger_begins_at_us, timeline
from db.queries.totals import Totals, filling_is_off, totals
from db.queries.whole_jobs import (
    FillJobWhole,
    HostJobWhole,
    fill_jobs_beside,
    job_timeline,
    largest_slowdown,
    starts_of,
    whole_fill_jobs,
    whole_host_jobs,
)

__all__ = [
    "AuditFilter",
    "AuditRow",
    "AuditSums",
    "Bucket",
    "EventFilter",
    "EventRow",
    "FillJobWhole",
    "FillNow",
    "FillStart",
    "GpuNow",
    "HostJobRow",
    "HostJobWhole",
    "JobFilter",
    "Key",
    "Page",
    "Totals",
    "audit",
    "audit_sums",
    "event_kinds",
    "events",
    "fill_jobs",
    "fill_jobs_beside",
    "filling_is_off",
    "gpus_now",
    "host_jobs",
    "job_timeline",
    "largest_slowdown",
    "ledger_begins_at_us",
    "starts_of",
    "timeline",
    "totals",
    "watched",
    "whole_fill_jobs",
    "whole_host_jobs",
]
