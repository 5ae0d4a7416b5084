// Audit: who used whose bubble, when, for how long, and what it cost.
import { NOTHING, clock, count, day, length, zoneOffset } from "./format.js";
import { byId, fetchJson, fillLink, h, hostLink } from "./page.js";
import { pagesByKey } from "./pages_by_key.js";
import { Table } from "./table.js";

let names = new Map(); // GPU's UUID -> name

function used(row) {
  const part = Math.min(1, row.used_us / row.bubble_us);
  return [length(row.used_us), h("span", { class: "mini", "aria-hidden": "true" }, h("span", { width: `${100 * part}%` }))];
}

const user = (name) => h("span", { class: "sub" }, ` ${name || NOTHING}`);

const table = new Table("rows", [
  { title: `First release (${zoneOffset()})`, cell: (row) => [h("span", { class: "sub" }, `${day(row.first_release_at_us)} `), clock(row.first_release_at_us, true)] },
  { title: "GPU", cell: (row) => names.get(row.gpu_uuid) || row.gpu_uuid },
  { title: "Host job", cell: (row) => [hostLink(row.host_slurm_job_id), row.host_step ? `.${row.host_step}` : "", user(row.host_user)] },
  { title: "Fill job", cell: (row) => [fillLink(row.fill_slurm_job_id), user(row.fill_user)] },
  { title: "Cause", cell: (row) => row.cause },
  { title: "Bubble", number: true, cell: (row) => length(row.bubble_us) },
  { title: "Used", number: true, cell: used },
  { title: "Kernels", number: true, cell: (row) => count(row.kernels) },
  { title: "GPU time", number: true, cell: (row) => length(row.gpu_time_us) },
  { title: "Intrusion", number: true, cell: (row) => (row.intrusion_us ? length(row.intrusion_us) : h("span", { class: "sub" }, "0")) },
], "No bubble was used that matches.");

const SUMS_EVERY_MS = 30000; // they read every row of the filter: not at each refresh
let summed = { query: null, at: 0 };

async function onFirst(data, filters) {
  const query = filters.toString();
  for (const suffix of ["csv", "json"]) byId(suffix).href = `/audit.${suffix}${query ? `?${query}` : ""}`;
  if (query === summed.query && Date.now() - summed.at < SUMS_EVERY_MS) return;
  summed = { query, at: Date.now() };
  const sums = await fetchJson(`/api/audit/sums?${query}`);
  if (query !== summed.query) return; // an older answer came late
  byId("sums").textContent = sums.rows
    ? `${count(sums.rows)} uses · ${count(sums.kernels)} kernels · ${length(sums.gpu_time_us)} of GPU time · ${length(sums.intrusion_us)} of intrusion`
    : "";
}

async function gpus() {
  const known = await fetchJson("/api/gpus");
  names = new Map(known.gpus.map((gpu) => [gpu.uuid, `${gpu.node} · GPU ${gpu.minor}`]));
  for (const [uuid, name] of names) byId("filters").elements.namedItem("gpu").add(new Option(name, uuid));
}

gpus().catch(() => {}).finally(() => pagesByKey({ api: "/api/audit", table, onFirst }));
