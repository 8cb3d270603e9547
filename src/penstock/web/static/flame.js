// SPDX-License-Identifier: Apache-2.0
// A flame graph: a box for each function, as wide as the time in it, above the boxes of those that it called. A tree
// is [name, seconds, children].
"use strict";

const LEAST_SHARE = 0.004; // a box that would be narrower is left out

class Flame {
  constructor() {
    this.title = element("h3");
    this.boxes = element("div");
    this.place = element("div", { class: "flame" }, this.title, this.boxes);
    this.path = [];
    this.shown = "";
  }

  draw(title, tree) {
    this.title.textContent = title;
    this.tree = tree;
    let root = tree;
    for (const name of this.path) root = root[2].find((each) => each[0] === name) || root;
    const text = JSON.stringify([this.path, root]);
    if (text !== this.shown) {
      this.shown = text;
      const focus = this.place.contains(document.activeElement) ? document.activeElement.title.split(": ")[0] : null;
      this.boxes.replaceChildren(this.box(root, root[1], this.path));
      if (focus) [...this.boxes.querySelectorAll("button")].find((each) => each.title.startsWith(focus))?.focus();
    }
    return this.place;
  }

  box([name, took, children], whole, path) {
    const words = `${name}: ${seconds(took)}, ${percent(took / this.tree[1])}`;
    const button = element("button", { type: "button", title: words, "aria-label": words }, `${name} ${percent(took / this.tree[1])}`);
    button.addEventListener("click", () => {
      this.path = path.length && path.join() === this.path.join() ? [] : path;
      this.draw(this.title.textContent, this.tree);
    });
    const inner = element("div", { class: "inner" });
    let rest = took;
    for (const child of children) {
      if (child[1] < LEAST_SHARE * whole) continue;
      const box = this.box(child, whole, [...path, child[0]]);
      box.style.flexGrow = (1000 * child[1]) / took;
      inner.append(box);
      rest -= child[1];
    }
    const own = element("div");
    own.style.flexGrow = Math.max(0, (1000 * rest) / took);
    inner.append(own);
    return element("div", {}, button, inner);
  }
}

// The time in each function itself, by its line, and in libraries by the line that calls them.
function ownTimes(tree) {
  const sums = new Map();
  const walk = ([name, took, children], caller, line) => {
    const isLine = name.startsWith("line ");
    const own = took - children.reduce((sum, child) => sum + child[1], 0);
    const row = isLine ? [caller, name.slice(5)] : [name, line ? `from ${caller.split(" (")[0]}, ${line}` : "–"];
    if (own > LEAST_SHARE * tree[1]) sums.set(row.join("\n"), (sums.get(row.join("\n")) || 0) + own);
    for (const child of children) walk(child, isLine ? caller : name, isLine ? name : "");
  };
  for (const child of tree[2]) walk(child, "", "");
  return [...sums].map(([row, own]) => [...row.split("\n"), own, own / tree[1]]);
}
