// SPDX-License-Identifier: Apache-2.0
// Figures over time, drawn by uPlot, each with its last values in words; and the slots over time. Lines differ by
// their dashes too, and not by colour alone.
"use strict";

const COLOURS = ["#0b5fa5", "#c2571a", "#3f7d20", "#8b2f6b", "#5b4bb0", "#8a6d00", "#00787a", "#a6260f"];
const DASHES = [[], [8, 4], [2, 3], [10, 3, 2, 3]];
const HEIGHT = 190;

class Chart {
  constructor(title, unit) {
    this.unit = unit;
    this.words = element("p");
    this.canvas = element("div");
    this.place = element("div", { class: "chart" }, element("h3", {}, title), this.words, this.canvas);
    this.plot = null;
    this.names = "";
  }

  draw(times, lines) {
    this.words.textContent = times.length
      ? lines.map(([name, values]) => `${name}: ${this.unit(last(values))}`).join("; ")
      : "Nothing has been told yet.";
    const names = JSON.stringify(lines.map(([name]) => name));
    const width = Math.max(320, this.canvas.clientWidth || 900);
    if (this.plot === null || this.names !== names) {
      if (this.plot !== null) this.plot.destroy();
      this.names = names;
      this.plot = new uPlot(this.options(lines, width), [times, ...lines.map(([, values]) => values)], this.canvas);
    } else {
      if (this.plot.width !== width) this.plot.setSize({ width, height: HEIGHT });
      this.plot.setData([times, ...lines.map(([, values]) => values)]);
    }
  }

  options(lines, width) {
    const series = lines.map(([name], index) => ({
      label: name,
      stroke: COLOURS[index % COLOURS.length],
      dash: DASHES[index % DASHES.length],
      width: 2,
      value: (_, value) => this.unit(value),
      points: { show: false },
      spanGaps: true,
    }));
    return {
      width,
      height: HEIGHT,
      scales: { x: { time: false } },
      legend: { live: false },
      cursor: { drag: { x: true, y: false } },
      axes: [
        { label: "seconds since the job was submitted", labelSize: 18, size: 34 },
        { size: 84, values: (_, ticks) => ticks.map((tick) => this.unit(tick)) },
      ],
      series: [{ label: "seconds" }, ...series],
    };
  }
}

function last(values) {
  for (let index = values.length - 1; index >= 0; index -= 1) if (values[index] !== null) return values[index];
  return null;
}

// Round moments from 0 on, six at most beside it.
function marks(end) {
  const least = 10 ** Math.floor(Math.log10(end / 6));
  const step = [1, 2, 5, 10].map((each) => each * least).find((each) => end / each <= 6);
  return Array.from({ length: Math.floor(end / step) + 1 }, (_, index) => index * step);
}

// One line for each slot that was in use at once; a dashed box is an attempt that waited for its work.
class Lanes {
  constructor() {
    this.table = new Table("Attempts, as a table", [["line", "count"], ["stage", "text"], ["subtask", "count"], ["attempt", "count"], ["from", "seconds"], ["to", "seconds"], ["end", "text"]]);
    this.drawing = element("div", { class: "lanes", tabindex: "0", role: "img", "aria-label": "Slots over time" });
    this.legend = element("p", { class: "legend" });
    const more = element("details", {}, element("summary", {}, "The same as a table"), this.table.place);
    this.more = more;
    this.words = element("p");
    this.place = element("div", {}, this.words, this.legend, this.drawing, more);
  }

  draw(told) {
    const { lines, spans, dropped } = told.timeline;
    const end = Math.max(told.seconds, 0.001);
    const width = Math.max(600, (this.drawing.clientWidth || 1000) - 4);
    const names = new Map(told.stages.map((stage) => [stage.id, stage.name]));
    const order = new Map(told.stages.map((stage, index) => [stage.id, index]));
    this.words.textContent = `${lines} slots were in use at once, of ${told.slots}; ${spans.length} attempts${dropped ? `, and ${dropped} earlier ones that are not kept` : ""}.`;
    this.legend.replaceChildren(...told.stages.map((stage, index) =>
      element("span", {}, svg("svg", { viewBox: "0 0 14 12" }, svg("rect", { width: 14, height: 12, class: `s${index % 8}` })), `${stage.id}: ${shortened(stage.name, 40)}`)));
    const left = 60;
    const scale = (width - left - 10) / end;
    const drawing = svg("svg", { width, height: lines * 20 + 26 });
    for (const at of marks(end)) {
      const x = left + at * scale;
      const text = svg("text", { x: x + 3, y: lines * 20 + 18 });
      text.textContent = at ? seconds(at) : "0 s";
      drawing.append(svg("line", { class: "mark", x1: x, x2: x, y1: 0, y2: lines * 20 + 20 }), text);
    }
    for (let line = 0; line < lines; line += 1) {
      const text = svg("text", { x: 4, y: line * 20 + 16 });
      text.textContent = `slot ${line + 1}`;
      drawing.append(text);
    }
    for (const [line, stage, subtask, attempt, begin, ran, until, how] of spans) {
      const stop = until === null ? end : until;
      const start = ran === null ? stop : ran;
      const y = line * 20 + 3;
      const title = svg("title", {});
      title.textContent = `${names.get(stage)}, subtask ${subtask}, attempt ${attempt}: ${begin} s to ${until === null ? "now" : `${until} s, ${how}`}`;
      const group = svg("g", {}, title);
      if (start > begin) group.append(svg("rect", { class: "waits", x: left + begin * scale, y, width: Math.max(1, (start - begin) * scale), height: 16 }));
      if (stop > start || ran !== null) {
        const bad = how && how !== "finished" && how !== "ended with its job" ? " bad" : "";
        group.append(svg("rect", { class: `ran s${order.get(stage) % 8}${bad}`, x: left + start * scale, y, width: Math.max(1.5, (stop - start) * scale), height: 16 }));
      }
      const room = (stop - begin) * scale;
      if (room > 34) {
        const text = svg("text", { x: left + Math.max(begin, start) * scale + 3, y: y + 12 });
        text.textContent = `${stage}.${subtask}`;
        group.append(text);
      }
      drawing.append(group);
    }
    this.drawing.replaceChildren(drawing);
    if (this.more.open) this.table.fill(spans.map(([line, stage, subtask, attempt, begin, , until, how]) => [line + 1, names.get(stage), subtask, attempt, begin, until, how || "runs"]));
  }
}
