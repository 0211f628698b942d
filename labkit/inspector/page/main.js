/* Puts the page together: one panel for each run, one view and one player for all. */

import { element, showDetails, showDifference } from "./details.js";
import { Player } from "./player.js";
import { PoolView } from "./pool.js";
import { unpack } from "./recording.js";
import { startTheme } from "./theme.js";
import { Timeline } from "./timeline.js";
import { View } from "./view.js";
import { summarise } from "./words.js";

const recording = unpack(JSON.parse(document.querySelector("#recording").textContent));
const { runs, difference } = recording;
const view = new View(runs);
const panels = runs.map((run) => makePanel(run));
const tip = document.querySelector("#tip");
let waiting = false;

/* A run's place in the page. */
function makePanel(run) {
  const root = document.querySelector("#panel").content.firstElementChild.cloneNode(true);
  root.setAttribute("aria-label", run.name);
  root.querySelector("h2").textContent = run.name;
  root.querySelector(".limits").textContent = limits(run);
  root.querySelector(".notes").append(...run.notes.map((note) => element("li", {}, note)));
  document.querySelector("#runs").append(root);
  const panel = { run, root, details: root.querySelector(".details"),
    timeline: new Timeline(root.querySelector(".timeline"), run, view, difference),
    pool: new PoolView(root.querySelector(".pool"), run, view) };
  listen(panel);
  return panel;
}

function limits({ config, drafts: [drafts, accepted] }) {
  const names = { max_num_batched_tokens: "tokens a step", max_num_seqs: "rows", block_size: "tokens a block",
    num_gpu_blocks: "blocks", max_model_len: "tokens a request" };
  const parts = Object.entries(names).filter(([key]) => key in config).map(([key, name]) => `${config[key]} ${name}`);
  if (config.policy && config.policy !== "fcfs") parts.push(`policy ${config.policy}`);
  if (config.enable_prefix_caching === false) parts.push("no prefix caching");
  if (drafts) parts.push(`${accepted} of ${drafts} drafts accepted`);
  return parts.join(" · ");
}

/* ---- drawing: at most once a frame ---- */

function draw() {
  waiting = false;
  for (const { run, details, timeline, pool } of panels) {
    timeline.draw();
    pool.draw();
    showDetails(details, run, view.step, actions.select);
  }
}

function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(draw);
}

/* ---- what keys, buttons and the pointer do ---- */

const actions = {
  go(step) {
    view.step = step;
    view.follow(panels[0].timeline.width);
    panels[0].timeline.followRows();
    player.slider.value = step;
    player.slider.setAttribute("aria-valuetext", summarise(runs[0], step));
    document.querySelector("#now").textContent = `${step} / ${view.steps - 1}`;
    if (!player.playing) document.querySelector("#said").textContent = runs.map((run) => summarise(run, step)).join(" ");
    redraw();
  },
  select(id) {
    view.selected = id;
    if (id !== null) panels.forEach(({ timeline }) => timeline.reveal(id));
    redraw();
  },
  goToStart(id) {
    actions.select(id);
    actions.go(runs.map((run) => run.byId.get(id)).find(Boolean).first);
  },
  zoom(factor, at) {
    view.zoom(factor, panels[0].timeline.width, at);
    redraw();
  },
  fit() {
    actions.zoom(panels[0].timeline.width / view.steps / view.cell, 0);
    view.overview = true;
  },
};

function listen({ root, timeline, pool }) {
  const canvas = timeline.canvas;
  const place = (event) => ({ x: event.offsetX, y: event.offsetY });
  canvas.addEventListener("pointerdown", (event) => {
    canvas.setPointerCapture(event.pointerId);
    const { x, y } = place(event), row = timeline.rowAt(y);
    if (row) actions.select(row.id);
    if (timeline.stepAt(x) >= view.left) player.go(timeline.stepAt(x));
  });
  canvas.addEventListener("pointermove", (event) => {
    const { x, y } = place(event);
    if (event.buttons) player.go(timeline.stepAt(x));
    showTip(event, timeline.describe(x, y));
  });
  canvas.addEventListener("wheel", (event) => {
    event.preventDefault();
    if (event.ctrlKey) return actions.zoom(Math.exp(-event.deltaY / 300), timeline.stepAt(event.offsetX));
    const sideways = event.shiftKey ? event.deltaY : event.deltaX;
    view.left += sideways / view.cell;
    view.clamp(timeline.width);
    if (!event.shiftKey) timeline.scrollRows(event.deltaY);
    redraw();
  }, { passive: false });
  pool.canvas.addEventListener("pointermove", (event) => showTip(event, pool.describe(event.offsetX, event.offsetY)));
  pool.canvas.addEventListener("click", (event) => {
    const block = pool.blockUnder(event.offsetX, event.offsetY);
    const holders = block === null ? [] : pool.run.pool.blockAt(block, view.step).holders;
    actions.select(holders.length ? holders[0].row.id : null);
  });
  pool.canvas.parentElement.addEventListener("scroll", redraw);
  for (const each of [canvas, pool.canvas]) each.addEventListener("pointerleave", () => { tip.hidden = true; });
}

function showTip(event, lines) {
  tip.hidden = !lines;
  if (!lines) return;
  tip.replaceChildren(element("b", {}, lines[0]), ...lines.slice(1).map((line) => element("span", {}, line)));
  const left = Math.min(event.clientX + 14, innerWidth - tip.offsetWidth - 8);
  const below = event.clientY + 18, fits = below + tip.offsetHeight <= innerHeight;
  const top = fits ? below : event.clientY - tip.offsetHeight - 12;
  tip.style.transform = `translate(${Math.max(4, left)}px, ${top}px)`;
}

/* ---- begin ---- */

document.body.classList.toggle("two", runs.length === 2);
if (runs.length === 2) showDifference(document.querySelector("#difference"), difference, runs.map((run) => run.name));
document.querySelector("[data-do=difference]").hidden = !difference;
for (const entry of document.querySelectorAll(".legend .draft")) entry.hidden = !runs.some((run) => run.drafts[0]);
const events = [...new Set(runs.flatMap((run) => run.events))].sort((a, b) => a - b);
const player = new Player(view, events, difference, actions);
actions.theme = startTheme(redraw);
new ResizeObserver(redraw).observe(document.querySelector("#runs"));
panels.forEach(({ timeline }) => timeline.layout());
actions.fit();
if (view.cell < 6) actions.zoom(6 / view.cell, 0);
view.overview = false;
actions.go(difference ? difference.step : 0);
window.inspector = { recording, view, panels, player, actions, draw };
