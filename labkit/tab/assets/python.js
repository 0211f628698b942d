// The worker with Python in it, as the page sees it: started when it is first needed, interrupted
// when it takes too long, thrown away and made anew when that does not help.

const TICK = 500; // ms: how often the alarm rings (labkit/inside/alarm.py: AGAIN_SECONDS)
const SIGALRM = 14;
const PATIENCE = { interrupted: 60_000, thrown: 20_000 }; // ms without a word from the worker
const OLD = "This browser cannot run Python (it has no WebAssembly exceptions): a current Firefox, Chrome, Edge or Safari can.";

/** Python ended before it gave an answer; the message says why. */
export class Ended extends Error {}

export class Python {
  #worker = null; #ready = null; #waiting = null; #interrupts = null;

  /** @param hear called with each event of the worker: "progress", "check", "line", … */
  constructor(hear) {
    this.hear = hear;
  }

  /** Whether an endless loop can be interrupted where it stands. */
  get isolated() {
    return self.crossOriginIsolated === true;
  }

  /** Whether all that Python needs lies in this browser already, so that starting it loads nothing. */
  async isHere() {
    const wasm = new URL("./pyodide/pyodide.asm.wasm", import.meta.url);
    return Boolean(await self.caches?.match(wasm).catch(() => null));
  }

  /** Load Python, once. */
  start() {
    if (typeof WebAssembly !== "object" || !("Tag" in WebAssembly)) return Promise.reject(new Ended(OLD));
    this.#ready ??= this.#begin();
    return this.#ready;
  }

  async #begin() {
    this.#worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
    this.#worker.onmessage = ({ data }) => this.#take(data);
    this.#worker.onerror = (event) => this.#end(event.message || "It could not be loaded. Is the network there? If a newer book has come out, load this page anew.");
    this.#interrupts = this.isolated ? new Uint8Array(new SharedArrayBuffer(1)) : null;
    await this.#ask({ do: "start", interrupts: this.#interrupts }, Infinity);
  }

  /**
   * Let the driver answer a request.
   * @returns its answer: {green, files}.
   * @throws Ended: Python did not come to its end.
   */
  async answer(request) {
    await this.start();
    const ticking = setInterval(() => { if (this.#interrupts) this.#interrupts[0] = SIGALRM; }, TICK);
    try {
      const patience = this.isolated ? PATIENCE.interrupted : PATIENCE.thrown;
      return await this.#ask({ do: "answer", request: JSON.stringify(request) }, patience);
    } finally {
      clearInterval(ticking);
      if (this.#interrupts) this.#interrupts[0] = 0;
    }
  }

  /** Throw the worker away; the next request makes a new one. */
  stop(why = "you stopped it") {
    this.#end(why);
  }

  #ask(message, patience) {
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject, heard: performance.now() };
      this.#worker.postMessage(message);
      if (patience === Infinity) return;
      const mine = this.#waiting;
      mine.watch = setInterval(() => {
        const silent = performance.now() - mine.heard;
        if (silent > patience) this.#end(`nothing came from it for ${Math.round(silent / 1000)} s: an endless loop?`, true);
      }, TICK);
    });
  }

  #take(data) {
    if (!this.#waiting) return;
    this.#waiting.heard = performance.now();
    if (data.event === "ready" || data.event === "answer") this.#settle("resolve", data);
    else if (data.event === "failed") this.#end(data.message);
    else this.hear(data);
  }

  #settle(how, value) {
    const waiting = this.#waiting;
    this.#waiting = null;
    clearInterval(waiting?.watch);
    waiting?.[how](value);
  }

  #end(why, endless = false) {
    this.#worker?.terminate();
    this.#worker = this.#ready = null;
    this.#settle("reject", Object.assign(new Ended(why), { endless }));
  }
}
