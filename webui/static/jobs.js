// Jobs: two tables that can be searched and sorted.
import { NOTHING, cost, count, length, memory, moment, share, shareName, slowdown, zoneOffset } from "./format.js";
import { badge, byId, fetchJson, fillLink, h, hostLink, links, refreshing, setText } from "./page.js";
import { Table } from "./table.js";

let data = { hosts: [], fills: [], limit: 0, full: false };

const modeName = { on: "lends", observe: "observe", off: "off" };
const running = (job) => job.ended_at_us === null;

function stateOf(job) {
  return running(job) ? badge("running") : job.end_reason || "ended";
}

const hosts = new Table("hosts", [
  { title: "Job", cell: (job) => hostLink(job.job_id), sort: (job) => job.job_id },
  { title: "User", cell: (job) => job.user, sort: (job) => job.user },
  { title: "Mode", cell: (job) => badge(job.mode, modeName[job.mode]), sort: (job) => job.mode },
  { title: "Shares by", cell: (job) => (job.share_mode === null ? NOTHING : [shareName(job.share_mode), h("span", { class: "sub" }, ` ${job.share_reason}`)]), sort: (job) => job.share_mode },
  { title: "Nodes", cell: (job) => job.nodes.join(", "), sort: (job) => job.nodes[0] },
  { title: "GPUs", number: true, cell: (job) => String(job.gpus.length), sort: (job) => job.gpus.length },
  { title: `Started (${zoneOffset()})`, cell: (job) => moment(job.started_at_us), sort: (job) => job.started_at_us },
  { title: "State", cell: stateOf, sort: running },
  { title: "GPU time", number: true, cell: (job) => length(job.gpu_wall_us), sort: (job) => job.gpu_wall_us },
  { title: "Bubbles", number: true, cell: (job) => share(job.bubble_share), sort: (job) => job.bubble_share },
  { title: "Filled", number: true, cell: (job) => share(job.filled_share), sort: (job) => job.filled_share },
  { title: "Intrusion", number: true, cell: (job) => cost(job.intrusion_fraction), sort: (job) => job.intrusion_fraction },
  { title: "Slowdown", number: true, cell: slowdown, sort: (job) => job.calibrated_slowdown },
  { title: "Budget", number: true, cell: (job) => (job.mode === "on" ? share(job.slowdown_budget) : NOTHING), sort: (job) => job.slowdown_budget },
], "");

const fills = new Table("fills", [
  { title: "Job", cell: (job) => fillLink(job.job_id), sort: (job) => job.job_id },
  { title: "User", cell: (job) => job.user, sort: (job) => job.user },
  { title: "Beside", cell: (job) => (job.host_job_ids.length ? links(job.host_job_ids, hostLink) : NOTHING), sort: (job) => job.host_job_ids[0] ?? null },
  { title: "Nodes", cell: (job) => job.nodes.join(", "), sort: (job) => job.nodes[0] },
  { title: "Memory", number: true, cell: (job) => memory(job.memory_bytes), sort: (job) => job.memory_bytes },
  { title: `Started (${zoneOffset()})`, cell: (job) => moment(job.admitted_at_us), sort: (job) => job.admitted_at_us },
  { title: "State", cell: stateOf, sort: running },
  { title: "Starts", number: true, cell: (job) => String(job.starts), sort: (job) => job.starts },
  { title: "Bubbles used", number: true, cell: (job) => count(job.bubbles_used), sort: (job) => job.bubbles_used },
  { title: "GPU time", number: true, cell: (job) => length(job.gpu_time_us), sort: (job) => job.gpu_time_us },
  { title: "Of its time", number: true, cell: (job) => share(job.gpu_share), sort: (job) => job.gpu_share },
  { title: "Intrusion", number: true, cell: (job) => length(job.intrusion_us), sort: (job) => job.intrusion_us },
], "");

function matches(job, words) {
  const text = [job.job_id, job.user, job.account, job.mode ?? "", ...job.nodes, ...(job.host_job_ids ?? [])].join(" ").toLowerCase();
  return words.every((word) => text.includes(word));
}

function show() {
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const only = byId("only-running").checked;
  const keep = (job) => matches(job, words) && (!only || running(job));
  for (const [name, table, what] of [["hosts", hosts, "host job"], ["fills", fills, "fill job"]]) {
    const kept = data[name].filter(keep);
    const none = data[name].length ? `No ${what} matches.` : `No ${what} has been recorded yet.`;
    table.show(kept, none);
    setText(`${name}-count`, kept.length === data[name].length ? `${kept.length}` : `${kept.length} of ${data[name].length}`);
  }
  byId("limit-note").hidden = !data.full;
  setText("limit-note", `The newest ${data.limit} are shown; sfill jobs finds older ones.`);
}

byId("search").addEventListener("input", show);
byId("only-running").addEventListener("change", show);
refreshing(async () => {
  data = await fetchJson("/api/jobs");
  show();
});
