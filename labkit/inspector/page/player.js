/* Stepping, playing, searching: the buttons and keys of the page. */

import { element } from "./details.js";

const SPEEDS = [1, 2, 5, 10, 20, 50, 100];
const KEYS = {
  ArrowLeft: "back", ArrowRight: "forward", ArrowUp: "up", ArrowDown: "down", Home: "first", End: "last", " ": "play",
  "+": "faster", "=": "faster", "-": "slower", "/": "search", n: "next", p: "previous", d: "difference",
  "]": "zoomIn", "[": "zoomOut", 0: "fit", t: "theme", "?": "help", Escape: "clear",
};
const SHIFTED = { ArrowLeft: "back10", ArrowRight: "forward10" };

export class Player {
  constructor(view, events, difference, actions) {
    Object.assign(this, { view, events, difference, actions });
    this.speed = 3;
    this.playing = false;
    this.slider = document.querySelector("#step");
    this.slider.max = view.steps - 1;
    this.slider.addEventListener("input", () => this.go(Number(this.slider.value)));
    for (const button of document.querySelectorAll("[data-do]")) {
      button.addEventListener("click", () => this.run(button.dataset.do));
    }
    document.addEventListener("keydown", (event) => this.key(event));
    this.searchFor();
  }

  /* What keys and buttons do, by name. */
  run(name) {
    const { view } = this;
    const actions = {
      back: () => this.go(view.step - 1), forward: () => this.go(view.step + 1),
      back10: () => this.go(view.step - 10), forward10: () => this.go(view.step + 10),
      first: () => this.go(0), last: () => this.go(view.steps - 1),
      previous: () => this.go(this.events.findLast((step) => step < view.step) ?? 0),
      next: () => this.go(this.events.find((step) => step > view.step) ?? view.steps - 1),
      play: () => this.play(!this.playing),
      slower: () => this.setSpeed(this.speed - 1), faster: () => this.setSpeed(this.speed + 1),
      difference: () => this.difference && this.go(this.difference.step),
      search: () => document.querySelector("#search").focus(),
      up: () => this.selectNext(-1), down: () => this.selectNext(1),
      clear: () => this.actions.select(null),
      zoomIn: () => this.actions.zoom(1.4), zoomOut: () => this.actions.zoom(1 / 1.4), fit: () => this.actions.fit(),
      theme: () => this.actions.theme(), help: () => document.querySelector("#help").showModal(),
    };
    actions[name]?.();
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.target.matches("input[type=search]")) {
      if (event.key === "Escape") event.target.blur();
      return;
    }
    if (document.querySelector("dialog[open]")) return;
    const name = (event.shiftKey && SHIFTED[event.key]) || KEYS[event.key];
    if (!name || (event.key === " " && event.target.matches("button"))) return;
    event.preventDefault();
    this.run(name);
  }

  go(step) {
    this.actions.go(Math.max(0, Math.min(step, this.view.steps - 1)));
  }

  /* One timer for the steps; drawing has its own rhythm. */
  play(on) {
    this.playing = on;
    clearInterval(this.timer);
    const button = document.querySelector("[data-do=play]");
    button.classList.toggle("playing", on);
    button.setAttribute("aria-label", on ? "pause" : "play");
    if (!on) return;
    if (this.view.step >= this.view.steps - 1) this.go(0);
    this.timer = setInterval(() => {
      if (this.view.step >= this.view.steps - 1) this.play(false);
      else this.go(this.view.step + 1);
    }, 1000 / SPEEDS[this.speed]);
  }

  setSpeed(index) {
    this.speed = Math.max(0, Math.min(index, SPEEDS.length - 1));
    document.querySelector("#speed").textContent = `${SPEEDS[this.speed]} steps/s`;
    if (this.playing) this.play(true);
  }

  selectNext(by) {
    const { ids, selected } = this.view, index = selected === null ? (by > 0 ? -1 : 0) : ids.indexOf(selected);
    this.actions.select(ids[(index + by + ids.length) % ids.length]);
  }

  searchFor() {
    const input = document.querySelector("#search"), list = document.querySelector("#ids");
    list.append(...this.view.ids.slice(0, 2000).map((id) => element("option", { value: id })));
    const found = () => {
      if (this.view.ids.includes(input.value)) return input.value;
      return this.view.ids.find((id) => input.value && id.includes(input.value));
    };
    input.addEventListener("input", () => {
      const id = found();
      input.classList.toggle("nothing", input.value !== "" && id === undefined);
      if (id !== undefined) this.actions.select(id);
    });
    input.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || found() === undefined) return;
      this.actions.goToStart(found());
      input.blur();
    });
  }
}
