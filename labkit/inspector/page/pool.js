/* The block pool after one step, a square a block. */

import { palette, requestColour } from "./theme.js";
import { describeBlock } from "./words.js";

const SMALLEST = 7, LARGEST = 38, NUMBERED = 26;

export class PoolView {
  constructor(canvas, run, view) {
    Object.assign(this, { canvas, run, view });
    this.context = canvas.getContext("2d");
    this.count = this.sayUnused();
  }

  /* How many blocks are drawn: of a pool that the run never half fills, those up to the last one it touches. */
  sayUnused() {
    const { size, history, lostAt } = this.run.pool, touched = history.findLastIndex(({ steps }) => steps.length) + 1;
    if (lostAt !== null || !touched || touched * 2 > size) return size;
    const note = this.canvas.closest(".blocks").querySelector(".unused");
    note.textContent = `Blocks ${touched} to ${size - 1}: never used in this run.`;
    note.hidden = false;
    return touched;
  }

  /* The largest squares with which the whole pool fits; very large pools make the canvas higher. */
  layout() {
    const width = this.canvas.parentElement.clientWidth, side = this.canvas.closest(".side");
    const beside = getComputedStyle(side).flexDirection === "row", room = side.clientHeight * (beside ? 0.8 : 0.4);
    const size = this.count;
    let square = LARGEST;
    while (square > SMALLEST && Math.ceil(size / Math.floor(width / square)) * square > room) square--;
    this.square = square;
    this.columns = Math.max(1, Math.floor(width / square));
    const height = Math.ceil(size / this.columns) * square + 1, ratio = window.devicePixelRatio || 1;
    if (this.canvas.width !== Math.round(width * ratio) || this.canvas.height !== Math.round(height * ratio)) {
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.height = `${height}px`;
    }
    this.context.setTransform(ratio, 0, 0, ratio, 0, 0);
    this.context.clearRect(0, 0, width, height);
  }

  draw() {
    this.layout();
    const { pool } = this.run, step = Math.min(this.view.step, this.run.steps - 1);
    if (!pool.knows(step)) return this.drawUnknown();
    const scroll = this.canvas.parentElement.scrollTop, seen = this.canvas.parentElement.clientHeight || 1e9;
    const first = Math.floor(scroll / this.square) * this.columns;
    const last = Math.min(this.count, Math.ceil((scroll + seen) / this.square) * this.columns);
    for (let block = first; block < last; block++) this.drawBlock(block, step);
  }

  drawUnknown() {
    const c = this.context;
    c.font = `13px ${palette.sans}`;
    c.fillStyle = palette.soft;
    c.textBaseline = "top";
    c.fillText("not determined by the recording", 0, 4);
  }

  drawBlock(block, step) {
    const c = this.context, s = this.square - (this.square > 12 ? 3 : 1);
    const x = (block % this.columns) * this.square, y = Math.floor(block / this.columns) * this.square;
    if (block === 0) return this.drawNull(x, y, s);
    const state = this.run.pool.blockAt(block, step), changes = this.run.pool.changesAt(block, step);
    const chosen = this.view.selected, dim = chosen !== null && !state.holders.some(({ row }) => row.id === chosen);
    c.globalAlpha = dim ? 0.25 : 1;
    if (state.holders.length) this.drawHeld(x, y, s, state);
    else this.drawFree(x, y, s, state);
    if (changes) this.drawChange(x, y, s, changes);
    if (this.square >= NUMBERED) this.drawNumber(block, x, y, s, state);
    c.globalAlpha = 1;
  }

  /* The null block: never given out. */
  drawNull(x, y, s) {
    const c = this.context;
    c.strokeStyle = palette.line;
    c.strokeRect(x + 0.5, y + 0.5, s - 1, s - 1);
    c.beginPath();
    c.moveTo(x, y);
    c.lineTo(x + s, y + s);
    c.stroke();
  }

  /* In use: stripes of its holders' colours. A block that is not full yet is filled to its half. */
  drawHeld(x, y, s, { holders, full }) {
    const c = this.context, shown = Math.min(holders.length, 4), width = s / shown;
    for (let i = 0; i < shown; i++) {
      c.fillStyle = requestColour(holders[i].row.index);
      c.fillRect(x + i * width, y, width, s);
    }
    if (full || !this.run.pool.findable || s < 5) return;
    c.fillStyle = palette.paper;
    c.globalAlpha *= 0.55;
    c.fillRect(x, y, s, s / 2);
    c.globalAlpha = c.globalAlpha / 0.55;
  }

  /* Free: an empty square; with contents that may be found again, a dot in their colour. */
  drawFree(x, y, s, { full, last }) {
    const c = this.context;
    c.fillStyle = palette.faint;
    c.fillRect(x, y, s, s);
    if (!full || !last) return;
    c.fillStyle = requestColour(last.index);
    c.fillRect(x + s * 0.32, y + s * (this.square < NUMBERED ? 0.32 : 0.14), s * 0.36, s * 0.36);
  }

  /* What happened in this very step: an outline. */
  drawChange(x, y, s, changes) {
    const c = this.context, taken = /[neh]/.test(changes);
    if (!taken && !changes.includes("r")) return;
    c.strokeStyle = taken ? palette.ink : palette.soft;
    if (changes.includes("h")) c.strokeStyle = palette.hit;
    if (changes.includes("e")) c.strokeStyle = palette.preempted;
    c.lineWidth = taken && s > 9 ? 2.5 : 1.5;
    if (!taken) c.setLineDash([2, 2]);
    c.strokeRect(x + c.lineWidth / 2, y + c.lineWidth / 2, s - c.lineWidth, s - c.lineWidth);
    c.setLineDash([]);
    c.lineWidth = 1;
  }

  /* The block's number, and with several holders how many. */
  drawNumber(block, x, y, s, { holders, full }) {
    const c = this.context;
    c.font = `${Math.min(11, s / 2.6)}px ${palette.mono}`;
    c.textAlign = "center";
    c.textBaseline = "alphabetic";
    c.fillStyle = !holders.length ? palette.soft : full || !this.run.pool.findable ? palette.paper : palette.ink;
    c.fillText(holders.length > 1 ? `${block}·${holders.length}` : block, x + s / 2, y + s - 4);
  }

  blockUnder(x, y) {
    const column = Math.floor(x / this.square), block = Math.floor(y / this.square) * this.columns + column;
    return column < this.columns && block >= 0 && block < this.count ? block : null;
  }

  /* What stands under the pointer, as lines of text. */
  describe(x, y) {
    const block = this.blockUnder(x, y), step = Math.min(this.view.step, this.run.steps - 1);
    return block !== null && this.run.pool.knows(step) ? describeBlock(this.run, block, step) : null;
  }
}
