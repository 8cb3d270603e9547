// SPDX-License-Identifier: Apache-2.0
// Tables that can be sorted, changed in place so that focus and scrolling stay; and figures as text.
"use strict";

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (key === "class") made.className = value;
    else made.setAttribute(key, value);
  }
  made.append(...children);
  return made;
}

function count(value) {
  return value === null || value === undefined ? "–" : Math.round(value).toLocaleString("en");
}

function bytes(value) {
  if (value === null || value === undefined) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let size = value;
  let unit = 0;
  while (size >= 1000 && unit < units.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return `${unit && size < 100 ? size.toFixed(1) : Math.round(size)} ${units[unit]}`;
}

function seconds(value) {
  if (value === null || value === undefined) return "–";
  if (value < 1) return `${Math.round(value * 1000)} ms`;
  if (value < 99.95) return `${value.toFixed(1)} s`;
  const whole = Math.round(value);
  return whole < 3600 ? `${Math.floor(whole / 60)} min ${whole % 60} s` : `${Math.floor(whole / 3600)} h ${Math.floor((whole % 3600) / 60)} min`;
}

const KINDS = { text: (value) => (value === null || value === undefined ? "–" : String(value)), count, bytes, seconds, share: percent };

class Table {
  // `columns` are [title, kind] pairs; kinds other than text are figures. Where some say "phone", a narrow screen has
  // these alone.
  constructor(caption, columns) {
    this.columns = columns;
    const isNarrowed = columns.some((each) => each[2] === "phone");
    this.wide = columns.map((each) => (isNarrowed && each[2] !== "phone" ? " wide" : ""));
    this.sorted = null;
    this.rows = [];
    this.head = columns.map(([title, kind], index) => {
      const button = element("button", { type: "button" }, title);
      button.addEventListener("click", () => this.sort(index));
      return element("th", { scope: "col", "aria-sort": "none", class: (kind === "text" || kind === "long" ? "" : "n") + this.wide[index] }, button);
    });
    this.body = element("tbody");
    this.caption = element("caption", {}, caption);
    const table = element("table", { class: "figures" }, this.caption, element("thead", {}, element("tr", {}, ...this.head)), this.body);
    this.place = element("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption }, table);
  }

  sort(index) {
    const down = !(this.sorted && this.sorted.index === index && this.sorted.down);
    this.sorted = { index, down };
    this.head.forEach((cell, each) => cell.setAttribute("aria-sort", each === index ? (down ? "descending" : "ascending") : "none"));
    this.fill(this.rows, this.isHot);
  }

  fill(rows, isHot) {
    this.rows = rows;
    this.isHot = isHot;
    const shown = [...rows];
    if (this.sorted) {
      const { index, down } = this.sorted;
      const order = (a, b) => (a === b ? 0 : a === null ? -1 : b === null ? 1 : a < b ? -1 : 1);
      shown.sort((a, b) => (down ? -order(a[index], b[index]) : order(a[index], b[index])));
    }
    while (this.body.rows.length > shown.length) this.body.lastChild.remove();
    while (this.body.rows.length < shown.length) this.body.append(this.row());
    shown.forEach((row, number) => {
      const drawn = this.body.rows[number];
      this.columns.forEach(([, kind], index) => {
        const text = (KINDS[kind] || KINDS.text)(row[index]);
        if (drawn.cells[index].textContent !== text) drawn.cells[index].textContent = text;
      });
      drawn.className = isHot && isHot(row) ? "hot" : "";
    });
  }

  row() {
    return element("tr", {}, ...this.columns.map(([, kind], index) => element("td", { class: (kind === "text" ? "" : kind === "long" ? "long" : "n") + this.wide[index] })));
  }
}
