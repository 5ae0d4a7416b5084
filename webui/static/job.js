// One job: its figures, its GPUs over time, its partners and events.
import { draw } from "./chart.js";
import { eventColumns } from "./event_columns.js";
import { NOTHING, cost, count, gpuTime, length, memory, moment, plural, share, shareName, zoneOffset } from "./format.js";
import { badge, byId, fetchJson, fillLink, h, hostLink, refreshing } from "./page.js";
import { Table } from "./table.js";

const { kind, jobId } = byId("job").dataset;
const isHost = kind === "host";
const charts = new Map(); // GPU's UUID -> element
let names = new Map(); // GPU's UUID -> name

const nameOf = (uuid) => names.get(uuid) || uuid;

const partnerColumns = isHost
  ? [
      { title: "Fill job", cell: (job) => fillLink(job.job_id), sort: (job) => job.job_id },
      { title: "User", cell: (job) => job.user, sort: (job) => job.user },
      { title: "Memory", number: true, cell: (job) => memory(job.memory_bytes), sort: (job) => job.memory_bytes },
      { title: `Started (${zoneOffset()})`, cell: (job) => moment(job.admitted_at_us), sort: (job) => job.admitted_at_us },
      { title: "State", cell: (job) => (job.ended_at_us === null ? badge("running") : job.end_reason || "ended") },
      { title: "Bubbles used", number: true, cell: (job) => count(job.bubbles_used), sort: (job) => job.bubbles_used },
      { title: "GPU time", number: true, cell: (job) => length(job.gpu_time_us), sort: (job) => job.gpu_time_us },
      { title: "Intrusion", number: true, cell: (job) => length(job.intrusion_us), sort: (job) => job.intrusion_us },
    ]
  : [
      { title: "Start", number: true, cell: (start) => String(start.restart_count + 1) },
      { title: "GPU", cell: (start) => nameOf(start.gpu) },
      { title: "Beside", cell: (start) => (start.host_job_id === null ? NOTHING : hostLink(start.host_job_id)) },
      { title: `Began (${zoneOffset()})`, cell: (start) => moment(start.admitted_at_us) },
      { title: "Ended", cell: (start) => (start.ended_at_us === null ? badge("running") : moment(start.ended_at_us)) },
      { title: "Why", cell: (start) => start.end_reason || NOTHING },
      { title: "Bubbles used", number: true, cell: (start) => count(start.bubbles_used) },
      { title: "GPU time", number: true, cell: (start) => length(start.gpu_time_us) },
      { title: "Intrusion", number: true, cell: (start) => length(start.intrusion_us) },
    ];
const partners = new Table("partners", partnerColumns, isHost ? "No fill job has run in its bubbles." : "It has not started yet.");
const events = new Table("events", eventColumns(), "No event names this job.");

function tile(title, value, unit, note) {
  return h("article", { class: "tile" }, h("h2", {}, title), h("p", { class: "figure" }, value, " ", h("small", {}, unit)), h("p", { class: "note" }, note));
}

const percent = (value, format = share) => [format(value).replace(" %", ""), value === null ? "" : "%"];

function slowdownTile(job) {
  const known = job.calibrated_slowdown !== null;
  const note = known ? `in all, against hold-outs; budget ${share(job.slowdown_budget)}` : "takes some hold-outs beside a fill";
  const value = known ? percent(job.calibrated_slowdown, cost) : [job.mode === "on" ? "not known yet" : NOTHING, ""];
  return tile("Slowdown", ...value, note);
}

function bubbleNote(job) {
  if (job.watched_us !== 0) return `of ${gpuTime(job.covered_us).join(" ")}`;
  return job.ended_at_us === null ? "not watched so far" : "nobody watched it";
}

function hostTiles(job) {
  return [
    tile("Bubbles", ...percent(job.bubble_share), bubbleNote(job)),
    tile("Bubble time filled", ...percent(job.filled_share), `${gpuTime(job.filled_us).join(" ")} of ${gpuTime(job.bubble_us).join(" ")}`),
    tile("Intrusion", ...percent(job.intrusion_fraction, cost), `ready work waited ${length(job.intrusion_us)}; budget ${share(job.slowdown_budget)}`),
    slowdownTile(job),
    tile("Memory it lends", job.mode === "on" ? memory(job.lend_bytes) : "none", "", job.mode === "on" && job.lend_bytes === null ? "at most what the site allows" : "a GPU, at most"),
  ];
}

function fillTiles(job) {
  return [
    tile("GPU time", ...gpuTime(job.gpu_time_us), `${plural(job.kernels, "kernel", "kernels")}`),
    tile("Of its time", ...percent(job.gpu_share), `${length(job.run_us)} admitted`),
    tile("Bubbles used", count(job.bubbles_used), "", job.bubbles_used ? `${length(job.gpu_time_us / job.bubbles_used)} of GPU time each` : "none yet"),
    tile("Intrusion", length(job.intrusion_us), "", "caused to its hosts"),
  ];
}

function sharing(job) {
  if (job.share_mode === null) return "";
  return `; shares by ${shareName(job.share_mode)}${job.share_reason ? `, ${job.share_reason}` : ""}`;
}

function lead(job) {
  const since = isHost ? job.started_at_us : job.admitted_at_us;
  const until = job.ended_at_us === null ? "now" : moment(job.ended_at_us);
  const where = `${job.nodes.join(", ")}, ${plural(job.gpus.length, "GPU", "GPUs")}`;
  const account = job.account ? ` (account ${job.account})` : "";
  const more = isHost ? `; mode ${job.mode}${job.mode_reason ? `, ${job.mode_reason}` : ""}${sharing(job)}` : `; ${memory(job.memory_bytes)}, ${plural(job.starts, "start", "starts")}`;
  return `${job.user}${account} on ${where}; ${moment(since)} to ${until}${more}`;
}

function drawCharts(data) {
  const root = byId("charts");
  const uuids = data.job.gpus;
  for (const uuid of uuids) {
    if (charts.has(uuid)) continue;
    const chart = h("div", { class: "chart" });
    charts.set(uuid, chart);
    root.append(h("p", { class: "gpu-line" }, nameOf(uuid)), chart);
  }
  const nothing = { began_at_us: [], busy_us: [], filled_us: [], unfilled_us: [], intrusion_us: [] };
  for (const uuid of uuids) {
    draw(charts.get(uuid), data.charts[uuid] || nothing, {
      sinceUs: data.since_us, untilUs: data.until_us, stepUs: data.step_us,
      names: isHost ? null : { filled_us: "Bubble, filled by this job", unfilled_us: "Rest of the bubble" },
      label: `${nameOf(uuid)} over the life of job ${jobId}`,
      empty: "No window of ten seconds has been recorded yet.",
    });
  }
}

refreshing(async () => {
  if (!names.size) {
    const known = await fetchJson("/api/gpus");
    names = new Map(known.gpus.map((gpu) => [gpu.uuid, `${gpu.node} · GPU ${gpu.minor}`]));
  }
  const data = await fetchJson(`/api/jobs/${kind}/${jobId}`);
  const { job } = data;
  const state = job.ended_at_us === null ? badge("running") : badge("ended");
  byId("badge").replaceChildren(state, isHost ? " " : "", isHost ? badge(job.mode, job.mode === "on" ? "lends" : job.mode) : "");
  byId("lead").textContent = lead(job);
  byId("tiles").replaceChildren(...(isHost ? hostTiles(job) : fillTiles(job)));
  drawCharts(data);
  partners.show(isHost ? data.fills : data.starts);
  events.show(data.events);
});
