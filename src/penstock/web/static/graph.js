// SPDX-License-Identifier: Apache-2.0
// The job graph as SVG: stages in columns by their distance from the sources, edges between them. Text is only ever
// set as text. While the stages stay the same, what is drawn is changed in place, so that the keyboard's focus stays.
"use strict";

const BOX = { width: 292, height: 104, gapX: 190, gapY: 26, edge: 14 };
const LEAST_SCALE = 0.75; // a graph that is wider yet goes from top to bottom
const DOWN = { gapX: 26, gapY: 66 };
const SVG = "http://www.w3.org/2000/svg";

function svg(name, attributes, ...children) {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes || {})) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function percent(share) {
  return share === null || share === undefined ? "–" : `${Math.round(share * 100)} %`;
}

function level(share) {
  if (share === null || share === undefined) return "none";
  return `l${Math.min(5, Math.floor(share * 5.999))}`;
}

function pressure(share) {
  if (share === null || share === undefined) return "";
  return share > 0.5 ? " (high)" : share > 0.1 ? " (low)" : " (ok)";
}

function shortened(text, length) {
  return text.length <= length ? text : `${text.slice(0, Math.ceil(length * 0.6) - 1)}…${text.slice(text.length - Math.floor(length * 0.4))}`;
}

// The column of each stage: one more than that of the farthest stage before it.
function columns(stages, edges) {
  const found = new Map(stages.map((stage) => [stage.id, 0]));
  for (let round = 0; round < stages.length; round += 1) {
    let changed = false;
    for (const edge of edges) {
      const wanted = found.get(edge.producer) + 1;
      if (wanted > found.get(edge.consumer)) {
        found.set(edge.consumer, wanted);
        changed = true;
      }
    }
    if (!changed) break;
  }
  return found;
}

class Graph {
  constructor(place, choose) {
    this.place = place;
    this.choose = choose;
    this.shape = "";
    this.vertices = new Map();
    this.edges = new Map();
  }

  draw(told, chosen) {
    const shape = JSON.stringify([this.place.clientWidth, told.job, told.stages.map((s) => [s.id, s.name]), told.edges.map((e) => [e.id, e.producer, e.consumer])]);
    if (shape !== this.shape) {
      this.shape = shape;
      this.build(told);
    }
    for (const stage of told.stages) this.fill(stage, told.headline.stage === stage.id, chosen === stage.id);
    for (const edge of told.edges) this.label(edge);
  }

  build(told) {
    const column = columns(told.stages, told.edges);
    const rows = new Map();
    const spots = new Map();
    for (const stage of told.stages) {
      const x = column.get(stage.id);
      const y = rows.get(x) || 0;
      rows.set(x, y + 1);
      spots.set(stage.id, [x, y]);
    }
    const long = Math.max(0, ...column.values()) + 1;
    const broad = Math.max(1, ...rows.values());
    const isDown = LEAST_SCALE * (2 * BOX.edge + long * (BOX.width + BOX.gapX) - BOX.gapX) > this.place.clientWidth;
    const { gapX, gapY } = isDown ? DOWN : BOX;
    const [across, down] = isDown ? [broad, long] : [long, broad];
    const places = new Map([...spots].map(([id, [x, y]]) => {
      const [right, below] = isDown ? [y, x] : [x, y];
      return [id, [BOX.edge + right * (BOX.width + gapX), BOX.edge + below * (BOX.height + gapY)]];
    }));
    const width = 2 * BOX.edge + across * (BOX.width + gapX) - gapX;
    const height = 2 * BOX.edge + down * (BOX.height + gapY) - gapY;
    const hatch = svg("pattern", { id: "hatch", width: 6, height: 6, patternUnits: "userSpaceOnUse", patternTransform: "rotate(45)" },
      svg("rect", { width: 6, height: 6, fill: "#ffffff" }), svg("rect", { width: 2.4, height: 6, fill: "#45525e" }));
    const arrow = svg("marker", { id: "arrow", viewBox: "0 0 8 8", refX: 8, refY: 4, markerWidth: 9, markerHeight: 9, orient: "auto", markerUnits: "userSpaceOnUse" },
      svg("path", { d: "M0,0 L8,4 L0,8 z", fill: "#55636f" }));
    const drawing = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "group" }, svg("defs", {}, hatch, arrow));
    drawing.style.minWidth = `${(isDown ? 1 : LEAST_SCALE) * width}px`;
    this.edges.clear();
    this.vertices.clear();
    for (const edge of told.edges) {
      const [fromX, fromY] = places.get(edge.producer);
      const [toX, toY] = places.get(edge.consumer);
      const [x1, y1, x2, y2] = isDown
        ? [fromX + BOX.width / 2, fromY + BOX.height, toX + BOX.width / 2, toY]
        : [fromX + BOX.width, fromY + BOX.height / 2, toX, toY + BOX.height / 2];
      const bend = Math.max(isDown ? 20 : 40, (isDown ? y2 - y1 : x2 - x1) / 2);
      const [bendX, bendY] = isDown ? [0, bend] : [bend, 0];
      const kind = edge.mode.split("_")[0];
      const path = svg("path", { d: `M${x1},${y1} C${x1 + bendX},${y1 + bendY} ${x2 - bendX},${y2 - bendY} ${x2},${y2}`, class: kind, "marker-end": "url(#arrow)" });
      const group = svg("g", { class: "edge", "data-edge": edge.id }, path);
      const [middleX, middleY] = [(x1 + x2) / 2, (y1 + y2) / 2];
      const lines = [0, 1, 2].map((line) => (isDown
        ? svg("text", { class: "beside", x: middleX + 8, y: middleY - 10 + 14 * line })
        : svg("text", { x: middleX, y: middleY - 22 + 14 * line + (line === 2 ? 11 : 0) })));
      group.append(...lines);
      this.edges.set(edge.id, { path, lines });
      drawing.append(group);
    }
    for (const stage of told.stages) {
      const [x, y] = places.get(stage.id);
      drawing.append(this.vertex(stage, x, y));
    }
    this.place.replaceChildren(drawing);
  }

  vertex(stage, x, y) {
    const inner = BOX.width - 20;
    const parts = {
      box: svg("rect", { class: "box none", width: BOX.width, height: BOX.height, rx: 6 }),
      name: svg("text", { class: "name", x: 10, y: 19 }),
      tasks: svg("text", { x: 10, y: 36 }),
      busy: svg("text", { x: 10, y: 53 }),
      pressed: svg("text", { x: 10, y: 70 }),
      track: svg("rect", { class: "bar l0", x: 10, y: 80, width: inner, height: 12 }),
      work: svg("rect", { class: "bar l5", x: 10, y: 80, width: 0, height: 12 }),
      waits: svg("rect", { class: "bar", x: 10, y: 80, width: 0, height: 12, fill: "url(#hatch)" }),
      title: svg("title", {}),
    };
    parts.name.textContent = shortened(stage.name, 38);
    const group = svg("g", { class: "vertex", tabindex: 0, role: "button", transform: `translate(${x},${y})`, "data-stage": stage.id }, ...Object.values(parts));
    group.addEventListener("click", () => this.choose(stage.id));
    group.addEventListener("keydown", (event) => {
      if (event.key === "Enter" || event.key === " ") {
        event.preventDefault();
        this.choose(stage.id);
      }
    });
    this.vertices.set(stage.id, { group, ...parts });
    return group;
  }

  fill(stage, found, chosen) {
    const drawn = this.vertices.get(stage.id);
    const inner = BOX.width - 20;
    const busy = stage.busy || 0;
    const pressed = Math.min(stage.pressed || 0, 1 - Math.min(1, busy));
    const isBatch = stage.share !== null;
    drawn.box.setAttribute("class", `box ${level(isBatch ? stage.share : stage.busy)}`);
    drawn.group.setAttribute("class", `vertex${found ? " found" : ""}${chosen ? " chosen" : ""}`);
    drawn.group.setAttribute("data-busy", stage.busy === null ? "" : stage.busy);
    drawn.group.setAttribute("data-pressed", stage.pressed === null ? "" : stage.pressed);
    drawn.tasks.textContent = `${stage.running} of ${stage.tasks} run${stage.ended ? `, ${stage.ended} ended` : ""} · ${count(stage.rowsIn || stage.rowsOut)} rows`;
    const mean = stage.tasks > 1 && stage.busyMean !== null ? ` (mean ${percent(stage.busyMean)})` : "";
    drawn.busy.textContent = isBatch ? `${percent(stage.share)} of the job's time, ran ${seconds(stage.duration)}` : `busy ${percent(stage.busy)}${mean}`;
    drawn.pressed.textContent = isBatch ? `busiest task busy ${percent(stage.busy)}${mean}` : `back-pressured ${percent(stage.pressed)}${pressure(stage.pressed)}`;
    drawn.work.setAttribute("width", inner * Math.min(1, busy));
    drawn.waits.setAttribute("x", 10 + inner * Math.min(1, busy));
    drawn.waits.setAttribute("width", inner * pressed);
    const words = `${stage.whole}: ${drawn.tasks.textContent}, ${drawn.busy.textContent}, ${drawn.pressed.textContent}${found ? ", holds the others back" : ""}`;
    drawn.title.textContent = words;
    drawn.group.setAttribute("aria-label", words);
  }

  label(edge) {
    const { path, lines } = this.edges.get(edge.id);
    lines[0].textContent = `${edge.mode} · ${edge.exchange}`;
    lines[1].textContent = edge.service;
    const told = edge.fillOut !== null || edge.fillIn !== null;
    lines[2].textContent = told ? `buffers ${percent(edge.fillOut)} out, ${percent(edge.fillIn)} in` : "";
    path.setAttribute("stroke-width", 1.6 + 3.4 * Math.max(edge.fillOut || 0, edge.fillIn || 0));
  }
}
