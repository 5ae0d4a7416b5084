// Overview: headline figures, one chart over all GPUs, one for each GPU, and the state table.
import { draw } from "./chart.js";
import { NOTHING, cost, count, gpuTime, length, memory, plural, share } from "./format.js";
import { badge, byId, fetchJson, fillLink, h, hostLink, links, refreshing, setText, warn } from "./page.js";
import { Table } from "./table.js";

const SILENT_US = 60e6;
const address = new URL(location.href);
const wanted = { minutes: address.searchParams.get("minutes") || "60", node: address.searchParams.get("node") || "" };
const cards = new Map(); // GPU's UUID -> card
let now = 0;

const gpuName = (gpu) => `${gpu.node} · GPU ${gpu.minor}`;

function figure(id, value, unit) {
  const element = byId(id);
  const words = value === null;
  element.classList.toggle("words", words);
  if (words) element.replaceChildren(unit);
  else element.replaceChildren(value, " ", h("small", {}, unit));
}

function meter(id, part) {
  const element = byId(id);
  element.hidden = part === null;
  element.classList.toggle("over", part !== null && part > 1);
  if (part !== null) element.firstElementChild.style.width = `${Math.min(100, 100 * part)}%`;
}

function tiles(data) {
  const { shares } = data.totals;
  const trained = shares.wall_us > 0;
  if (!trained) {
    for (const id of ["gained", "filled", "cost"]) figure(id, null, "No training");
    setText("gained-note", "No training was recorded in this period.");
    for (const id of ["filled-note", "cost-note"]) setText(id, "");
    meter("filled-meter", null);
    meter("cost-meter", null);
  } else {
    figure("gained", ...gpuTime(shares.gpu_time_us));
    setText("gained-note", `by ${plural(data.totals.fill_jobs, "fill job", "fill jobs")}, beside ${gpuTime(shares.wall_us).join(" ")} of training`);
    if (shares.filled_share === null) figure("filled", null, "No bubbles");
    else figure("filled", (100 * shares.filled_share).toFixed(1), "%");
    meter("filled-meter", shares.filled_share);
    setText("filled-note", `of ${gpuTime(shares.bubble_us).join(" ")} of bubbles, ${share(shares.bubble_share)} of training time`);
    figure("cost", cost(shares.intrusion_fraction).replace(" %", ""), "%");
    const budget = data.slowdown_budget;
    meter("cost-meter", budget ? shares.intrusion_fraction / budget : null);
    const allowed = budget === null ? "no job lends" : `budget ${share(budget)}`;
    setText("cost-note", `intrusion ${length(shares.intrusion_us)}; ${allowed}`);
  }
  figure("running", count(data.now.fill_jobs), "");
  setText("running-note", `${plural(data.now.host_jobs, "host job", "host jobs")}; ${count(data.now.gpus_lending)} of ${plural(data.now.gpus, "GPU", "GPUs")} lending`);
}

function mode(gpu) {
  if (gpu.host_job_id === null) return badge("none", "no training");
  if (gpu.node_off) return badge("off", "off on this node");
  return badge(gpu.host_mode, { on: "lends", observe: "observe", off: "off" }[gpu.host_mode]);
}

function facts(gpu) {
  const { recent } = gpu;
  if (recent.bubble_share === null) return [h("span", {}, "No training in the last 5 min")];
  return [
    h("span", {}, h("b", {}, share(recent.bubble_share)), " bubbles"),
    h("span", {}, h("b", {}, share(recent.filled_share)), " filled"),
    h("span", {}, h("b", {}, cost(recent.intrusion_fraction)), " cost"),
  ];
}

function jobsLine(gpu) {
  if (gpu.host_job_id === null) return ["idle: nothing to lend"];
  const fills = gpu.fills.length
    ? [gpu.fills.length === 1 ? " · fill " : " · fills ", ...links(gpu.fills.map((fill) => fill.job_id), fillLink)]
    : [" · no fill"];
  return ["job ", hostLink(gpu.host_job_id), ` of ${gpu.host_user}`, ...fills];
}

function card(gpu) {
  let found = cards.get(gpu.uuid);
  if (!found) {
    const title = h("h3");
    const line = h("p", { class: "gpu-line" });
    const chart = h("div", { class: "chart" });
    const foot = h("p", { class: "facts" });
    found = { title, line, chart, foot, root: h("article", { class: "card" }, h("div", { class: "card-head" }, title, line), chart, foot) };
    cards.set(gpu.uuid, found);
  }
  const key = JSON.stringify({ ...gpu, last_report_at_us: 0 });
  if (found.key !== key) {
    found.key = key;
    found.title.replaceChildren(gpuName(gpu), mode(gpu));
    found.line.replaceChildren(...jobsLine(gpu));
    found.foot.replaceChildren(...facts(gpu));
  }
  return found;
}

function charts(data) {
  const span = { sinceUs: data.since_us, untilUs: data.now_us, stepUs: data.step_us };
  const { shares } = data.totals;
  draw(byId("cluster"), data.cluster, {
    ...span,
    label: `All GPUs with training over the period: bubbles ${share(shares.bubble_share)}, of them filled ${share(shares.filled_share)}`,
    empty: "No training was recorded in this period.",
  });
  const shown = data.gpus.filter((gpu) => gpu.uuid in data.charts);
  const found = shown.map(card);
  const grid = byId("gpus");
  if (grid.children.length !== found.length || found.some((one, at) => grid.children[at] !== one.root)) {
    grid.replaceChildren(...found.map((one) => one.root));
  }
  shown.forEach((gpu, at) => draw(found[at].chart, data.charts[gpu.uuid], {
    ...span,
    label: `${gpuName(gpu)}: last 5 min bubbles ${share(gpu.recent.bubble_share)}, filled ${share(gpu.recent.filled_share)}`,
    empty: "No training in this period.",
  }));
  const left = data.gpus.length - shown.length;
  byId("charts-note").hidden = left === 0 && data.gpus.length > 0;
  setText("charts-note", data.gpus.length ? `${shown.length} of ${data.gpus.length} GPUs are drawn; choose a node to see the others.` : "No agent has reported a GPU yet.");
}

function report(gpu) {
  const age = Math.max(0, now - gpu.last_report_at_us);
  return age > SILENT_US ? badge("silent", `silent for ${length(age)}`) : "reports";
}

function lent(gpu) {
  if (gpu.host_mode !== "on" && !gpu.lent_bytes) return NOTHING;
  const most = gpu.host_lend_bytes === null ? "" : ` of ${memory(gpu.host_lend_bytes)}`;
  return memory(gpu.lent_bytes) + most;
}

const state = new Table("state", [
  { title: "GPU", cell: (gpu) => [gpuName(gpu), gpu.simulated ? h("span", { class: "sub" }, " simulated") : ""], sort: gpuName },
  { title: "Host job", cell: (gpu) => (gpu.host_job_id === null ? NOTHING : [hostLink(gpu.host_job_id), h("span", { class: "sub" }, ` ${gpu.host_user}`)]), sort: (gpu) => gpu.host_job_id },
  { title: "Mode", cell: (gpu) => [mode(gpu), gpu.host_mode_reason ? h("span", { class: "sub" }, ` ${gpu.host_mode_reason}`) : ""], sort: (gpu) => gpu.host_mode },
  { title: "Memory lent", number: true, cell: lent, sort: (gpu) => gpu.lent_bytes },
  { title: "Fill jobs", cell: (gpu) => (gpu.fills.length ? links(gpu.fills.map((fill) => fill.job_id), fillLink) : NOTHING), sort: (gpu) => gpu.fills.length },
  { title: "Bubbles", number: true, cell: (gpu) => share(gpu.recent.bubble_share), sort: (gpu) => gpu.recent.bubble_share },
  { title: "Filled", number: true, cell: (gpu) => share(gpu.recent.filled_share), sort: (gpu) => gpu.recent.filled_share },
  { title: "Intrusion", number: true, cell: (gpu) => cost(gpu.recent.intrusion_fraction), sort: (gpu) => gpu.recent.intrusion_fraction },
  { title: "Agent", cell: report, sort: (gpu) => gpu.last_report_at_us },
], "No agent has reported yet: start sfilld on a GPU node.");

function nodes(names) {
  const select = byId("node");
  if (select.options.length === names.length + 1) return;
  select.replaceChildren(h("option", { value: "" }, "All nodes"), ...names.map((name) => h("option", { value: name }, name)));
  select.value = wanted.node;
}

async function load() {
  const query = new URLSearchParams({ minutes: wanted.minutes });
  if (wanted.node) query.set("node", wanted.node);
  const data = await fetchJson(`/api/overview?${query}`);
  now = data.now_us;
  if (data.off) warn("Filling is switched off on the whole cluster; “sfill on” resumes it.");
  nodes(data.nodes);
  tiles(data);
  charts(data);
  state.show(data.gpus);
}

function choose(change) {
  Object.assign(wanted, change);
  for (const [name, value] of Object.entries(wanted)) {
    if (value) address.searchParams.set(name, value);
    else address.searchParams.delete(name);
  }
  history.replaceState(null, "", address);
  press();
  refresh();
}

function press() {
  for (const button of document.querySelectorAll("[data-minutes]")) {
    button.setAttribute("aria-pressed", String(button.dataset.minutes === wanted.minutes));
  }
}

for (const button of document.querySelectorAll("[data-minutes]")) {
  button.addEventListener("click", () => choose({ minutes: button.dataset.minutes }));
}
byId("node").addEventListener("change", (event) => choose({ node: event.target.value }));
press();
const refresh = refreshing(load);
