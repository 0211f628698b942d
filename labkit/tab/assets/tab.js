// "Try it here": an editor beside each task of a phase's page, and the words of `make lab-NN` below it.
//
// The page names the phase and its files in #tab; each task that can run here has a <section
// class="try">. One editor is open at a time: several tasks are written in one file.
import * as work from "./work.js";
import { unzipped, zipped } from "./zip.js";
import { Ended, Python } from "./python.js";

const $ = (selector, root = document) => root.querySelector(selector);
const page = JSON.parse($("#tab").textContent); // {phase, number, files, bytes, traced, raced}
const STATE = ".labkit/state.json";
const SAVE_AFTER = 400; // ms without a key
const WORK = /^(labs\/\d\d-[a-z0-9-]+\/[a-z0-9_]+\.py|\.labkit\/state\.json)$/;
const MARKS = { waiting: "·", passed: "✓", failed: "✗", todo: "○", skipped: "-" };

/** An element: make("button", { type: "button", onclick }, "Run"). */
function make(tag, about = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(about)) {
    if (name.startsWith("on")) element[name] = value;
    else if (value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}
const button = (label, onclick, about = {}) => make("button", { type: "button", onclick, ...about }, label);

// ---------------------------------------------------------------- the files

/** The file as the course gives it. */
async function skeleton(path) {
  const response = await fetch(new URL(path, import.meta.url));
  if (!response.ok) throw new Error(`${path}: ${response.status}`);
  return response.text();
}

const unkept = new Map(); // path -> what could not be stored: it is on this page alone

/** What stands in a file now: the learner's text, or the skeleton. */
async function current(path) {
  const kept = unkept.get(path) ?? await work.load(path).catch(() => undefined);
  return kept ?? { path, text: await skeleton(path), revision: undefined };
}

// ---------------------------------------------------------------- the box of one task

const python = new Python((event) => listener?.hear(event));
let open = null; // the box whose editor is open
let listener = null; // the box, or the quiz, for which Python works
let busy = false;

/**
 * Let Python answer a request, with what the course remembers of the learner, and keep that.
 * @param who hears what Python says meanwhile.
 */
async function ask(who, request) {
  const nothing = { text: "{}" }; // and none where nothing can be stored: the worker remembers it then
  const state = await work.load(STATE).then((file) => file ?? nothing).catch(() => undefined);
  const files = { ...(state && { [STATE]: state.text }), ...request.files };
  listener = who;
  const answer = await python.answer({ ...request, files });
  if (answer.files[STATE] !== state?.text) await work.save(STATE, answer.files[STATE], state?.revision).catch(() => {});
  return answer;
}

/**
 * Start Python, and let it answer one request.
 * @param who {status, bar, hear}: where it is shown how far it is, and who hears what Python says.
 * @returns whether it came to its end.
 */
async function askOnce(who, request) {
  if (busy) return void (who.status.textContent = "Python is busy; wait for it, or stop it");
  busy = true;
  who.status.textContent = "Python is being loaded";
  who.bar.hidden = false;
  listener = who;
  try {
    await python.start();
    who.bar.hidden = true;
    who.status.textContent = "";
    await work.alone(() => ask(who, request));
    return true;
  } catch (error) {
    who.status.textContent = error.message;
  } finally {
    busy = false;
    who.bar.hidden = true;
  }
}

const makeBar = () => make("progress", { max: page.bytes, value: 0, hidden: true, "aria-label": "Python is being loaded" });

/** A line of the screen, with its colours. */
const coloured = (parts) => parts.map(([text, style]) => make("span", { class: style }, text));

class Box {
  constructor(section) {
    this.section = section;
    section.box = this; // for the console, and for tests
    this.task = section.dataset.task;
    this.path = section.dataset.file;
    this.functions = section.dataset.functions.split(" ");
    this.begin = button(`Try ${this.task} here`, () => this.open(), { class: "begin" });
    section.replaceChildren(this.begin);
  }

  async open() {
    if (open === this) return this.editor.focus();
    await open?.close();
    open = this;
    const { makeEditor } = await import("./editor.js");
    const file = await current(this.path);
    this.base = file.revision;
    this.field = make("div", { class: "editor" });
    this.status = make("span", { class: "status", role: "status" }, "");
    this.stopButton = button("Stop", () => python.stop(), { hidden: true });
    this.bar = makeBar();
    this.checks = make("p", { class: "checks", "aria-hidden": "true" });
    this.words = make("pre", { class: "words", tabindex: 0, "aria-label": "What was found", hidden: true });
    this.asked = make("div", { class: "asked" });
    this.frame = make("iframe", { class: "steps", title: "A run with your files, step by step", hidden: true });
    this.section.replaceChildren(
      make("p", { class: "whose" }, make("code", {}, this.path), make("span", {}, `task ${this.task}: `,
        ...this.functions.flatMap((name, n) => [n ? ", " : "", button(name, () => this.editor.show([name]), { class: "name" })]))),
      this.field,
      make("div", { class: "keys" },
        button("Run", () => this.run(), { class: "run", title: "Ctrl-Enter" }),
        button(`All of ${page.number}`, () => this.run("")),
        button("Hint", () => this.hint()),
        ...(page.traced ? [button("Watch it run", () => this.watch(), { title: "Blocks and queues, step by step, with your files" })] : []),
        ...(page.raced ? [button("Race it", () => this.do("race", ""), { title: "Your scheduler and the course's, under one load" })] : []),
        button("Reset", () => this.reset(), { title: `The functions of ${this.task} as they were given` }),
        this.stopButton, this.status,
        button("Your work…", () => showWork(), { class: "mine" })),
      this.bar, this.asked, this.checks, this.words, this.frame,
      make("p", { class: "small" }, make("kbd", {}, "Ctrl-Enter"), " runs; ", make("kbd", {}, "Esc"), " then ",
        make("kbd", {}, "Tab"), " leaves the editor. Your text is kept in this browser."));
    this.editor = makeEditor(this.field, file.text, { change: () => this.changed(), run: () => this.run() });
    this.editor.show(this.functions);
    this.editor.focus();
    this.dirty = unkept.has(this.path);
    await this.save();
    if (await python.isHere()) python.start().catch(() => {}); // while the learner reads; Run says what is wrong
  }

  async close() {
    await this.save();
    this.editor.destroy();
    this.section.replaceChildren(this.begin);
    open = null;
  }

  // ---- keeping

  changed() {
    this.dirty = true;
    this.editor.unmark();
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.save(), SAVE_AFTER);
  }

  /** Save what was edited, one save after the other; asks where another tab has saved something else. */
  save() {
    clearTimeout(this.timer);
    this.saving = (this.saving ?? Promise.resolve()).then(() => this.saveNow());
    return this.saving;
  }

  async saveNow() {
    if (!this.dirty) return;
    const text = this.editor.text();
    try {
      const done = await work.save(this.path, text, this.base);
      if (!done.saved) {
        unkept.set(this.path, { path: this.path, text, revision: this.base });
        return this.ask(done.file);
      }
      unkept.delete(this.path);
      this.base = done.revision;
      this.dirty = this.editor.text() !== text;
      this.say("kept");
      navigator.storage?.persist?.().catch(() => {});
    } catch (error) {
      unkept.set(this.path, { path: this.path, text, revision: this.base });
      this.say(`not kept (${error.name}: ${error.message}); it is on this page alone: export it under “Your work”`, true);
    }
  }

  /** Two tabs have written this file: neither text is lost. */
  ask(other) {
    const choose = async (text, lost, why) => {
      await work.backup(this.path, lost, why);
      this.base = other.revision;
      this.asked.replaceChildren();
      this.editor.replace(text);
      this.dirty = true;
      await this.save();
    };
    const mine = this.editor.text();
    this.asked.replaceChildren(make("p", { role: "alert" },
      `Another tab has changed ${this.path}, too. The text that you do not take stays under “Your work”. `,
      button("Take the other tab's", () => choose(other.text, mine, "another tab's was taken")), " ",
      button("Keep this one", () => choose(mine, other.text, "another tab's text"))));
  }

  /** Another tab has saved a file. */
  heard({ path, text, revision }) {
    if (path !== this.path || this.dirty) return; // with edits of our own, save() will ask
    this.base = revision;
    this.editor.replace(text);
  }

  // ---- judging

  run(task = this.task) {
    return this.do("run", task);
  }

  hint() {
    return this.do("hint", this.task);
  }

  /** The first step in which the learner's files and the reference differ. */
  traceDiff() {
    return this.do("trace", "");
  }

  /** A run with the learner's files and one with the reference, to step through. */
  watch() {
    return this.do("watch", "");
  }

  /** The functions of a task as they were given; without one, all files of the phase. */
  async reset(task = this.task) {
    if (!task && !confirm(`Reset all files of phase ${page.number}? What stands there stays under “Your work”.`)) return;
    await this.do("reset", task);
    this.editor.show(this.functions);
  }

  async do(what, task) {
    if (busy) return;
    busy = true;
    listener = this;
    this.began = performance.now();
    this.waiting = new Map();
    this.editor.unmark();
    this.checks.replaceChildren();
    this.words.replaceChildren();
    this.words.hidden = this.frame.hidden = true;
    this.stopButton.hidden = false;
    try {
      await this.save();
      this.say("Python is being loaded");
      this.bar.hidden = false;
      await python.start();
      this.bar.hidden = true;
      this.say(navigator.locks ? "judging" : "judging (close other tabs of the course)");
      await work.alone(() => this.judge(what, task));
    } catch (error) {
      this.tell(error);
    } finally {
      busy = false;
      this.bar.hidden = this.stopButton.hidden = true;
    }
  }

  async judge(what, task) {
    const files = {};
    for (const path of page.files) files[path] = (await current(path)).text;
    files[this.path] = this.editor.text(); // the newest, also where nothing can be stored
    const answer = await ask(this, { do: what, phase: page.phase, task, files });
    const kept = answer.files;
    for (const path of page.files) if (kept[path] !== files[path]) await this.take(path, files[path], kept[path]);
    const seconds = ((performance.now() - this.began) / 1000).toFixed(1);
    this.say(what === "run" ? `${answer.green ? "green" : "not green yet"}, ${seconds} s` : "");
    if (what === "run") this.section.classList.toggle("green", answer.green);
    showProgress();
  }

  /** Python has changed a file: a reset. */
  async take(path, before, text) {
    await work.backup(path, before, "before a reset").catch(() => {});
    if (path !== this.path) return void (await work.save(path, text, (await work.load(path))?.revision));
    this.editor.replace(text);
    this.changed();
  }

  /** What Python says while it works. */
  hear(event) {
    if (event.event === "progress") this.bar.value = event.loaded;
    else if (event.event === "check") this.check(event);
    else if (event.event === "line") this.line(event.parts);
    else if (event.event === "recording") this.play(event.data);
  }

  /** Show both runs in the inspector's page. */
  async play(recording) {
    const shell = await (await fetch(new URL("inspector.html", import.meta.url))).text();
    const data = JSON.stringify(recording).replaceAll("<", "\\u003c");
    this.frame.srcdoc = shell.replace("%RECORDING%", () => data);
    this.frame.hidden = false;
  }

  check({ id, title, outcome }) {
    let mark = this.waiting.get(id);
    if (!mark) {
      mark = make("span", { title });
      this.waiting.set(id, mark);
      this.checks.append(mark);
    }
    mark.textContent = MARKS[outcome] ?? "?";
    mark.className = outcome;
    const done = [...this.waiting.values()].filter((one) => one.className !== "waiting").length;
    this.say(`${done} of ${this.waiting.size} checks`);
  }

  line(parts) {
    this.words.hidden = false;
    const line = make("span", { class: "line" }, ...parts.map(([text, style]) => make("span", { class: style }, ...linked(text, this))), "\n");
    line.style.setProperty("--indent", `${parts[0][0].search(/\S|$/)}ch`);
    this.words.append(line);
    const wrong = parts[0][0].match(/^✗ (labs\/\S+?):(\d+) is not Python/);
    if (wrong && wrong[1] === this.path) this.editor.goToLine(Number(wrong[2]), true);
  }

  /** Python did not come to its end. */
  tell(error) {
    const stood = [...this.waiting.values()].find((mark) => mark.className === "waiting");
    if (error.endless && stood) {
      this.line([[`✗ ${stood.title}`, "red"]]);
      this.line([["  Still running, so it was stopped (endless loop?). A new Python takes its place.", "yellow"]]);
      if (!python.isolated) this.line([["  Load this page once more, and the next one is shown with its line.", "dim"]]);
    } else {
      this.line([[error instanceof Ended ? `Python has ended: ${error.message}` : `${error.name}: ${error.message}`, "red"]]);
    }
    this.say("stopped");
    if (error.endless) python.start().catch(() => {});
  }

  say(text, wrong = false) {
    this.status.textContent = text;
    this.status.classList.toggle("red", wrong);
  }
}

/** Of a line of the screen: commands that are buttons here, places that the editor can go to. */
function linked(text, box) {
  const known = new RegExp(`(make (?:lab|hint|reset|trace-diff)-${page.number}(?:\\.\\d+)?|${RegExp.escape?.(box.path) ?? box.path}:\\d+)`);
  return text.split(known).map((part, n) => {
    if (n % 2 === 0) return part;
    const verb = part.match(/^make ([a-z-]+)-/)?.[1];
    const does = { lab: () => box.run(""), hint: () => box.hint(), reset: () => box.reset(""), "trace-diff": () => box.traceDiff() };
    const act = does[verb] ?? (() => { box.editor.goToLine(Number(part.split(":").pop())); box.editor.focus(); });
    return button(part, act, { class: "link" });
  });
}

// ---------------------------------------------------------------- the quiz

/** Questions of the phase, and those of all phases that are due again. */
class Quiz {
  constructor(section) {
    this.section = section;
    this.status = make("span", { class: "status", role: "status" });
    this.bar = makeBar();
    this.body = make("div");
    section.replaceChildren(
      make("h2", {}, `Predict what the engine does`),
      make("p", {}, "Fresh numbers each time; the engine itself gives the answers."),
      make("div", { class: "keys" },
        button(`Questions of ${page.number}`, () => this.begin(page.number), { class: "run" }),
        button("What is due again, of all phases", () => this.begin("")), this.status),
      this.bar, this.body);
    section.hidden = false;
  }

  async begin(number) {
    this.questions = [];
    this.counts = { right: 0, wrong: 0, skipped: 0 };
    this.body.replaceChildren();
    await this.ask({ do: "quiz", number, seed: crypto.getRandomValues(new Uint32Array(1))[0] });
    if (this.questions.length) this.show(0);
  }

  ask(request) {
    return askOnce(this, request);
  }

  hear(event) {
    if (event.event === "progress") this.bar.value = event.loaded;
    else if (event.event === "question") this.questions.push(event);
    else if (event.event === "verdict") this.verdict = event.verdict;
    else if (event.event === "line") this.body.append(make("p", { class: "said" }, ...coloured(event.parts)));
  }

  show(index) {
    const { text, choices } = this.questions[index];
    const field = choices.length
      ? make("p", { class: "choices" }, ...choices.map((choice) => button(choice, () => this.say(index, choice))))
      : make("form", { onsubmit: (event) => { event.preventDefault(); this.say(index, field.elements.answer.value); } },
        make("input", { name: "answer", autocomplete: "off", "aria-label": "Your answer" }), " ",
        make("button", { class: "run" }, "Answer"));
    this.body.replaceChildren(
      make("p", { class: "small" }, `${index + 1} of ${this.questions.length}`), make("p", { class: "question" }, text), field,
      make("p", {}, button("Skip", () => this.say(index, ""))));
    $("input, .choices button", this.body).focus();
  }

  async say(index, said) {
    const { kind, seed } = this.questions[index];
    this.verdict = "";
    this.body.querySelectorAll(".said").forEach((line) => line.remove());
    await this.ask({ do: "say", kind, seed, said });
    if (!this.verdict) return; // it was no answer: one more try
    this.counts[this.verdict]++;
    this.body.querySelectorAll("button, input").forEach((one) => { one.disabled = true; });
    const next = index + 1 < this.questions.length
      ? button("Next", () => this.show(index + 1), { class: "run" })
      : make("b", {}, `${this.counts.right} of ${this.counts.right + this.counts.wrong} right. The others come back when they are due.`);
    this.body.append(next);
    next.focus();
  }
}

// ---------------------------------------------------------------- the learner's work

const dialog = make("dialog", { class: "work-dialog", "aria-label": "Your work" });

async function showWork() {
  await open?.save();
  dialog.classList.remove("wide");
  const files = await work.all().catch(() => null);
  const earlier = open ? await work.backups(open.path).catch(() => []) : [];
  const choose = make("input", { type: "file", accept: ".zip,application/zip", hidden: true, onchange: () => take(choose.files[0]) });
  dialog.replaceChildren(
    make("h2", {}, "Your work"),
    make("p", {}, `It lies in this browser, on this device, under ${location.origin}, and nowhere else: no server gets it, and no other `,
      "browser or device sees it. A browser may delete it when space is short, or with its history. An export is a file that you keep."),
    files === null ? make("p", { class: "red" }, "This browser does not let the page store anything (a private window, perhaps). What you write is on this page alone; export it before you leave.")
      : make("ul", {}, ...files.filter((file) => file.path !== STATE).map((file) => make("li", {}, make("code", {}, file.path), ` ${file.text.length} characters`))),
    make("p", {},
      button("Progress and portfolio", () => showReport()), " ",
      button("Export as zip", () => hand()), " ", button("Import a zip…", () => choose.click()), choose, " ",
      button("Delete all of it…", () => forget(), { class: "red" }), " ", button("Close", () => dialog.close())),
    make("p", { class: "small" }, "On your machine, in a checkout of the course: ", make("code", {}, "python -m labkit import mini_vllm-work.zip"),
      " puts it into labs/, and keeps a backup of what stands there."),
    make("p", { role: "status", class: "said" }), make("p", { role: "status", class: "joined" }), makeBar(),
    ...(earlier.length ? [make("details", {}, make("summary", {}, `Earlier texts of ${open.path}`),
      make("ul", {}, ...earlier.map((one) => make("li", {}, `${one.when.slice(0, 16).replace("T", " ")} UTC, ${one.why} `,
        button("Bring it back", () => bringBack(one))))))] : []));
  if (!dialog.open) dialog.showModal();
}

const told = (text) => { $(".said", dialog).textContent = text; };

/** All that was written here, {path: text}: what could not be stored, too. */
async function everything() {
  const files = [...await work.all().catch(() => []), ...unkept.values()];
  if (open) files.push({ path: open.path, text: open.editor.text() });
  return Object.fromEntries(files.map((file) => [file.path, file.text]));
}

function download(blob, name) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

async function hand() {
  const texts = await everything();
  download(zipped(texts), "mini_vllm-work.zip");
  told(`${Object.keys(texts).length} files in mini_vllm-work.zip`);
}

/** Take an export in: all of its files or none. What stood there stays under "Earlier texts". */
async function take(file) {
  let said = "";
  try {
    if (busy) throw new Error("Python is busy; wait for it, or stop it");
    const { texts, left } = await unzipped(file, (path) => WORK.test(path));
    const names = Object.keys(texts).filter((path) => path !== STATE);
    if (!names.length) throw new Error("it holds no labs/NN-name/file.py");
    await open?.save();
    if (unkept.size) throw new Error(`${[...unkept.keys()].join(", ")} is not kept yet, and would be lost; export it first`);
    const theirs = texts[STATE];
    if (await work.load(STATE)) delete texts[STATE]; // both are joined below
    await work.saveAll(texts, "before an import");
    if (open && open.path in texts) open.heard(await work.load(open.path));
    said = `${names.length} files taken in${left.length ? `; left out: ${left.slice(0, 5).join(", ")}${left.length > 5 ? ", …" : ""}` : ""}`;
    await showWork();
    told(said);
    if (theirs && !(STATE in texts)) await join(theirs);
  } catch (error) {
    const why = error instanceof DOMException ? `${error.name}: ${error.message}` : error.message;
    told(said ? `${said}. ${why}` : `${file.name} was not taken in: ${why}. Nothing has changed.`);
  }
  showProgress();
}

/** What the course remembers here, and what an export has of it, become one. */
async function join(theirs) {
  const who = { status: $(".joined", dialog), bar: $("progress", dialog), hear() {} };
  if (!await askOnce(who, { do: "join", theirs })) who.status.textContent = `Which tasks had passed was not taken in: ${who.status.textContent}`;
}

/** Progress and the portfolio's page, as they will be on a machine that takes the export in. */
class Report {
  constructor() {
    this.status = make("p", { role: "status", class: "said" });
    this.bar = makeBar();
    this.words = make("pre", { class: "words", tabindex: 0, "aria-label": "Progress", hidden: true });
    this.frame = make("iframe", { title: "Portfolio", hidden: true });
    this.keep = button("Save the portfolio", () => download(new Blob([this.page], { type: "text/html" }), "portfolio.html"), { hidden: true });
  }

  hear(event) {
    if (event.event === "progress") this.bar.value = event.loaded;
    else if (event.event === "line") this.words.append(make("span", { class: "line" }, ...coloured(event.parts), "\n"));
    else if (event.event === "portfolio") this.page = event.page;
    this.words.hidden = !this.words.childNodes.length;
  }

  show() {
    if (this.page) this.frame.srcdoc = this.page;
    this.frame.hidden = this.keep.hidden = !this.page;
  }
}

async function showReport() {
  await open?.save();
  const report = new Report(), files = await everything();
  delete files[STATE]; // it comes from the storage, with each request
  dialog.classList.add("wide");
  dialog.replaceChildren(make("h2", {}, "Progress and portfolio"), report.status, report.bar, report.words,
    make("p", {}, report.keep, " ", button("Your work…", () => showWork()), " ", button("Close", () => dialog.close())), report.frame);
  if (await askOnce(report, { do: "report", labs: files })) report.show();
}

async function bringBack(one) {
  await work.backup(one.path, open.editor.text(), "before an earlier text came back");
  open.editor.replace(one.text);
  open.changed();
  dialog.close();
}

async function forget() {
  if (!confirm("Delete everything that you have written in this course in this browser, with its earlier texts? An export is the only way back.")) return;
  try {
    await work.forget();
    if (open) open.dirty = false;
    unkept.clear();
    await open?.close();
    dialog.close();
  } catch (error) {
    told(`Not deleted: ${error.message}`);
  }
  showProgress();
}

/** Which tasks are green, beside their boxes. */
async function showProgress() {
  const state = await work.load(STATE).catch(() => undefined);
  let passed = [];
  try { passed = JSON.parse(state?.text ?? "{}").phases?.[page.phase]?.passed ?? []; } catch { /* as if nothing were kept */ }
  for (const box of boxes) box.section.classList.toggle("green", passed.includes(box.task));
}

// ---------------------------------------------------------------- the page

const boxes = [...document.querySelectorAll(".try")].map((section) => new Box(section));
if ($("#quiz")) new Quiz($("#quiz"));
document.body.append(dialog);
work.onSaved((file) => { open?.heard(file); if (file.path === STATE || !file.path) showProgress(); });
addEventListener("visibilitychange", () => { if (document.hidden) open?.save(); });
addEventListener("beforeunload", (event) => { if (unkept.size) event.preventDefault(); });
/** Before the page is loaded anew (offline.js): whether all that was written here is kept. */
window.keepWork = async () => {
  await open?.save();
  return unkept.size === 0;
};
showProgress();
