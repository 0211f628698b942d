/* Unpacks the recording: from columns and run lengths to rows, totals and the history of every block.
   labkit/inspector/page.py packs it, and says what the letters mean. */

export const PHASES = {
  p: "prefill", r: "recompute", d: "decode", s: "running, no tokens",
  w: "waiting", q: "waiting after a preemption", o: "in neither queue: swapped out", a: "aborted",
};

export function unpack(data) {
  return { title: data.title, difference: data.difference, runs: data.runs.map((run) => new Run(run)) };
}

export class Run {
  constructor(packed) {
    Object.assign(this, { name: packed.name, steps: packed.steps, config: packed.config, notes: packed.notes,
      error: packed.error, free: packed.free, budget: packed.config.max_num_batched_tokens });
    this.preemptions = new Map(packed.preempted);
    this.rows = packed.rows.map((row, index) => new Row(row, index, this.preemptions));
    this.byId = new Map(this.rows.map((row) => [row.id, row]));
    this.images = new Map(packed.images.map(([step, encoded, forgotten]) =>
      [step, { encoded: encoded.map(([row, images]) => [this.rows[row], images]), forgotten }]));
    this.totals = this.addUp();
    this.queues = unpackQueue(packed.queue, this.steps);
    this.pool = new Pool(packed.pool, this);
  }

  /* Tokens of each phase, drafts, and accepted drafts, step by step. */
  addUp() {
    const totals = {};
    for (const key of ["p", "r", "d", "drafts", "accepted"]) totals[key] = new Int32Array(this.steps);
    for (const { letters, tokens, first, drafts } of this.rows) {
      for (let i = 0; i < letters.length; i++) if (tokens[i]) totals[letters[i]][first + i] += tokens[i];
      for (const [step, [offered, accepted]] of drafts) {
        totals.drafts[step] += offered;
        totals.accepted[step] += accepted;
      }
    }
    return totals;
  }

  /* Drafts of one step, of all requests: [verified, accepted]. */
  draftsAt(step) { return [this.totals.drafts[step], this.totals.accepted[step]]; }

  /* The same for the whole run. */
  get drafts() { return ["drafts", "accepted"].map((key) => this.totals[key].reduce((sum, n) => sum + n, 0)); }

  tokensAt(step) { return this.totals.p[step] + this.totals.r[step] + this.totals.d[step]; }

  /* The rows of one step, by what they did in it. */
  at(step) {
    const found = { p: [], r: [], d: [], s: [], w: [], q: [], o: [], a: [], ended: [] };
    found.preempted = (this.preemptions.get(step) || []).map((index) => this.rows[index]);
    for (const row of this.rows) {
      const letter = row.at(step);
      if (letter !== ".") found[letter].push(row);
      if (row.end && row.last === step && letter !== "a") found.ended.push(row);
    }
    return found;
  }

  /* The waiting rows in the order in which they would be admitted. */
  queueAt(step) { return (this.queues[step] || []).map((index) => this.rows[index]); }

  /* Steps in which something happens that is worth a look. */
  get events() {
    const ends = this.rows.filter((row) => row.end).map((row) => row.last);
    return [...new Set([...this.preemptions.keys(), ...ends])].sort((a, b) => a - b);
  }
}

/* One request. `letters`, `tokens` and `before` have an entry for each step from `first` to `last`; `hits` has the
   tokens that the prefix cache supplied, by the step of the admission; `drafts` has [verified, accepted] by step. */
export class Row {
  constructor(packed, index, preemptions) {
    Object.assign(this, { index, id: packed.id, first: packed.first, prompt: packed.prompt, end: packed.end });
    this.preempted = new Set([...preemptions].filter(([, rows]) => rows.includes(index)).map(([step]) => step));
    this.drafts = new Map(packed.drafts.map(([step, ...counts]) => [step, counts]));
    this.stretches = [];
    this.hits = new Map();
    for (const [, letter, count] of packed.cells.matchAll(/([a-zA-Z.])(\d*)/g)) this.stretch(letter, Number(count || 1));
    this.letters = this.stretches.map((s) => s.letter.repeat(s.length)).join("");
    this.last = this.first + this.letters.length - 1;
    this.fillTokens(packed);
  }

  /* A D, a decode of several tokens, is drawn like any decode. */
  stretch(code, length) {
    const letter = code === "D" ? "d" : code;
    const before = this.stretches.at(-1);
    const start = before ? before.start + before.length : this.first;
    this.codes = (this.codes || "") + code.repeat(length);
    if (before?.letter === letter) before.length += length;
    else this.stretches.push({ letter, start, length });
  }

  fillTokens(packed) {
    const listed = packed.tokens.values(), jumps = new Map(packed.before);
    this.tokens = new Int32Array(this.letters.length);
    this.before = new Int32Array(this.letters.length);
    let computed = 0, held = false;
    for (let i = 0; i < this.letters.length; i++) {
      const code = this.codes[i], step = this.first + i;
      if (this.preempted.has(step) || code === "." || code === "a") [computed, held] = [0, false];
      this.before[i] = computed = jumps.get(i) ?? computed;
      if ("prD".includes(code)) this.tokens[i] = listed.next().value;
      if (code === "d") this.tokens[i] = 1;
      if (!held && this.tokens[i] && computed > 0) this.hits.set(step, computed);
      held = "prdDso".includes(code); // one that was swapped out kept its tokens
      computed = Math.max(computed, 0) + this.tokens[i];
    }
  }

  at(step) { return this.letters[step - this.first] || "."; }
  tokensAt(step) { return this.tokens[step - this.first] || 0; }

  /* Computed tokens when the step began; -1 if the recording does not say. */
  beforeAt(step) { return this.before[step - this.first]; }

  /* Computed tokens after it: those of rejected drafts do not count. */
  afterAt(step) {
    const [offered, accepted] = this.drafts.get(step) || [0, 0];
    return Math.max(this.beforeAt(step), 0) + this.tokensAt(step) - (offered - accepted);
  }
}

function unpackQueue(changes, steps) {
  const queues = new Array(steps).fill(null);
  let queue = [], next = 0;
  for (let step = 0; step < steps; step++) {
    if (changes[next]?.[0] === step) {
      const [, left, come] = changes[next++];
      const gone = new Set(left);
      queue = queue.filter((row) => !gone.has(row));
      for (const [place, row] of come) queue.splice(place, 0, row);
    }
    queues[step] = queue;
  }
  return queues;
}

/* ---- the block pool ---- */

/* Every block has a history: the steps in which something happened to it, and what it was after them.
   A state is {holders: [{row, place}], full, last}; `place` is the block's index in the row's table,
   `full` says that the contents are findable, `last` is the row that the contents are of. */
const UNTOUCHED = { holders: [], full: false, last: null };

export class Pool {
  constructor(packed, run) {
    const { size, blockSize, findable, lostAt } = packed;
    Object.assign(this, { size, blockSize, findable, lostAt });
    this.history = Array.from({ length: this.size }, () => ({ steps: [], states: [], changes: [] }));
    this.changesIn = [];
    const lengths = new Map();
    let k = 0;
    packed.counts.forEach((count, step) => {
      const changes = [];
      for (const end = k + count; k < end; k++) {
        const change = { what: packed.what[k], block: packed.blocks[k], row: run.rows[packed.rows[k]] };
        if (change.block < this.size) this.apply(step, change, lengths);
        changes.push(change);
      }
      this.changesIn.push(changes);
    });
  }

  apply(step, { what, block, row }, lengths) {
    const history = this.history[block];
    const old = history.states.at(-1) || UNTOUCHED;
    const state = { holders: old.holders, full: old.full, last: old.last };
    if ("neh".includes(what)) {
      const place = lengths.get(row) || 0;
      lengths.set(row, place + 1);
      state.holders = [...old.holders, { row, place }];
      if (what !== "h") Object.assign(state, { full: false, last: row });
    } else if (what === "r") {
      lengths.delete(row);
      state.holders = old.holders.filter((holder) => holder.row !== row);
    } else {
      state.full = true;
    }
    if (history.steps.at(-1) === step) {
      history.states[history.states.length - 1] = state;
      history.changes[history.changes.length - 1] += what;
    } else {
      history.steps.push(step);
      history.states.push(state);
      history.changes.push(what);
    }
  }

  /* What a block is after a step; `changesAt` says what happened to it in the step (letters of `what`). */
  blockAt(block, step) {
    const { steps, states } = this.history[block];
    const index = lastAtMost(steps, step);
    return index < 0 ? UNTOUCHED : states[index];
  }

  changesAt(block, step) {
    const { steps, changes } = this.history[block], index = lastAtMost(steps, step);
    return steps[index] === step ? changes[index] : "";
  }

  knows(step) { return this.lostAt === null || step < this.lostAt; }
}

/* Index of the last number that is at most `limit`, in ascending numbers; -1 if there is none. */
export function lastAtMost(numbers, limit) {
  let low = 0, high = numbers.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (numbers[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
