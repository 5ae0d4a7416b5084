// What every page does: build elements, fetch data, refresh without flicker, say what is wrong.
import { clock, zone } from "./format.js";

// An element with attributes and children; text is never parsed as HTML.
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "on") for (const [what, handler] of Object.entries(value)) element.addEventListener(what, handler);
    else if (name === "width") element.style.width = value;
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined));
  return element;
}

export const byId = (id) => document.getElementById(id);

export function setText(id, text) {
  const element = byId(id);
  if (element.textContent !== text) element.textContent = text;
}

export class Refused extends Error {}

export async function fetchJson(address) {
  const response = await fetch(address, { headers: { Accept: "application/json" } });
  const body = await response.json().catch(() => ({}));
  if (response.ok) return body;
  const sentence = body.error || `The server answered ${response.status}.`;
  throw response.status < 500 ? new Refused(sentence) : new Error(sentence);
}

function say(text, bad) {
  const banner = byId("banner");
  banner.textContent = text;
  banner.classList.toggle("bad", bad);
  banner.hidden = !text;
}

export function warn(text) {
  say(text, false);
}

// A page rests for so many times what its data took, so that a slow answer is not asked for often.
const REST = 9;

// Calls load() now and every refresh; a failure leaves what is shown and says so.
export function refreshing(load) {
  const seconds = Number(document.body.dataset.refreshS);
  const pause = byId("pause");
  let paused = false;
  let shown = null;
  let running = false;
  let again = false;
  let restUntil = 0;
  async function once() {
    if (running) {
      again = true; // what is asked for may have changed meanwhile
      return;
    }
    running = true;
    const began = Date.now();
    try {
      warn("");
      await load();
      shown = Date.now() * 1000;
      byId("fresh").textContent = `${paused ? "Paused at" : "Updated"} ${clock(shown)}`;
    } catch (error) {
      const since = shown ? ` Figures are those of ${clock(shown)}.` : "";
      say(error instanceof TypeError ? `The dashboard does not answer.${since}` : `${error.message}${since}`, true);
    } finally {
      running = false;
      restUntil = Date.now() + REST * (Date.now() - began);
    }
    if (again) {
      again = false;
      once();
    }
  }
  pause.addEventListener("click", () => {
    paused = !paused;
    pause.setAttribute("aria-pressed", String(paused));
    pause.textContent = paused ? "Resume" : "Pause";
    if (paused && shown) byId("fresh").textContent = `Paused at ${clock(shown)}`;
    if (!paused) once();
  });
  setInterval(() => { if (!paused && !document.hidden && Date.now() > restUntil) once(); }, 1000 * seconds);
  document.addEventListener("visibilitychange", () => { if (!paused && !document.hidden) once(); });
  once();
  return once;
}

export function badge(word, text = word) {
  return h("span", { class: `badge badge-${word}` }, text);
}

export const hostLink = (id) => h("a", { href: `/jobs/host/${id}` }, String(id));
export const fillLink = (id) => h("a", { href: `/jobs/fill/${id}` }, String(id));

export function links(ids, link) {
  return ids.flatMap((id, at) => (at ? [", ", link(id)] : [link(id)]));
}

byId("zone").textContent = zone();
