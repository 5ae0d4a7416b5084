// Events: the audit log, filtered and paged.
import { eventColumns } from "./event_columns.js";
import { byId } from "./page.js";
import { pagesByKey } from "./pages_by_key.js";
import { Table } from "./table.js";

function onFirst(data) {
  const select = byId("filters").elements.namedItem("what");
  for (const kind of data.kinds) {
    if (![...select.options].some((option) => option.value === kind)) select.add(new Option(kind, kind));
  }
}

const table = new Table("rows", eventColumns(), "No event matches.");
pagesByKey({ api: "/api/events", table, onFirst });
