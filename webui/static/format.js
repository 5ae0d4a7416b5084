// Figures as people read them. null means "nothing to divide by" and is a dash, never 0.
export const NOTHING = "–";

export function share(value, digits = 1) {
  return value === null || value === undefined ? NOTHING : `${(100 * value).toFixed(digits)} %`;
}

// Small costs matter: more digits below a tenth of a per cent.
export function cost(value) {
  return share(value, value !== null && value > 0 && value < 0.001 ? 3 : 2);
}

// What fill costs a job by comparison with hold-outs; it takes a while until that is known.
export function slowdown(job) {
  if (job.mode !== "on") return NOTHING;
  return job.calibrated_slowdown === null ? "not known yet" : cost(job.calibrated_slowdown);
}

export function length(us) {
  if (us === null || us === undefined) return NOTHING;
  if (us < 1000) return `${us.toFixed(0)} µs`;
  if (us < 1e6) return `${(us / 1e3).toFixed(1)} ms`;
  if (us < 120e6) return `${(us / 1e6).toFixed(1)} s`;
  if (us < 7200e6) return `${(us / 60e6).toFixed(1)} min`;
  return `${(us / 3600e6).toFixed(1)} h`;
}

export function gpuTime(us) {
  if (us >= 360e6) return [(us / 3600e6).toFixed(us < 36000e6 ? 2 : 1), "GPU-hours"];
  if (us >= 60e6) return [(us / 60e6).toFixed(1), "GPU-minutes"];
  return [(us / 1e6).toFixed(1), "GPU-seconds"];
}

export function memory(bytes) {
  if (bytes === null || bytes === undefined) return NOTHING;
  const gib = bytes / 2 ** 30;
  return `${Number.isInteger(gib) ? gib : gib.toFixed(1)} GiB`;
}

export function count(value) {
  return value.toLocaleString("en-US");
}

export function plural(value, one, many) {
  return `${count(value)} ${value === 1 ? one : many}`;
}

const two = (value) => String(value).padStart(2, "0");

export function day(atUs) {
  const at = new Date(atUs / 1000);
  return `${at.getFullYear()}-${two(at.getMonth() + 1)}-${two(at.getDate())}`;
}

export function clock(atUs, fine = false) {
  const at = new Date(atUs / 1000);
  const text = `${two(at.getHours())}:${two(at.getMinutes())}:${two(at.getSeconds())}`;
  return fine ? `${text}.${String(Math.floor(atUs / 1000) % 1000).padStart(3, "0")}` : text;
}

export function moment(atUs) {
  return atUs === null ? NOTHING : `${day(atUs)} ${clock(atUs)}`;
}

// How far local time is from UTC now, for the heads of columns.
export function zoneOffset() {
  const minutes = -new Date().getTimezoneOffset();
  const sign = minutes < 0 ? "−" : "+";
  const away = Math.abs(minutes);
  return minutes === 0 ? "UTC" : `UTC${sign}${two(Math.floor(away / 60))}:${two(away % 60)}`;
}

// Name of the browser's zone and its distance from UTC.
export function zone() {
  const offset = zoneOffset();
  const name = Intl.DateTimeFormat().resolvedOptions().timeZone || offset;
  return name === "UTC" ? "UTC" : `${name} (${offset})`;
}

// How a host job shares its GPUs with fills.
export function shareName(mode) {
  return { timeslice: "time slicing", mps: "MPS", mixed: "differs by node" }[mode] ?? mode;
}
