/* The current step in words and numbers, as ordinary HTML. */

import { describeCell } from "./timeline.js";
import { requestColour } from "./theme.js";

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

/* One sentence: read aloud by screen readers, and shown above the details. */
export function summarise(run, step) {
  if (step >= run.steps) return `Step ${step}: this run has ended${run.error ? `: ${run.error}` : ""}.`;
  const at = run.at(step), tokens = run.tokensAt(step), budget = run.config.max_num_batched_tokens;
  const parts = [[at.p.length, "prefill"], [at.r.length, "compute again"], [at.d.length, "decode"], [at.preempted.length, "preempted"],
    [at.ended.length, "ended"], [at.a.length, "aborted"], [at.w.length + at.q.length, "waiting"]];
  const said = parts.filter(([count]) => count).map(([count, name]) => `${count} ${name}`).join(", ");
  return `Step ${step}: ${tokens}${budget ? ` of ${budget}` : ""} token${tokens === 1 && !budget ? "" : "s"}${said ? `; ${said}` : ""}. ${run.free[step]} blocks free.`;
}

export function showDetails(root, run, step, select) {
  root.replaceChildren(element("p", { className: "summary" }, summarise(run, step)));
  if (step >= run.steps) return;
  const at = run.at(step);
  root.append(...[
    prompts([...at.p, ...at.r], step, select),
    chips("Decode, one token each", at.d.filter((row) => row.tokensAt(step) === 1), step, select),
    chips("Decode, several tokens", at.d.filter((row) => row.tokensAt(step) > 1), step, select),
    chips("Run, but got no tokens", at.s, step, select),
    chips("Preempted, in this order", at.preempted, step, select),
    ended(at, step, select),
    chips("Waiting, the next one first", run.queueAt(step), step, select),
    chips("Swapped out: unfinished, in neither queue", at.o, step, select),
    blocks(run, step),
  ].filter(Boolean));
}

function section(title, ...children) {
  return element("section", {}, element("h3", {}, title), ...children);
}

function chip(row, step, select, text = row.id) {
  const dot = element("i", { style: `background:${requestColour(row.index)}` });
  return element("button", { type: "button", className: "chip", title: describeCell(row, step).join("\n"), onclick: () => select(row.id) }, dot, text);
}

function chips(title, rows, step, select) {
  if (!rows.length) return null;
  const more = rows.length > MOST ? element("span", { className: "more" }, `and ${rows.length - MOST} more`) : null;
  return section(`${title} · ${rows.length}`, element("p", { className: "chips" }, ...rows.slice(0, MOST).map((row) => chip(row, step, select)), more));
}

function prompts(rows, step, select) {
  if (!rows.length) return null;
  const lines = rows.slice(0, MOST).map((row) => {
    const before = row.beforeAt(step), tokens = row.tokensAt(step);
    const known = before < 0 ? "?" : `${before} → ${before + tokens}`;
    const whole = row.at(step) === "p" && row.prompt !== null ? ` of ${row.prompt}` : "";
    return element("tr", { className: row.at(step) },
      element("td", {}, chip(row, step, select)),
      element("td", {}, row.at(step) === "r" ? "again" : "prefill"),
      element("td", { className: "number" }, String(tokens)),
      element("td", { className: "number" }, known + whole),
      element("td", { className: "number hit" }, row.hitAt(step) ? String(row.hitAt(step)) : ""));
  });
  const names = ["request", "computes", "tokens", "computed", "cached"];
  const head = element("tr", {}, ...names.map((name, i) => element("th", { className: i > 1 ? "number" : "", scope: "col" }, name)));
  const more = rows.length > MOST ? [element("p", { className: "more" }, `and ${rows.length - MOST} more`)] : [];
  return section(`Prefill, and what is computed again · ${rows.length}`, element("table", {}, element("thead", {}, head), element("tbody", {}, ...lines)), ...more);
}

function ended(at, step, select) {
  const rows = [...at.ended, ...at.a];
  if (!rows.length) return null;
  const lines = rows.slice(0, MOST).map((row) => element("li", {}, chip(row, step, select), ` ${row.end ? `${row.end[0].replace("FINISHED_", "").toLowerCase().replace("_", " ")} (${row.end[1]})` : ""}`));
  return section(`Ended · ${rows.length}`, element("ul", {}, ...lines));
}

function blocks(run, step) {
  if (!run.pool.knows(step)) return null;
  const count = (letters) => run.pool.changesIn[step].filter(({ what }) => letters.includes(what)).length;
  const said = [[count("ne"), "given out"], [count("e"), "of them losing old contents"], [count("h"), "found in the cache"], [count("r"), "let go"], [count("f"), "filled"]]
    .filter(([n]) => n).map(([n, name]) => `${n} ${name}`);
  return said.length ? section("Blocks", element("p", {}, said.join(", "))) : null;
}

/* Both sides of the first difference. */
export function showDifference(root, difference, names) {
  root.append(element("summary", {}, difference ? `First difference: step ${difference.step}` : "The two runs are equal, step for step."));
  if (!difference) return;
  const rows = difference.fields.map(([name, left, right]) => element("tr", {}, element("th", { scope: "row" }, name),
    element("td", {}, element("code", {}, left)), element("td", {}, element("code", {}, right))));
  const head = element("tr", {}, element("td"), ...names.map((name) => element("th", { scope: "col" }, name)));
  root.append(element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}
