/* Requests × steps on a canvas, with the token budget above and the block pool's fill below.

   A row is drawn stretch by stretch, not cell by cell, and only what is in view is drawn: the cost of a frame
   depends on the window, not on the recording. */

import { PHASES } from "./recording.js";
import { palette, requestColour } from "./theme.js";

const GUTTER = 92, GAP = 22;
const NARROWEST = 0.2, WIDEST = 48;
const THIN = { w: 0.16, q: 0.16, s: 0.34, o: 0.16 };

/* What both runs of a comparison share: the step, the window, the selection. */
export class View {
  constructor(runs) {
    this.steps = Math.max(...runs.map((run) => run.steps));
    this.ids = [...new Set(runs.flatMap((run) => run.rows.map((row) => row.id)))];
    this.step = 0;
    this.left = 0;
    this.top = 0;
    this.cell = 14;
    this.selected = null;
    this.overview = false;
  }

  /* Keep the current step in view, with some steps before and after it. */
  follow(width) {
    const visible = width / this.cell, margin = Math.min(visible * 0.15, 12);
    if (this.step < this.left + margin) this.left = this.step - margin;
    if (this.step + 1 > this.left + visible - margin) this.left = this.step + 1 - visible + margin;
    this.clamp(width);
  }

  zoom(factor, width, at = this.step) {
    const offset = (at - this.left) * this.cell;
    const least = Math.max(NARROWEST, Math.min(width / this.steps, WIDEST));
    this.cell = Math.min(WIDEST, Math.max(least, this.cell * factor));
    this.overview = false;
    this.left = at - offset / this.cell;
    this.clamp(width);
  }

  clamp(width) {
    this.left = Math.max(0, Math.min(this.left, this.steps - width / this.cell));
  }
}

export class Timeline {
  constructor(canvas, run, view, difference) {
    Object.assign(this, { canvas, run, view, difference });
    this.context = canvas.getContext("2d");
    this.most = Math.max(1, ...Array.from({ length: run.steps }, (_, step) => run.tokensAt(step)));
  }

  get budget() { return this.run.config.max_num_batched_tokens; }
  get width() { return this.canvas.clientWidth - GUTTER; }
  get rowsHeight() { return this.view.ids.length * this.row; }

  /* Bands from above: the budget, the scale of steps, the rows, the pool's fill. Few rows are higher. */
  layout() {
    const height = this.canvas.clientHeight, count = this.view.ids.length;
    this.budgetHeight = Math.max(64, Math.min(height * 0.17, 150));
    this.fillHeight = Math.max(40, Math.min(height * 0.11, 80));
    this.gridTop = this.budgetHeight + GAP;
    const room = height - this.gridTop - GAP - this.fillHeight;
    this.row = this.view.overview ? Math.min(room / count, 20) : Math.max(20, Math.min(room / count, 34));
    this.gridHeight = Math.min(room, this.rowsHeight);
    this.fillTop = this.gridTop + this.gridHeight + GAP;
    this.bottom = this.fillTop + this.fillHeight;
    this.scrollRows(0);
  }

  x(step) { return GUTTER + (step - this.view.left) * this.view.cell; }
  stepAt(x) { return Math.floor(this.view.left + (x - GUTTER) / this.view.cell); }

  rowAt(y) {
    if (y < this.gridTop || y > this.gridTop + this.gridHeight) return null;
    return this.run.byId.get(this.view.ids[Math.floor((y - this.gridTop + this.view.top) / this.row)]) || null;
  }

  scrollRows(by) {
    const most = Math.max(0, this.rowsHeight - this.gridHeight);
    this.view.top = Math.max(0, Math.min(this.view.top + by, most));
  }

  reveal(id) {
    const y = this.view.ids.indexOf(id) * this.row;
    if (y < this.view.top || y + this.row > this.view.top + this.gridHeight) this.scrollRows(y - this.gridHeight / 2 - this.view.top);
  }

  /* Scroll to those who are there, if none or hardly any of them can be seen. */
  followRows() {
    const there = this.view.ids.map((id) => this.run.byId.get(id)?.at(this.view.step) || ".");
    const first = there.findIndex((letter) => letter !== "."), last = there.findLastIndex((letter) => letter !== ".");
    const top = this.view.top / this.row, seen = this.gridHeight / this.row;
    if (first >= 0 && (first > top + seen - 4 || last < top + 3)) this.scrollRows((first - 1) * this.row - this.view.top);
  }

  draw() {
    const { canvas, context: c, view } = this, ratio = window.devicePixelRatio || 1;
    const width = canvas.clientWidth, height = canvas.clientHeight;
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    c.setTransform(ratio, 0, 0, ratio, 0, 0);
    c.clearRect(0, 0, width, height);
    this.layout();
    this.from = Math.max(0, Math.floor(view.left));
    this.to = Math.min(this.run.steps, Math.ceil(view.left + this.width / view.cell));
    this.drawColumn();
    this.clipped(0, this.budgetHeight + 2, () => this.drawBudget());
    this.clipped(this.gridTop, this.gridHeight, () => this.drawRows());
    this.clipped(this.fillTop, this.fillHeight, () => this.drawFill());
    this.drawSteps();
    this.drawDifference();
    this.drawLabels();
  }

  /* Draw to the right of the labels only. */
  clipped(top, height, draw) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(GUTTER, top, this.width, height);
    this.context.clip();
    draw();
    this.context.restore();
  }

  drawColumn() {
    const { context: c, view } = this;
    const x = Math.max(this.x(view.step), GUTTER), right = this.x(view.step + 1);
    if (right < GUTTER || view.step >= this.run.steps) return;
    c.fillStyle = palette.faint;
    c.fillRect(x, 0, Math.max(right - x, 2), this.bottom);
  }

  /* Stacked bars: decodes below, then what is computed again, then new prompt tokens. */
  drawBudget() {
    const { context: c, run } = this, top = Math.max(this.budget || 0, this.most), scale = (this.budgetHeight - 16) / top;
    const each = Math.max(1, Math.floor(1 / this.view.cell)), width = this.view.cell * each;
    const base = new Map();
    for (const phase of "drp") {
      c.fillStyle = palette[phase];
      for (let step = this.from - (this.from % each); step < this.to; step += each) {
        const shown = each === 1 ? step : this.fullest(step, Math.min(step + each, this.run.steps));
        const height = run.totals[phase][shown] * scale, below = base.get(step) || this.budgetHeight;
        if (!height) continue;
        c.fillRect(this.x(step), below - height, Math.max(width - (width > 4 ? 1 : 0), 0.8), height);
        base.set(step, below - height);
      }
    }
    c.fillStyle = palette.line;
    c.fillRect(GUTTER, this.budgetHeight, this.width, 1);
    if (this.budget) this.drawLimit(this.budgetHeight - this.budget * scale);
  }

  fullest(from, to) {
    let best = from;
    for (let step = from; step < to; step++) if (this.run.tokensAt(step) > this.run.tokensAt(best)) best = step;
    return best;
  }

  drawLimit(y) {
    const c = this.context;
    c.strokeStyle = palette.ink;
    c.setLineDash([5, 4]);
    c.beginPath();
    c.moveTo(GUTTER, Math.round(y) + 0.5);
    c.lineTo(GUTTER + this.width, Math.round(y) + 0.5);
    c.stroke();
    c.setLineDash([]);
  }

  drawRows() {
    const { view } = this;
    const first = Math.floor(view.top / this.row), last = Math.min(view.ids.length, Math.ceil((view.top + this.gridHeight) / this.row));
    for (let i = first; i < last; i++) {
      const y = this.gridTop + i * this.row - view.top;
      this.drawRowGround(view.ids[i], y);
      const row = this.run.byId.get(view.ids[i]);
      if (row) this.drawRow(row, y);
    }
    if (view.cell >= 5) this.drawCellBorders();
    for (let i = first; i < last; i++) {
      const row = this.run.byId.get(view.ids[i]);
      if (row) this.drawMarks(row, this.gridTop + i * this.row - view.top);
    }
  }

  drawRowGround(id, y) {
    const c = this.context;
    if (id === this.view.selected) {
      c.fillStyle = palette.faint;
      c.fillRect(GUTTER, y, this.width, this.row);
    }
    if (this.row < 8) return;
    c.fillStyle = palette.line;
    c.globalAlpha = 0.45;
    c.fillRect(GUTTER, y + this.row - 0.5, this.width, 0.5);
    c.globalAlpha = 1;
  }

  drawRow(row, y) {
    const c = this.context;
    if (row.last < this.from || row.first >= this.to) return;
    for (const { letter, start, length } of row.stretches) {
      if (letter === "." || letter === "a" || start + length <= this.from || start >= this.to) continue;
      const height = THIN[letter] ? Math.max(this.row * THIN[letter], 1) : this.row * 0.74, x = Math.max(this.x(start), GUTTER - 2);
      c.fillStyle = palette[letter];
      c.fillRect(x, y + (this.row - height) / 2, this.x(Math.min(start + length, this.to)) - x, height);
    }
  }

  drawCellBorders() {
    const c = this.context;
    c.fillStyle = palette.paper;
    for (let step = this.from; step <= this.to; step++) c.fillRect(this.x(step) - 0.5, this.gridTop, 1, this.gridHeight);
  }

  /* Token counts where there is room, cache hits, preemptions, ends. */
  drawMarks(row, y) {
    const { view } = this;
    if (view.cell >= 17) this.drawCounts(row, y);
    for (const step of row.preempted) if (step >= this.from && step < this.to) this.drawPreemption(step, y);
    if (view.cell >= 3) this.drawHits(row, y);
    if (!row.end || row.last < this.from || row.last >= this.to) return;
    if (row.at(row.last) === "a") this.drawCross(row.last, y);
    else this.drawEnd(row.last, y);
  }

  drawCounts(row, y) {
    const c = this.context;
    c.font = `10px ${palette.mono}`;
    c.textAlign = "center";
    c.textBaseline = "middle";
    c.fillStyle = palette.paper;
    for (let step = Math.max(this.from, row.first); step < Math.min(this.to, row.last + 1); step++) {
      const tokens = row.tokensAt(step);
      if (tokens > 1 && String(tokens).length * 6.5 < this.view.cell - 3) c.fillText(tokens, this.x(step + 0.5), y + this.row / 2 + 0.5);
    }
  }

  drawHits(row, y) {
    const c = this.context;
    c.fillStyle = palette.hit;
    for (const { start } of row.stretches) {
      if (start >= this.from && start < this.to && row.hitAt(start)) c.fillRect(this.x(start) + 0.5, y + this.row * 0.13, Math.min(3, this.view.cell / 2), this.row * 0.74);
    }
  }

  drawPreemption(step, y) {
    const c = this.context, x = this.x(step + 0.5), size = Math.min(Math.max(3.2, Math.min(this.view.cell / 2, 5.5)), this.row / 2);
    c.fillStyle = palette.preempted;
    c.beginPath();
    c.moveTo(x - size, y + this.row / 2 - size);
    c.lineTo(x + size, y + this.row / 2 - size);
    c.lineTo(x, y + this.row / 2 + size);
    c.fill();
  }

  drawEnd(step, y) {
    this.context.fillStyle = palette.ended;
    this.context.fillRect(this.x(step + 1) - Math.min(3, this.view.cell * 0.7), y + this.row * 0.08, Math.min(3, Math.max(this.view.cell * 0.7, 1)), this.row * 0.84);
  }

  drawCross(step, y) {
    const c = this.context, x = this.x(step + 0.5), size = Math.max(2.5, Math.min(this.view.cell / 2 - 1, 4.5));
    c.strokeStyle = palette.ended;
    c.lineWidth = 1.8;
    c.beginPath();
    c.moveTo(x - size, y + this.row / 2 - size);
    c.lineTo(x + size, y + this.row / 2 + size);
    c.moveTo(x + size, y + this.row / 2 - size);
    c.lineTo(x - size, y + this.row / 2 + size);
    c.stroke();
    c.lineWidth = 1;
  }

  /* Blocks in use, as a share of the pool. */
  drawFill() {
    const { context: c, run, bottom } = this, usable = Math.max(run.pool.size - 1, 1), height = this.fillHeight - 8;
    c.fillStyle = palette.cached;
    c.beginPath();
    c.moveTo(this.x(this.from), bottom);
    for (let step = this.from; step < this.to; step++) {
      const y = bottom - ((usable - run.free[step]) / usable) * height;
      c.lineTo(this.x(step), y);
      c.lineTo(this.x(step + 1), y);
    }
    c.lineTo(this.x(this.to), bottom);
    c.fill();
    c.fillStyle = palette.line;
    c.fillRect(GUTTER, bottom - 1, this.width, 1);
    c.fillRect(GUTTER, bottom - height, this.width, 0.5);
  }

  /* The scale of steps, between the budget and the rows. */
  drawSteps() {
    const c = this.context, wide = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];
    const each = wide.find((n) => n * this.view.cell >= 48) || 20000;
    c.font = `10.5px ${palette.mono}`;
    c.textAlign = "center";
    c.textBaseline = "middle";
    c.fillStyle = palette.soft;
    for (let step = Math.ceil(this.from / each) * each; step < this.to; step += each) {
      const x = this.x(step + 0.5);
      if (x > GUTTER + 8 && Math.abs(step - this.view.step) * this.view.cell > 34) c.fillText(step, x, this.budgetHeight + GAP / 2 + 1);
    }
    if (this.view.step < this.from || this.view.step >= this.to) return;
    c.fillStyle = palette.ink;
    c.font = `600 10.5px ${palette.mono}`;
    c.fillText(this.view.step, Math.max(this.x(this.view.step + 0.5), GUTTER + 8), this.budgetHeight + GAP / 2 + 1);
  }

  drawDifference() {
    if (!this.difference) return;
    const c = this.context, x = Math.round(this.x(this.difference.step)) - 0.5;
    if (x < GUTTER - 1 || x > GUTTER + this.width) return;
    c.fillStyle = palette.difference;
    c.fillRect(x, 0, 2, this.bottom);
    c.font = `600 11px ${palette.sans}`;
    const left = x + 150 < GUTTER + this.width;
    c.textAlign = left ? "left" : "right";
    c.textBaseline = "top";
    c.fillText("first difference", x + (left ? 6 : -5), 1);
  }

  drawLabels() {
    const { context: c, view, run } = this;
    c.textBaseline = "middle";
    c.textAlign = "right";
    c.font = `10.5px ${palette.sans}`;
    c.fillStyle = palette.soft;
    const scale = (this.budgetHeight - 16) / Math.max(this.budget || 0, this.most);
    if (this.budget) c.fillText(`budget ${this.budget}`, GUTTER - 8, this.budgetHeight - this.budget * scale);
    else c.fillText(`most ${this.most}`, GUTTER - 8, this.budgetHeight - this.most * scale);
    c.fillText("tokens", GUTTER - 8, this.budgetHeight - 5);
    c.fillText("step", GUTTER - 8, this.budgetHeight + GAP / 2 + 1);
    c.fillText(`${run.pool.size - 1} blocks`, GUTTER - 8, this.fillTop + 9);
    c.fillText("in use", GUTTER - 8, this.bottom - 7);
    c.save();
    c.beginPath();
    c.rect(0, this.gridTop, GUTTER, this.gridHeight);
    c.clip();
    const first = Math.floor(view.top / this.row), last = Math.min(view.ids.length, Math.ceil((view.top + this.gridHeight) / this.row));
    for (let i = first; i < last; i++) this.drawName(view.ids[i], this.gridTop + i * this.row - view.top);
    c.restore();
  }

  /* The name, cut to its end if it is long, and the colour that the request's blocks have. */
  drawName(id, y) {
    if (this.row < 11 && id !== this.view.selected) return;
    const c = this.context, row = this.run.byId.get(id), selected = id === this.view.selected;
    c.font = `${selected ? "600 " : ""}11px ${palette.mono}`;
    c.fillStyle = selected ? palette.accent : row && row.at(this.view.step) !== "." ? palette.ink : palette.soft;
    c.fillText(id.length > 10 ? `…${id.slice(-9)}` : id, GUTTER - 22, y + this.row / 2);
    if (!row) return;
    c.fillStyle = requestColour(row.index);
    c.beginPath();
    c.arc(GUTTER - 12, y + this.row / 2, 3.5, 0, 7);
    c.fill();
  }

  /* What stands under the pointer, as lines of text. */
  describe(x, y) {
    const step = this.stepAt(x);
    if (x < GUTTER || step < 0 || step >= this.run.steps) return null;
    if (y <= this.budgetHeight) return this.describeBudget(step);
    if (y >= this.fillTop && y <= this.bottom) return [`step ${step}`, `${this.run.pool.size - 1 - this.run.free[step]} of ${this.run.pool.size - 1} blocks in use, ${this.run.free[step]} free`];
    const row = this.rowAt(y);
    return row && row.at(step) !== "." ? describeCell(row, step) : null;
  }

  describeBudget(step) {
    const { p, r, d } = this.run.totals;
    const parts = [[p[step], "prefill"], [r[step], "computed again"], [d[step], "decode"]].filter(([n]) => n);
    const of = this.budget ? ` of ${this.budget}` : "";
    return [`step ${step}: ${this.run.tokensAt(step)}${of} tokens`, ...parts.map(([n, name]) => `${n} ${name}`)];
  }
}

/* One request in one step, in words. */
export function describeCell(row, step) {
  const letter = row.at(step), lines = [`${row.id} · step ${step}`], tokens = row.tokensAt(step);
  if ("prd".includes(letter)) {
    const before = row.beforeAt(step);
    const verb = { p: "prefill", r: "computes again", d: "decodes" }[letter];
    lines.push(`${verb}: ${tokens} token${tokens === 1 ? "" : "s"}`);
    lines.push(before < 0 ? "computed before: not in the recording" : `computed ${before} → ${before + tokens}${row.prompt === null ? "" : `, prompt ${row.prompt}`}`);
    if (row.hitAt(step)) lines.push(`${row.hitAt(step)} tokens came from the prefix cache`);
  } else {
    lines.push(PHASES[letter]);
  }
  if (row.preempted.has(step)) lines.push("preempted in this step: its blocks are taken");
  if (row.end && row.last === step) lines.push(`ended: ${row.end[0]} (${row.end[1]})`);
  return lines;
}
