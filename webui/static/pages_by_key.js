// A filtered table paged by key: the filter lives in the address, older rows are fetched on demand.
import { Refused, byId, fetchJson, refreshing } from "./page.js";

// Times without a zone are the reader's own; the server is told UTC.
function zoned(text) {
  if (!/^\d{4}-\d{2}-\d{2}/.test(text) || /(Z|[+-]\d{2}:?\d{2})$/.test(text)) return text;
  const at = new Date(text.includes(":") ? text.replace(" ", "T") : `${text}T00:00`);
  return Number.isNaN(at.getTime()) ? text : at.toISOString();
}

export function pagesByKey({ api, table, onFirst }) {
  const form = byId("filters");
  const older = byId("older");
  let next = null;
  let more = false; // older rows are on the page: a refresh would take them away

  function filters() {
    const found = new URLSearchParams();
    for (const [name, value] of new FormData(form)) {
      const text = value.trim();
      if (text) found.set(name, name === "since" || name === "until" ? zoned(text) : text);
    }
    return found;
  }

  function fromAddress() {
    for (const [name, value] of new URLSearchParams(location.search)) {
      const field = form.elements.namedItem(name);
      if (!field) continue;
      if (field.tagName === "SELECT" && ![...field.options].some((option) => option.value === value)) field.add(new Option(value, value));
      field.value = value;
    }
  }

  function problem(text) {
    byId("problem").textContent = text;
    byId("problem").hidden = !text;
  }

  async function first() {
    if (more) return;
    try {
      const data = await fetchJson(`${api}?${filters()}`);
      problem("");
      next = data.next;
      older.hidden = next === null;
      table.show(data.rows);
      await onFirst(data, filters());
    } catch (error) {
      if (!(error instanceof Refused)) throw error;
      problem(error.message);
    }
  }

  older.addEventListener("click", async () => {
    const query = filters();
    query.set("after", next);
    const data = await fetchJson(`${api}?${query}`);
    more = true;
    next = data.next;
    older.hidden = next === null;
    table.append(data.rows);
  });

  fromAddress();
  const refresh = refreshing(first);
  function apply() {
    more = false;
    const query = filters().toString();
    history.replaceState(null, "", query ? `?${query}` : location.pathname);
    refresh();
  }
  form.addEventListener("submit", (event) => { event.preventDefault(); apply(); });
  for (const select of form.querySelectorAll("select")) select.addEventListener("change", apply);
  byId("clear").addEventListener("click", () => {
    for (const field of form.elements) if (field.name) field.value = "";
    apply();
  });
}
