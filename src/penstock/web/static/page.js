// SPDX-License-Identifier: Apache-2.0
// The page: what the server tells once a second, or what stands in a report, drawn into the parts of the page. It
// reads and never writes. While the page is hidden it hangs up; left alone for a minute it looks more seldom.
"use strict";

const place = (id) => document.getElementById(id);
const state = { told: null, documents: null, job: null, stage: null, tab: "stages", stream: null, every: 2, touched: 0, timer: 0, parts: {} };
const LEFT_ALONE = { after: 60_000, every: 5 };

const TABS = [
  ["jobs", "All jobs", jobsPart],
  ["stages", "Stages", stagesPart],
  ["subtasks", "Subtasks", subtasksPart],
  ["partitions", "Partitions", partitionsPart],
  ["checkpoints", "Checkpoints", checkpointsPart],
  ["slots", "Slots", slotsPart],
  ["charts", "Throughput and lag", chartsPart],
  ["profile", "Profile", profilePart],
  ["errors", "Errors", errorsPart],
  ["logs", "Logs", logsPart],
  ["settings", "Settings", settingsPart],
  ["processes", "Processes", processesPart],
];
const PHASES = [["startDelay", "start delay"], ["alignment", "alignment"], ["sync", "sync"], ["async", "async"]];

const graph = new Graph(place("graph"), (stage) => {
  state.stage = state.stage === stage ? null : stage;
  if (state.stage !== null && state.tab === "stages") choose("subtasks");
  draw();
});

// --- parts: each gives its place, and a function that draws a document into it

function jobsPart() {
  const table = new Table("All jobs and queries, the newest first", [["job", "text", "phone"], ["name", "text", "phone"], ["kind", "text"], ["state", "text", "phone"], ["duration", "seconds", "phone"], ["submitted", "text"], ["asked for at", "text"], ["held back by", "long"]]);
  table.body.addEventListener("click", (event) => {
    const row = event.target.closest("tr");
    if (row) pick(row.cells[0].textContent);
  });
  const fill = (told) => {
    const rows = state.told.jobs.map((job) => [job.job, job.name, job.kind, words(job.state), job.seconds, moment(job.began), job.place, typeof job.headline === "string" ? job.headline : job.headline.text]);
    table.fill(rows, (row) => told && row[0] === told.job);
  };
  return [element("div", {}, element("p", { class: "filter" }, "A click shows a job."), table.place), fill];
}

function logsPart() {
  const quiet = element("p", { class: "quiet" });
  const files = element("div");
  const fill = () => {
    const found = (state.told && state.told.logs) || [];
    quiet.textContent = found.length ? "The last lines that functions and environment processes on the driver's host have written." : "No log is on the driver's host: `penstock logs APPLICATION` on another host shows those there.";
    const text = JSON.stringify(found);
    if (files.dataset.shown === text) return;
    files.dataset.shown = text;
    files.replaceChildren(...found.flatMap(([name, lines]) => [element("h3", {}, name), element("pre", { class: "log", tabindex: "0" }, lines)]));
  };
  return [element("div", {}, quiet, files), fill];
}

function settingsPart() {
  const table = new Table("Settings of this job that are not as they are by default", [["setting", "text", "phone"], ["value", "long", "phone"]]);
  return [table.place, (told) => table.fill(Object.entries(told.settings))];
}

function stagesPart() {
  const batch = new Table("Stages of the job", [["stage", "text", "phone"], ["state", "text", "phone"], ["duration", "seconds", "phone"], ["of the job's time", "share"], ["rows in", "count"], ["rows out", "count"], ["in", "bytes"], ["out", "bytes"], ["spilled", "bytes"], ["most memory", "bytes"],
    ["tasks", "count"], ["shortest", "seconds"], ["first quarter", "seconds"], ["median", "seconds"], ["third quarter", "seconds"], ["longest", "seconds"]]);
  const query = queryTable();
  const fill = (told) => {
    batch.place.hidden = told.kind === "query";
    query.place.hidden = told.kind !== "query";
    if (told.kind === "query") return query.draw(told);
    batch.fill(told.stages.map((s) => [s.name, stageState(s), s.duration, s.share, s.rowsIn, s.rowsOut, s.bytesIn, s.bytesOut, s.spilled, s.peakResident, s.tasks, ...(s.quartiles || [null, null, null, null, null])]),
      (row) => named(told) === row[0]);
  };
  return [element("div", {}, batch.place, query.place), fill];
}

function stageState(stage) {
  if (stage.running) return `${stage.running} of ${stage.tasks} tasks run`;
  return stage.ended >= stage.tasks ? "finished" : stage.ended ? `${stage.ended} of ${stage.tasks} ended` : "not begun";
}

function queryTable() {
  const table = new Table("Stages", [["stage", "text", "phone"], ["state", "text", "phone"], ["busy, most", "share", "phone"], ["busy, mean", "share"], ["back-pressured", "share"],
    ["busiest", "count"], ["most of its time in", "text"], ["rows in", "count"], ["rows out", "count"], ["out", "bytes"], ["spilled", "bytes"], ["most memory", "bytes"], ["late rows", "count"], ["watermark", "text"], ["state rows", "count"], ["state", "bytes"]]);
  const draw = (told) => table.fill(told.stages.map((s) => [s.name, stageState(s), s.busy, s.busyMean, s.pressed, s.busiest,
    s.operators.slice(0, 3).map(([name, share]) => `${name} ${percent(share)}`).join(", "), s.rowsIn, s.rowsOut, s.bytesOut, s.spilled, s.peakResident, s.late, moment(s.watermark), s.stateRows, s.stateBytes]), (row) => named(told) === row[0]);
  return { place: table.place, draw };
}

function subtasksPart() {
  const words = element("span");
  const all = element("button", { type: "button" }, "Show all stages");
  all.addEventListener("click", () => {
    state.stage = null;
    draw();
  });
  const table = new Table("Subtasks", [["stage", "text"], ["subtask", "count"], ["state", "text"], ["attempt", "count"], ["place", "text"], ["rows in", "count"], ["rows out", "count"], ["in", "bytes"], ["out", "bytes"],
    ["time", "seconds"], ["busy", "share"], ["back-pressured", "share"], ["idle", "share"], ["waits for its log", "share"], ["queued in", "count"], ["queued out", "count"], ["buffers in", "share"], ["buffers out", "share"], ["spilled", "bytes"], ["memory", "bytes"], ["most memory", "bytes"]]);
  const fill = (told) => {
    const names = namesOf(told);
    const rows = told.subtasks.rows.filter((row) => state.stage === null || row[0] === state.stage);
    words.textContent = state.stage === null ? `All ${rows.length} subtasks. ` : `${rows.length} subtasks of ${names.get(state.stage)}. `;
    all.hidden = state.stage === null;
    const busiest = told.stages.find((stage) => stage.id === told.headline.stage);
    table.fill(rows.map(([stage, ...rest]) => [names.get(stage), ...rest]), (row) => busiest && busiest.busiest === row[1] && busiest.name === row[0]);
  };
  return [element("div", {}, element("p", { class: "filter" }, words, all), table.place), fill];
}

function partitionsPart() {
  const table = new Table("Partitions of the current attempts", [["partition", "text"], ["exchange", "text"], ["stage", "text"], ["subtask", "count"], ["place", "text"], ["state", "text"], ["bytes of its producer", "bytes"]]);
  const fill = (told) => {
    const names = namesOf(told);
    table.fill(told.partitions.rows.map((row) => [row[0], row[1], names.get(row[2]), ...row.slice(3)]));
  };
  return [table.place, fill];
}

function checkpointsPart() {
  const text = element("p");
  const legend = element("p", { class: "legend" }, ...PHASES.map(([phase, text]) => element("span", {}, svg("svg", { viewBox: "0 0 14 12" }, svg("rect", { width: 14, height: 12, class: phase })), text)));
  const select = element("select", { id: "checkpoint" });
  select.addEventListener("change", () => draw());
  const bars = element("div", { class: "phases" });
  const parts = new Table("The same as a table", [["stage", "text"], ["subtask", "count"], ["start delay", "seconds"], ["alignment", "seconds"], ["sync", "seconds"], ["async", "seconds"], ["size", "bytes"], ["of it in flight", "bytes"]]);
  const summary = new Table("Summary of those that are complete", [["", "text"], ["duration", "seconds"], ["size", "bytes"]]);
  const history = new Table("History", [["checkpoint", "count"], ["seen at", "seconds"], ["duration", "seconds"], ["size", "bytes"], ["of it in flight", "bytes"], ["why it failed", "text"]]);
  const fill = (told) => {
    const found = told.checkpoints;
    text.textContent = told.kind === "query" ? `${found.completed} complete, ${found.failed} failed.` : "A batch job takes no checkpoints.";
    const numbers = Object.keys(found.tasks).sort((a, b) => b - a);
    const chosen = numbers.includes(select.value) && select.value !== select.dataset.newest ? select.value : numbers[0];
    select.dataset.newest = numbers[0] || "";
    if (JSON.stringify([...select.options].map((each) => each.value)) !== JSON.stringify(numbers)) select.replaceChildren(...numbers.map((number) => element("option", { value: number }, number)));
    if (chosen) select.value = chosen;
    const names = namesOf(told);
    const tasks = chosen ? found.tasks[chosen] : [];
    drawParts(bars, tasks, names);
    parts.fill(tasks.map((row) => [names.get(row[0]) || String(row[0]), ...row.slice(1)]));
    summary.fill(found.summary ? ["least", "mean", "most"].map((name) => [name, ...found.summary[name]]) : []);
    history.fill([...found.history].reverse().map((each) => [each.number, each.at, each.took, each.bytes, each.inFlight, each.cause || ""]));
  };
  const label = element("label", { for: "checkpoint" }, "Tasks of checkpoint ");
  return [element("div", {}, text, element("p", {}, label, select), legend, bars, parts.place, summary.place, history.place), fill];
}

function drawParts(bars, tasks, names) {
  const longest = Math.max(0.001, ...tasks.map((row) => row[2] + row[3] + row[4] + row[5]));
  bars.replaceChildren();
  for (const row of tasks.slice(0, 200)) {
    const drawing = svg("svg", { viewBox: "0 0 1000 16", preserveAspectRatio: "none", role: "img" });
    let at = 0;
    const words = [];
    PHASES.forEach(([phase, text], index) => {
      const width = (1000 * row[2 + index]) / longest;
      drawing.append(svg("rect", { class: phase, x: at, y: 0, width, height: 16 }));
      at += width;
      words.push(`${text} ${seconds(row[2 + index])}`);
    });
    const title = svg("title", {});
    title.textContent = words.join(", ");
    drawing.append(title);
    drawing.setAttribute("aria-label", words.join(", "));
    const who = `${names.get(row[0]) || row[0]}: ${row[1]}`;
    bars.append(element("span", { class: "who", title: who }, who), drawing, element("span", {}, seconds(row[2] + row[3] + row[4] + row[5])));
  }
}

function slotsPart() {
  const lanes = new Lanes();
  return [lanes.place, (told) => lanes.draw(told)];
}

function chartsPart() {
  const rows = new Chart("Rows a second", (value) => (value === null || value === undefined ? "–" : `${count(value)}`));
  const busy = new Chart("Busy: the busiest subtask of each stage", percent);
  const pressed = new Chart("Back-pressure: the subtask that has most of it", percent);
  const lag = new Chart("Bytes that wait at sources", bytes);
  const took = new Chart("Duration of checkpoints", seconds);
  const quiet = element("p", { class: "quiet" });
  const fill = (told) => {
    const { seconds: times, rows: rates, busy: work, pressed: waits, outstanding } = told.series;
    const lines = (found) => told.stages.map((stage) => [shortened(stage.name, 40), found[stage.id]]);
    rows.draw(times, lines(rates));
    busy.draw(times, lines(work));
    pressed.draw(times, lines(waits));
    lag.place.hidden = !outstanding.length;
    if (outstanding.length) lag.draw(times, [["waiting", outstanding]]);
    quiet.textContent = outstanding.length ? "" : "No source of this job tells how much waits at it.";
    const done = told.checkpoints.history.filter((each) => !each.cause);
    took.place.hidden = !done.length;
    if (done.length) took.draw(done.map((each) => each.at), [["duration", done.map((each) => each.took)]]);
  };
  return [element("div", {}, rows.place, busy.place, pressed.place, lag.place, quiet, took.place), fill];
}

function profilePart() {
  const quiet = element("p", { class: "quiet" });
  const flames = element("div");
  const known = new Map();
  const table = new Table("Functions and libraries by the time in themselves", [["stage", "text"], ["function", "text", "phone"], ["line", "text", "phone"], ["time", "seconds", "phone"], ["of the stage's functions", "share"]]);
  const fill = (told) => {
    const names = namesOf(told);
    const shown = told.profiles.filter(([stage]) => state.stage === null || stage === state.stage);
    quiet.textContent = shown.length ? "Samples of all tasks: the wider a box, the longer its function ran. A click shows a box alone, one more all of them." : told.profiles.length ? "No function of this stage was seen at work." : "No function was profiled: set spark.penstock.observe.profile to true, and run the job again.";
    for (const [stage] of shown) if (!known.has(`${told.job} ${stage}`)) known.set(`${told.job} ${stage}`, new Flame());
    const found = shown.map(([stage, tree]) => known.get(`${told.job} ${stage}`).draw(`${names.get(stage)}: ${seconds(tree[1])} in its functions`, tree));
    if (found.length !== flames.children.length || found.some((each, index) => each !== flames.children[index])) flames.replaceChildren(...found);
    table.place.hidden = !shown.length;
    table.fill(shown.flatMap(([stage, tree]) => ownTimes(tree).map((row) => [names.get(stage), ...row])).sort((a, b) => b[3] - a[3]).slice(0, 30));
  };
  return [element("div", {}, quiet, flames, table.place), fill];
}

function errorsPart() {
  const whole = element("pre", { class: "error", tabindex: "0" });
  const table = new Table("What went wrong, the last first", [["at", "seconds"], ["what", "text"], ["cause", "long"]]);
  const fill = (told) => {
    whole.hidden = !told.error;
    whole.textContent = told.error;
    table.caption.textContent = told.errors.length ? "What went wrong, the last first" : "Nothing went wrong.";
    table.fill([...told.errors].reverse());
  };
  return [element("div", {}, whole, table.place), fill];
}

function processesPart() {
  const words = element("p");
  const slow = new Table("The pace of each process in each stage that runs", [["job", "text"], ["stage", "count"], ["place", "text"], ["tasks", "count"], ["rows", "count"], ["rows in a second of work", "count"], ["of the others' pace", "share"], ["busy", "share"], ["back-pressured", "share"]]);
  const table = new Table("Environment processes", [["process", "text"], ["host", "text"], ["pid", "count"], ["silent for", "seconds"], ["tasks", "count"], ["memory", "bytes"], ["most memory", "bytes"], ["its workers' memory", "bytes"], ["network memory in use", "bytes"], ["of", "bytes"], ["share", "share"], ["spilled by hybrid", "bytes"],
    ["read ahead", "bytes"], ["connections", "count"], ["from others", "bytes"], ["to others", "bytes"], ["metrics at", "text"]]);
  const held = new Table("Partitions that they hold", [["process", "text"], ["service", "text"], ["kind", "text"], ["state", "text"], ["partitions", "count"], ["bytes", "bytes"]]);
  const disks = new Table("Disks: the bytes and the time of reads and writes, and those of the last seconds", [["process", "text"], ["disk", "text"], ["read", "bytes"], ["written", "bytes"], ["time reading", "seconds"], ["time writing", "seconds"],
    ["reads, in a second of them", "bytes"], ["writes, in a second of them", "bytes"], ["now reading", "share"], ["now writing", "share"]]);
  const workers = new Table("Workers", [["process", "text"], ["worker", "text"], ["job", "text"], ["stage", "count"], ["subtask", "count"], ["memory", "bytes"], ["most memory", "bytes"], ["busy", "share"], ["of the others' pace", "share"]]);
  const users = new Table("Users", [["process", "text"], ["user", "text"], ["bytes", "bytes"], ["bytes a second", "bytes"], ["waits", "share"]]);
  const all = [slow, disks, workers, users, table, held];
  const fill = () => {
    const found = state.told && state.told.processes;
    if (!found) {
      words.textContent = "Processes are told while their driver runs, and are in no log.";
      all.forEach((each) => each.fill([]));
      return;
    }
    words.textContent = found.text;
    slow.fill(found.paces, (row) => row[6] !== null && row[6] < 0.67);
    disks.fill(found.disks);
    workers.fill(found.workers, (row) => row[8] !== null && row[8] < 0.67);
    users.fill(found.users);
    users.place.hidden = !found.users.length;
    table.fill(found.processes);
    held.fill(found.partitions);
  };
  return [element("div", {}, words, ...all.map((each) => each.place)), fill];
}

// --- drawing

function words(name) {
  return name.toLowerCase().replaceAll("_", " ");
}

function moment(epoch) {
  return epoch ? `${new Date(epoch * 1000).toISOString().slice(0, 19).replace("T", " ")} UTC` : "–";
}

// The phases of a batch job as one bar of words: none is told by its colour alone.
function drawPhases(told) {
  const list = place("phases");
  const total = told.phases.reduce((sum, [, took]) => sum + took, 0);
  list.hidden = !told.phases.length || !total;
  list.replaceChildren(...told.phases.map(([name, took]) => {
    const words = `${name} ${seconds(took)}, ${percent(took / total)}`;
    const bar = svg("svg", { viewBox: "0 0 100 8", preserveAspectRatio: "none", "aria-hidden": "true" },
      svg("rect", { width: 100, height: 8, class: "l0" }), svg("rect", { width: (100 * took) / total, height: 8, class: told.headline.phase === name ? "most" : "part" }));
    return element("li", {}, bar, words);
  }));
}

function pick(job) {
  place("job").value = job;
  place("job").dispatchEvent(new Event("change"));
}

function namesOf(told) {
  return new Map(told.stages.map((stage) => [stage.id, stage.name]));
}

function named(told) {
  const stage = told.stages.find((each) => each.id === told.headline.stage);
  return stage ? stage.name : null;
}

function choose(tab) {
  state.tab = tab;
  for (const button of place("tabs").children) button.setAttribute("aria-selected", String(button.dataset.tab === tab));
  if (!state.parts[tab]) state.parts[tab] = TABS.find(([name]) => name === tab)[2]();
  place("panel").replaceChildren(state.parts[tab][0]);
  place("panel").setAttribute("aria-label", TABS.find(([name]) => name === tab)[1]);
  history.replaceState(null, "", `#${tab}`);
  if ((tab === "processes" || tab === "logs") && state.stream) connect();
}

function draw() {
  const told = state.told && state.told.document;
  if (!told) return drawProcesses();
  place("headline").textContent = told.headline.text;
  place("also").textContent = told.headline.also;
  place("also").hidden = !told.headline.also;
  place("headline").className = told.state === "FAILED" ? "alarm" : "";
  const began = told.began ? `, submitted ${moment(told.began)}` : "";
  const where = told.place ? `, at ${told.place}` : "";
  place("facts").textContent = `${told.kind === "query" ? "Query" : "Job"} ${told.job} (${told.name}): ${words(told.state)}, ${seconds(told.seconds)}${began}${where}`;
  drawPhases(told);
  const notes = place("notes");
  notes.hidden = !told.notes.length;
  notes.replaceChildren(...told.notes.map((note) => element("li", {}, note)));
  document.title = `${told.job} ${told.state.toLowerCase()} – Penstock`;
  graph.draw(told, state.stage);
  state.parts[state.tab][1](told);
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
}

// No job at all, as on the page of services' processes: these are all that there is.
function drawProcesses() {
  const found = state.told && state.told.processes;
  if (!found || !found.processes.length) return;
  place("headline").textContent = found.text;
  if (state.tab === "processes") state.parts.processes[1]();
  document.body.dataset.drawn = String(Number(document.body.dataset.drawn || 0) + 1);
}

function list(jobs, chosen) {
  const select = place("job");
  const titles = jobs.map((job) => [job.job, `${job.job}: ${job.name} (${words(job.state)})${job.place ? ` at ${job.place}` : ""}`]);
  const known = [...select.options];
  if (known.length === titles.length && known.every((option, index) => option.value === titles[index][0])) {
    known.forEach((option, index) => {
      if (option.textContent !== titles[index][1]) option.textContent = titles[index][1];
    });
  } else {
    select.replaceChildren(...titles.map(([job, title]) => element("option", { value: job }, title)));
  }
  if (chosen) select.value = chosen;
}

function line(words, kind) {
  place("line").textContent = words;
  place("line").className = kind;
}

function take(told) {
  state.told = told;
  if (state.job !== null && told.document && told.document.job !== state.job) state.job = null;
  list(told.jobs, told.document ? told.document.job : null);
  const report = place("report");
  report.hidden = !told.document || state.documents !== null;
  if (told.document) report.href = `report?job=${encodeURIComponent(told.document.job)}`;
  draw();
}

// --- where it comes from

function pace() {
  return performance.now() - state.touched > LEFT_ALONE.after ? Math.max(LEFT_ALONE.every, state.every) : state.every;
}

// The page is used: for a minute it looks as often as at first.
function touched() {
  const before = pace();
  if (performance.now() - state.touched < 1000 && state.timer) return;
  state.touched = performance.now();
  clearTimeout(state.timer);
  state.timer = setTimeout(() => !document.hidden && connect(), LEFT_ALONE.after + 100);
  if (before !== pace() && !document.hidden) connect();
}

function connect() {
  if (state.stream) state.stream.close();
  const asks = new URLSearchParams();
  if (state.job !== null) asks.set("job", state.job);
  if (state.tab === "processes" || state.tab === "logs") asks.set(state.tab, "1");
  asks.set("every", pace());
  state.stream = new EventSource(`events?${asks}`);
  state.stream.addEventListener("told", (event) => {
    line(`live, looked at every ${pace()} s`, "live");
    take(JSON.parse(event.data));
  });
  state.stream.addEventListener("error", () => line("the driver does not answer; trying again", "lost"));
}

function start() {
  for (const [tab, title] of TABS) {
    const button = element("button", { type: "button", role: "tab", "aria-selected": "false", "aria-controls": "panel", "data-tab": tab }, title);
    button.addEventListener("click", () => {
      choose(tab);
      draw();
    });
    place("tabs").append(button);
  }
  place("tabs").addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!step) return;
    const buttons = [...place("tabs").children];
    const next = buttons[(buttons.indexOf(document.activeElement) + step + buttons.length) % buttons.length];
    next.focus();
    next.click();
  });
  const wanted = location.hash.slice(1);
  choose(TABS.some(([tab]) => tab === wanted) ? wanted : "stages");
  const embedded = place("told");
  if (embedded) {
    state.documents = JSON.parse(embedded.textContent);
    const show = (job) => take({ jobs: state.documents, document: state.documents.find((each) => each.job === job) || state.documents[0] || null, processes: null });
    place("job").addEventListener("change", (event) => show(event.target.value));
    line("a report", "");
    if (!state.documents.length) place("headline").textContent = "No job ran.";
    show(null);
    return;
  }
  const asked = new URLSearchParams(location.search);
  state.job = asked.get("job");
  state.every = Number(asked.get("every")) || state.every;
  place("job").addEventListener("change", (event) => {
    state.job = event.target.value;
    state.stage = null;
    asked.set("job", state.job);
    history.replaceState(null, "", `?${asked}${location.hash}`);
    connect();
  });
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) {
      if (state.stream) state.stream.close();
    } else {
      touched();
      connect();
    }
  });
  for (const event of ["pointerdown", "pointermove", "keydown", "wheel", "focus"]) addEventListener(event, touched, { passive: true });
  touched();
  connect();
}

addEventListener("resize", () => draw());
start();
