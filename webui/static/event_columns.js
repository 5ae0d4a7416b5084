// Columns of the audit log, on the events page and on a job's page.
import { NOTHING, clock, day, zoneOffset } from "./format.js";
import { badge, h } from "./page.js";

export function eventColumns() {
  return [
    { title: `When (${zoneOffset()})`, cell: (event) => [h("span", { class: "sub" }, `${day(event.at_us)} `), clock(event.at_us, true)] },
    { title: "What", cell: (event) => badge(event.what) },
    { title: "Node", cell: (event) => event.node || NOTHING },
    { title: "Job", number: true, cell: (event) => (event.slurm_job_id === null ? NOTHING : h("a", { href: `/events?job=${event.slurm_job_id}` }, String(event.slurm_job_id))) },
    { title: "User", cell: (event) => event.user || NOTHING },
    { title: "Text", text: true, cell: (event) => event.text },
  ];
}
