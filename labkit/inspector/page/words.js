/* A step, a request, a block, in words: for the pointer, the details and screen readers. */

import { PHASES } from "./recording.js";

export function summarise(run, step) {
  if (step >= run.steps) return `Step ${step}: this run has ended${run.error ? `: ${run.error}` : ""}.`;
  const at = run.at(step);
  const parts = [[at.p, "prefill"], [at.r, "compute again"], [at.d, "decode"], [at.preempted, "preempted"],
    [at.ended, "ended"], [at.a, "aborted"], [[...at.w, ...at.q], "waiting"]];
  const said = parts.filter(([rows]) => rows.length).map(([rows, name]) => `${rows.length} ${name}`);
  const [drafts, accepted] = run.draftsAt(step);
  if (drafts) said.push(`${accepted} of ${drafts} drafts accepted`);
  return `Step ${step}: ${ofBudget(run, step)}${said.length ? `; ${said.join(", ")}` : ""}. ${run.free[step]} blocks free.`;
}

function ofBudget(run, step) {
  const tokens = run.tokensAt(step);
  return run.budget ? `${tokens} of ${run.budget} tokens` : `${tokens} token${tokens === 1 ? "" : "s"}`;
}

export function describeBudget(run, step) {
  const phases = [["p", "prefill"], ["r", "computed again"], ["d", "decode"]].filter(([phase]) => run.totals[phase][step]);
  const [drafts, accepted] = run.draftsAt(step);
  return [`step ${step}: ${ofBudget(run, step)}`, ...phases.map(([phase, name]) => `${run.totals[phase][step]} ${name}`),
    ...(drafts ? [`of them ${drafts} drafts, ${accepted} accepted`] : [])];
}

export function describeFill(run, step) {
  const usable = run.pool.size - 1, free = run.free[step];
  return [`step ${step}`, `${usable - free} of ${usable} blocks in use, ${free} free`];
}

/* One request in one step. */
export function describeCell(row, step) {
  const letter = row.at(step), lines = [`${row.id} · step ${step}`];
  if ("prd".includes(letter)) lines.push(...describeTokens(row, step, letter));
  else lines.push(PHASES[letter]);
  if (row.preempted.has(step)) lines.push("preempted in this step: its blocks are taken");
  if (row.end && row.last === step) lines.push(`ended: ${row.end[0]} (${row.end[1]})`);
  return lines;
}

function describeTokens(row, step, letter) {
  const tokens = row.tokensAt(step), before = row.beforeAt(step), hits = row.hits.get(step);
  const verb = { p: "prefill", r: "computes again", d: "decodes" }[letter];
  const prompt = row.prompt === null ? "" : `, prompt ${row.prompt}`;
  return [
    `${verb}: ${tokens} token${tokens === 1 ? "" : "s"}`,
    before < 0 ? "computed before: not in the recording" : `computed ${before} → ${row.afterAt(step)}${prompt}`,
    ...describeDrafts(row.drafts.get(step)),
    ...(hits ? [`${hits} tokens came from the prefix cache`] : []),
  ];
}

export function describeDrafts(counts) {
  if (!counts) return [];
  const [drafts, accepted] = counts;
  return [`drafts: ${accepted} of ${drafts} accepted, so ${accepted + 1} token${accepted ? "s" : ""} in one step`];
}

const CHANGES = {
  n: "given out", e: "given out; what it held is evicted", h: "found in the cache", r: "let go", f: "filled",
};

/* One block after one step. */
export function describeBlock(run, block, step) {
  if (block === 0) return ["block 0", "the null block: never given out"];
  const { pool } = run, { holders, full, last } = pool.blockAt(block, step), lines = [`block ${block} · step ${step}`];
  for (const { row, place } of holders.slice(0, 6)) {
    const tokens = pool.blockSize ? `: tokens ${place * pool.blockSize} to ${(place + 1) * pool.blockSize - 1}` : "";
    lines.push(`${row.id}, block ${place} of its table${tokens}`);
  }
  if (holders.length > 6) lines.push(`and ${holders.length - 6} more`);
  if (!holders.length) lines.push(full ? `free; still holds what ${last.id} wrote` : "free");
  else if (pool.findable) lines.push(full ? "full: others can find it" : "not full yet");
  for (const what of new Set(pool.changesAt(block, step))) lines.push(`in this step: ${CHANGES[what]}`);
  return lines;
}
