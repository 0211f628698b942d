/* The current step in words and numbers, as ordinary HTML. */

import { requestColour } from "./theme.js";
import { describeCell, summarise } from "./words.js";

const MOST = 24;

export function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) {
    if (key in made && key !== "style") made[key] = value;
    else made.setAttribute(key, value);
  }
  made.append(...children.filter((child) => child !== null));
  return made;
}

export function showDetails(root, run, step, select) {
  root.replaceChildren(element("p", { className: "summary" }, summarise(run, step)));
  if (step >= run.steps) return;
  const at = run.at(step);
  root.append(...[
    prompts([...at.p, ...at.r], step, select),
    chips("Decode, one token each", at.d.filter((row) => row.tokensAt(step) === 1), step, select),
    drafts(at.d.filter((row) => row.drafts.has(step)), step, select),
    chips("Decode, several tokens", several(at.d, step), step, select),
    chips("Run, but got no tokens", at.s, step, select),
    chips("Preempted, in this order", at.preempted, step, select),
    ended(at, step, select),
    chips("Waiting, the next one first", run.queueAt(step), step, select),
    chips("Swapped out: unfinished, in neither queue", at.o, step, select),
    blocks(run, step),
    images(run, step, select),
  ].filter(Boolean));
}

function section(title, ...children) {
  return element("section", {}, element("h3", {}, title), ...children);
}

function chip(row, step, select) {
  const dot = element("i", { style: `background:${requestColour(row.index)}` });
  const title = describeCell(row, step).join("\n");
  return element("button", { type: "button", className: "chip", title, onclick: () => select(row.id) }, dot, row.id);
}

function andMore(rows) {
  return rows.length > MOST ? element("span", { className: "more" }, `and ${rows.length - MOST} more`) : null;
}

function chips(title, rows, step, select) {
  if (!rows.length) return null;
  const shown = rows.slice(0, MOST).map((row) => chip(row, step, select));
  return section(`${title} · ${rows.length}`, element("p", { className: "chips" }, ...shown, andMore(rows)));
}

function several(rows, step) {
  return rows.filter((row) => row.tokensAt(step) > 1 && !row.drafts.has(step));
}

/* A mark for each draft, in the order in which they were judged. */
function drafts(rows, step, select) {
  if (!rows.length) return null;
  const lines = rows.slice(0, MOST).map((row) => {
    const [offered, accepted] = row.drafts.get(step);
    const marks = Array.from({ length: offered }, (_, i) => element("i", { className: i < accepted ? "accepted" : "rejected" }));
    const said = ` ${accepted} of ${offered} accepted: +${accepted + 1} token${accepted ? "s" : ""}`;
    return element("li", {}, chip(row, step, select), element("span", { className: "drafts" }, ...marks), said);
  });
  return section(`Drafts verified · ${rows.length}`, element("ul", {}, ...lines), andMore(rows));
}

function prompts(rows, step, select) {
  if (!rows.length) return null;
  const names = ["request", "computes", "tokens", "computed", "cached"];
  const heads = names.map((name, i) => element("th", { className: i > 1 ? "number" : "", scope: "col" }, name));
  const lines = rows.slice(0, MOST).map((row) => promptLine(row, step, select));
  const table = element("table", {}, element("thead", {}, element("tr", {}, ...heads)), element("tbody", {}, ...lines));
  return section(`Prefill, and what is computed again · ${rows.length}`, table, andMore(rows));
}

function promptLine(row, step, select) {
  const before = row.beforeAt(step), tokens = row.tokensAt(step), letter = row.at(step);
  const whole = letter === "p" && row.prompt !== null ? ` of ${row.prompt}` : "";
  const computed = before < 0 ? "?" : `${before} → ${before + tokens}${whole}`;
  const number = (text, name = "number") => element("td", { className: name }, String(text));
  return element("tr", { className: letter },
    element("td", {}, chip(row, step, select)),
    element("td", {}, letter === "r" ? "again" : "prefill"),
    number(tokens), number(computed), number(row.hits.get(step) || "", "number hit"));
}

function ended(at, step, select) {
  const rows = [...at.ended, ...at.a];
  if (!rows.length) return null;
  const lines = rows.slice(0, MOST).map((row) => {
    const [status, reason] = row.end, words = status.replace("FINISHED_", "").replaceAll("_", " ").toLowerCase();
    return element("li", {}, chip(row, step, select), ` ${words} (${reason})`);
  });
  return section(`Ended · ${rows.length}`, element("ul", {}, ...lines), andMore(rows));
}

function blocks(run, step) {
  if (!run.pool.knows(step)) return null;
  const count = (letters) => run.pool.changesIn[step].filter(({ what }) => letters.includes(what)).length;
  const kinds = [["ne", "given out"], ["e", "of them losing old contents"], ["h", "found in the cache"], ["r", "let go"],
    ["f", "filled"]];
  const said = kinds.filter(([letters]) => count(letters)).map(([letters, name]) => `${count(letters)} ${name}`);
  return said.length ? section("Blocks", element("p", {}, said.join(", "))) : null;
}

/* What the encoder does in this step: pictures by request, counted from 0 in its prompt. */
function images(run, step, select) {
  const found = run.images.get(step);
  if (!found) return null;
  const lines = found.encoded.slice(0, MOST).map(([row, places]) =>
    element("li", {}, chip(row, step, select), ` encodes image ${places.join(", ")}`));
  if (found.forgotten) lines.push(element("li", {}, `${found.forgotten} let go by the encoder cache`));
  return section("Encoder", element("ul", {}, ...lines), andMore(found.encoded));
}

/* Both sides of the first difference. */
export function showDifference(root, difference, names) {
  const title = difference ? `First difference: step ${difference.step}` : "The two runs are equal, step for step.";
  root.append(element("summary", {}, title));
  if (!difference) return;
  const rows = difference.fields.map(([name, left, right]) => element("tr", {}, element("th", { scope: "row" }, name),
    element("td", {}, element("code", {}, left)), element("td", {}, element("code", {}, right))));
  const head = element("tr", {}, element("td"), ...names.map((name) => element("th", { scope: "col" }, name)));
  root.append(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}
