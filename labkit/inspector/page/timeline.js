/* Requests × steps on a canvas, with the token budget above and the pool's fill below.

   A row is drawn stretch by stretch, not cell by cell, and only what is in view is drawn. */

import { palette, requestColour } from "./theme.js";
import { describeBudget, describeCell, describeFill } from "./words.js";

const GUTTER = 92, GAP = 22; // room for the names at the left; between the bands
const FULL = 0.74; // of a row's height; those who compute nothing are thinner
const THIN = { w: 0.16, q: 0.16, s: 0.34, o: 0.16 };
const TALLEST = 46; // pixels of a row, where there are few
const FAR = 4; // an axis ends at what a run needs, where the limit is more than this many times as much
const SCALES = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000];

/* Where an axis ends: at its limit, or where a small run stays far below that, at the most that the run has. */
function axis(most, limit) {
  return limit && limit <= most * FAR ? Math.max(limit, most) : most;
}

export class Timeline {
  constructor(canvas, run, view, difference) {
    Object.assign(this, { canvas, run, view, difference });
    this.context = canvas.getContext("2d");
    this.most = Math.max(1, ...Array.from({ length: run.steps }, (_, step) => run.tokensAt(step)));
    this.usable = Math.max(run.pool.size - 1, 1);
    this.mostBlocks = Math.max(1, ...run.free.map((free) => this.usable - free));
  }

  /* ---- places ---- */

  get width() { return this.canvas.clientWidth - GUTTER; }
  get rowsHeight() { return this.view.ids.length * this.row; }
  get tokenTop() { return axis(this.most, this.run.budget); }
  get tokenHeight() { return (this.budgetHeight - 16) / this.tokenTop; }
  get blockTop() { return axis(this.mostBlocks, this.usable); }

  /* Bands from above: the budget, the scale of steps, the rows, the pool's fill. Few rows are higher. */
  layout() {
    const height = this.canvas.clientHeight, count = this.view.ids.length;
    this.budgetHeight = Math.max(64, Math.min(height * 0.17, 150));
    this.fillHeight = Math.max(40, Math.min(height * 0.11, 80));
    this.gridTop = this.budgetHeight + GAP;
    const room = height - this.gridTop - GAP - this.fillHeight;
    this.row = this.view.overview ? Math.min(room / count, 20) : Math.max(20, Math.min(room / count, TALLEST));
    this.gridHeight = Math.min(room, this.rowsHeight);
    this.fillTop = this.gridTop + this.gridHeight + GAP;
    this.bottom = this.fillTop + this.fillHeight;
    this.scrollRows(0);
  }

  x(step) { return GUTTER + (step - this.view.left) * this.view.cell; }
  y(index) { return this.gridTop + index * this.row - this.view.top; }
  stepAt(x) { return Math.floor(this.view.left + (x - GUTTER) / this.view.cell); }
  shows(step) { return step >= this.from && step < this.to; }

  rowAt(y) {
    if (y < this.gridTop || y > this.gridTop + this.gridHeight) return null;
    const index = Math.floor((y - this.gridTop + this.view.top) / this.row);
    return this.run.byId.get(this.view.ids[index]) || null;
  }

  scrollRows(by) {
    const most = Math.max(0, this.rowsHeight - this.gridHeight);
    this.view.top = Math.max(0, Math.min(this.view.top + by, most));
  }

  /* Scroll until a request's row is in view. */
  reveal(id) {
    const y = this.view.ids.indexOf(id) * this.row, { top } = this.view;
    if (y < top || y + this.row > top + this.gridHeight) this.scrollRows(y - this.gridHeight / 2 - top);
  }

  /* Scroll to those who are there, if none or hardly any of them can be seen. */
  followRows() {
    const present = (id) => (this.run.byId.get(id)?.at(this.view.step) || ".") !== ".";
    const first = this.view.ids.findIndex(present), last = this.view.ids.findLastIndex(present);
    const top = this.view.top / this.row, seen = this.gridHeight / this.row;
    const hidden = first > top + seen - 4 || last < top + 3;
    if (first >= 0 && hidden) this.scrollRows((first - 1) * this.row - this.view.top);
  }

  /* ---- drawing ---- */

  draw() {
    this.prepare();
    this.drawColumn();
    this.clipped(GUTTER, 0, this.width, this.budgetHeight + 2, () => this.drawBudget());
    this.clipped(GUTTER, this.gridTop, this.width, this.gridHeight, () => this.drawRows());
    this.clipped(GUTTER, this.fillTop, this.width, this.fillHeight, () => this.drawFill());
    this.clipped(0, this.gridTop, GUTTER, this.gridHeight, () => this.eachRow((id, y) => this.drawName(id, y)));
    this.drawScale();
    this.drawDifference();
    this.drawLabels();
  }

  /* An empty canvas of the window's size, and the steps that it will show. */
  prepare() {
    const { canvas, view } = this, ratio = window.devicePixelRatio || 1;
    const width = Math.round(canvas.clientWidth * ratio), height = Math.round(canvas.clientHeight * ratio);
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
    this.layout();
    this.from = Math.max(0, Math.floor(view.left));
    this.to = Math.min(this.run.steps, Math.ceil(view.left + this.width / view.cell));
  }

  clipped(x, y, width, height, draw) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(x, y, width, height);
    this.context.clip();
    draw();
    this.context.restore();
  }

  fill(colour, x, y, width, height) {
    this.context.fillStyle = colour;
    this.context.fillRect(x, y, width, height);
  }

  text(words, x, y, { colour = palette.soft, font = `10.5px ${palette.sans}`, align = "right" } = {}) {
    Object.assign(this.context, { fillStyle: colour, font, textAlign: align, textBaseline: "middle" });
    this.context.fillText(words, x, y);
  }

  path(points) {
    this.context.beginPath();
    points.forEach(([x, y], i) => (i ? this.context.lineTo(x, y) : this.context.moveTo(x, y)));
  }

  /* The current step. */
  drawColumn() {
    const x = Math.max(this.x(this.view.step), GUTTER), right = this.x(this.view.step + 1);
    if (right < GUTTER || this.view.step >= this.run.steps) return;
    this.fill(palette.faint, x, 0, Math.max(right - x, 2), this.bottom);
  }

  /* Stacked bars: decodes below, then what is computed again, then new prompt tokens. Where a step is narrower than
     a pixel, the fullest of those that share one is drawn. */
  drawBudget() {
    const each = Math.max(1, Math.floor(1 / this.view.cell)), width = this.view.cell * each;
    const bar = Math.max(width - (width > 4 ? 1 : 0), 0.8);
    for (let step = this.from - (this.from % each); step < this.to; step += each) {
      const shown = each === 1 ? step : this.fullest(step, Math.min(step + each, this.run.steps));
      let y = this.budgetHeight;
      for (const phase of "drp") {
        const height = this.run.totals[phase][shown] * this.tokenHeight;
        if (height) this.fill(palette[phase], this.x(step), y - height, bar, height);
        if (phase === "d") this.drawRejected(shown, this.x(step), y - height, bar);
        y -= height;
      }
    }
    this.fill(palette.line, GUTTER, this.budgetHeight, this.width, 1);
    if (this.run.budget <= this.tokenTop) this.drawLimit(Math.round(this.budgetHeight - this.run.budget * this.tokenHeight) + 0.5);
  }

  /* The upper part of the decodes: what was computed for drafts that were rejected. */
  drawRejected(step, x, y, width) {
    const [drafts, accepted] = this.run.draftsAt(step);
    if (drafts > accepted) this.fill(palette.rejected, x, y, width, (drafts - accepted) * this.tokenHeight);
  }

  fullest(from, to) {
    let best = from;
    for (let step = from; step < to; step++) if (this.run.tokensAt(step) > this.run.tokensAt(best)) best = step;
    return best;
  }

  drawLimit(y) {
    this.context.strokeStyle = palette.ink;
    this.context.setLineDash([5, 4]);
    this.path([[GUTTER, y], [GUTTER + this.width, y]]);
    this.context.stroke();
    this.context.setLineDash([]);
  }

  /* Call `draw` with id, height on the canvas, and row (undefined if this run has none) of those in view. */
  eachRow(draw) {
    const { ids, top } = this.view, last = Math.min(ids.length, Math.ceil((top + this.gridHeight) / this.row));
    for (let i = Math.floor(top / this.row); i < last; i++) draw(ids[i], this.y(i), this.run.byId.get(ids[i]));
  }

  drawRows() {
    this.eachRow((id, y, row) => {
      if (id === this.view.selected) this.fill(palette.faint, GUTTER, y, this.width, this.row);
      if (this.row >= 8) this.fill(palette.hairline, GUTTER, y + this.row - 0.5, this.width, 0.5);
      if (row) this.drawStretches(row, y);
      if (row) this.drawDrafts(row, y);
    });
    if (this.view.cell >= 5) this.drawBorders();
    this.eachRow((id, y, row) => row && this.drawMarks(row, y));
  }

  drawStretches(row, y) {
    if (row.last < this.from || row.first >= this.to) return;
    for (const { letter, start, length } of row.stretches) {
      if (letter === "." || letter === "a" || start + length <= this.from || start >= this.to) continue;
      const height = Math.max(this.row * (THIN[letter] || FULL), 1), x = Math.max(this.x(start), GUTTER - 2);
      this.fill(palette[letter], x, y + (this.row - height) / 2, this.x(Math.min(start + length, this.to)) - x, height);
    }
  }

  /* A step with drafts is a pile: below the newest token, on it the accepted drafts, on top the rejected ones. */
  drawDrafts(row, y) {
    const height = this.row * FULL, bottom = y + (this.row + height) / 2;
    const first = Math.max(this.from, row.first), last = Math.min(this.to, row.last + 1);
    for (let step = first; row.drafts.size && this.view.cell >= 2 && step < last; step++) {
      const [drafts, accepted] = row.drafts.get(step) || [0, 0];
      const x = this.x(step), each = height / (drafts + 1), gap = each >= 3 ? 0.75 : 0;
      for (let i = 1; i <= drafts; i++) {
        const colour = i <= accepted ? palette.accepted : palette.rejected;
        this.fill(palette.paper, x, bottom - (i + 1) * each, this.view.cell, each);
        this.fill(colour, x, bottom - (i + 1) * each, this.view.cell, each - gap);
      }
    }
  }

  /* A line between steps cuts the stretches into cells. */
  drawBorders() {
    for (let step = this.from; step <= this.to; step++) {
      this.fill(palette.paper, this.x(step) - 0.5, this.gridTop, 1, this.gridHeight);
    }
  }

  /* Token counts where there is room, cache hits, preemptions, the end. */
  drawMarks(row, y) {
    const middle = y + this.row / 2;
    if (this.view.cell >= 17) this.drawCounts(row, middle);
    for (const step of row.preempted) if (this.shows(step)) this.drawTriangle(this.x(step + 0.5), middle);
    for (const step of this.view.cell >= 3 ? row.hits.keys() : []) if (this.shows(step)) this.drawHit(step, y);
    if (!row.end || !this.shows(row.last)) return;
    if (row.at(row.last) === "a") this.drawCross(this.x(row.last + 0.5), middle);
    else this.drawEnd(this.x(row.last + 1), y);
  }

  drawCounts(row, y) {
    const style = { colour: palette.paper, font: `10px ${palette.mono}`, align: "center" };
    const last = Math.min(this.to, row.last + 1);
    for (let step = Math.max(this.from, row.first); step < last; step++) {
      const tokens = row.tokensAt(step), fits = String(tokens).length * 6.5 < this.view.cell - 3;
      if (tokens > 1 && fits && !row.drafts.has(step)) this.text(tokens, this.x(step + 0.5), y + 0.5, style);
    }
  }

  drawHit(step, y) {
    const margin = (this.row * (1 - FULL)) / 2;
    this.fill(palette.hit, this.x(step) + 0.5, y + margin, Math.min(3, this.view.cell / 2), this.row * FULL);
  }

  drawTriangle(x, y) {
    const size = Math.min(Math.max(3.2, Math.min(this.view.cell / 2, 5.5)), this.row / 2);
    this.context.fillStyle = palette.preempted;
    this.path([[x - size, y - size], [x + size, y - size], [x, y + size]]);
    this.context.fill();
  }

  drawEnd(right, y) {
    const width = Math.min(3, Math.max(this.view.cell * 0.7, 1));
    this.fill(palette.ended, right - width, y + this.row * 0.08, width, this.row * 0.84);
  }

  drawCross(x, y) {
    const size = Math.max(2.5, Math.min(this.view.cell / 2 - 1, 4.5)), c = this.context;
    Object.assign(c, { strokeStyle: palette.ended, lineWidth: 1.8 });
    for (const way of [1, -1]) {
      this.path([[x - size, y - size * way], [x + size, y + size * way]]);
      c.stroke();
    }
    c.lineWidth = 1;
  }

  /* Blocks in use. */
  drawFill() {
    const { run, bottom, usable } = this, height = this.fillHeight - 8;
    const points = [[this.x(this.from), bottom]];
    for (let step = this.from; step < this.to; step++) {
      const y = bottom - ((usable - run.free[step]) / this.blockTop) * height;
      points.push([this.x(step), y], [this.x(step + 1), y]);
    }
    this.context.fillStyle = palette.fill;
    this.path([...points, [this.x(this.to), bottom]]);
    this.context.fill();
    this.fill(palette.line, GUTTER, bottom - 1, this.width, 1);
    this.fill(palette.line, GUTTER, bottom - height, this.width, 0.5);
  }

  /* The numbers of steps, between the budget and the rows. */
  drawScale() {
    const { view } = this, y = this.budgetHeight + GAP / 2 + 1, font = `10.5px ${palette.mono}`;
    const each = SCALES.find((n) => n * view.cell >= 48) || 20000;
    for (let step = Math.ceil(this.from / each) * each; step < this.to; step += each) {
      const x = this.x(step + 0.5), free = Math.abs(step - view.step) * view.cell > 34;
      if (x > GUTTER + 8 && free) this.text(step, x, y, { font, align: "center" });
    }
    const x = Math.max(this.x(view.step + 0.5), GUTTER + 8);
    if (this.shows(view.step)) this.text(view.step, x, y, { font: `600 ${font}`, colour: palette.ink, align: "center" });
  }

  drawDifference() {
    if (!this.difference) return;
    const x = Math.round(this.x(this.difference.step)) - 0.5, right = GUTTER + this.width;
    if (x < GUTTER - 1 || x > right) return;
    this.fill(palette.difference, x, 0, 2, this.bottom);
    const [align, offset] = x + 150 < right ? ["left", 6] : ["right", -5];
    this.text("first difference", x + offset, 7, { font: `600 11px ${palette.sans}`, colour: palette.difference, align });
  }

  drawLabels() {
    const x = GUTTER - 8, { budget } = this.run, inside = budget <= this.tokenTop, top = inside ? budget : this.most;
    const y = this.budgetHeight - top * this.tokenHeight;
    this.text(`${inside ? "budget" : "most"} ${top}`, x, y);
    if (budget && !inside) this.text(`of ${budget}`, x, y + 13);
    this.text("tokens", x, this.budgetHeight - 5);
    this.text("step", x, this.budgetHeight + GAP / 2 + 1);
    const all = this.blockTop === this.usable;
    const most = `most ${this.mostBlocks} block${this.mostBlocks === 1 ? "" : "s"}`;
    this.text(all ? `${this.run.pool.size - 1} blocks` : most, x, this.fillTop + 9);
    if (!all) this.text(`of ${this.usable}`, x, this.fillTop + 21);
    this.text("in use", x, this.bottom - 7);
  }

  /* The name, cut to its end if it is long, and the colour that the request's blocks have. */
  drawName(id, y) {
    const selected = id === this.view.selected, row = this.run.byId.get(id);
    if (this.row < 11 && !selected) return;
    const present = row && row.at(this.view.step) !== ".";
    const colour = selected ? palette.accent : present ? palette.ink : palette.soft;
    const font = `${selected ? "600 " : ""}11px ${palette.mono}`, middle = y + this.row / 2;
    this.text(id.length > 10 ? `…${id.slice(-9)}` : id, GUTTER - 22, middle, { colour, font });
    if (!row) return;
    this.context.fillStyle = requestColour(row.index);
    this.context.beginPath();
    this.context.arc(GUTTER - 12, middle, 3.5, 0, 7);
    this.context.fill();
  }

  /* What stands under the pointer, as lines of text. */
  describe(x, y) {
    const step = this.stepAt(x), row = this.rowAt(y);
    if (x < GUTTER || step < 0 || step >= this.run.steps) return null;
    if (y <= this.budgetHeight) return describeBudget(this.run, step);
    if (y >= this.fillTop && y <= this.bottom) return describeFill(this.run, step);
    return row && row.at(step) !== "." ? describeCell(row, step) : null;
  }
}
