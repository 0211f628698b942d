/* What both runs of a comparison share: the current step, the window onto it, the selection. */

const NARROWEST = 0.2, WIDEST = 48; // pixels a step
const WIDEST_ALL = 160; // where all steps fit anyway

export class View {
  constructor(runs) {
    this.steps = Math.max(...runs.map((run) => run.steps));
    this.ids = [...new Set(runs.flatMap((run) => run.rows.map((row) => row.id)))];
    this.step = 0;
    this.left = 0; // the first step in view
    this.top = 0; // pixels that the rows are scrolled down
    this.cell = 14; // pixels a step
    this.selected = null;
    this.overview = false; // all rows at once, however low
  }

  /* Keep the current step in view, with some steps before and after it. */
  follow(width) {
    const visible = width / this.cell, margin = Math.min(visible * 0.15, 12);
    if (this.step < this.left + margin) this.left = this.step - margin;
    if (this.step + 1 > this.left + visible - margin) this.left = this.step + 1 - visible + margin;
    this.clamp(width);
  }

  /* Zoom about a step, which stays where it is. */
  zoom(factor, width, at = this.step) {
    const offset = (at - this.left) * this.cell;
    const all = Math.min(width / this.steps, WIDEST_ALL), least = Math.max(NARROWEST, all);
    this.cell = Math.min(Math.max(WIDEST, all), Math.max(least, this.cell * factor));
    this.overview = false;
    this.left = at - offset / this.cell;
    this.clamp(width);
  }

  clamp(width) {
    this.left = Math.max(0, Math.min(this.left, this.steps - width / this.cell));
  }
}
