// Tables: columns with titles and cells; rows are put in place only when they changed.
import { h } from "./page.js";

// A column: {title, cell(row), number?, text?, sort?(row)}
export class Table {
  constructor(id, columns, empty) {
    this.element = document.getElementById(id);
    this.columns = columns;
    this.empty = empty;
    this.order = null; // [column, descending]
    this.key = null;
    this.body = h("tbody");
    this.head = h("tr", {}, columns.map((column) => this.heading(column)));
    this.element.replaceChildren(h("thead", {}, this.head), this.body);
  }

  heading(column) {
    const cell = h("th", { scope: "col", class: column.number ? "num" : null });
    if (!column.sort) {
      cell.append(column.title);
      return cell;
    }
    const click = () => {
      const same = this.order && this.order[0] === column;
      this.order = [column, same ? !this.order[1] : Boolean(column.number)];
      for (const other of this.head.children) other.removeAttribute("aria-sort");
      cell.setAttribute("aria-sort", this.order[1] ? "descending" : "ascending");
      this.key = null;
      this.show(this.rows);
    };
    cell.append(h("button", { type: "button", on: { click } }, column.title));
    return cell;
  }

  show(rows, empty = this.empty) {
    this.rows = rows;
    const key = JSON.stringify([rows, empty]);
    if (key === this.key) return;
    this.key = key;
    const focus = document.activeElement?.closest?.("tbody") === this.body ? document.activeElement.getAttribute("href") : null;
    if (!rows.length) {
      this.body.replaceChildren(h("tr", {}, h("td", { class: "empty", colspan: this.columns.length }, empty)));
      return;
    }
    this.body.replaceChildren(...this.sorted(rows).map((row) => this.line(row)));
    if (focus) this.body.querySelector(`a[href="${CSS.escape(focus)}"]`)?.focus();
  }

  append(rows) {
    this.rows = [...this.rows, ...rows];
    this.key = JSON.stringify([this.rows, this.empty]);
    this.body.append(...rows.map((row) => this.line(row)));
  }

  line(row) {
    return h("tr", {}, this.columns.map((column) => {
      const content = column.cell(row);
      const kind = column.number ? "num" : column.text ? "text" : null;
      return h("td", { class: kind }, ...(Array.isArray(content) ? content : [content]));
    }));
  }

  sorted(rows) {
    if (!this.order) return rows;
    const [column, descending] = this.order;
    const sign = descending ? -1 : 1;
    return [...rows].sort((first, second) => {
      const a = column.sort(first);
      const b = column.sort(second);
      if (a === b) return 0;
      if (a === null) return 1; // nothing to compare stands last either way
      if (b === null) return -1;
      return a < b ? -sign : sign;
    });
  }
}
