/* Colours: those of the style sheet, read once per theme, and one for every request. */

export const palette = {};

const NAMES = ["paper", "ink", "soft", "faint", "line", "hairline", "accent", "prefill", "recompute", "decode", "idle",
  "waiting", "requeued", "elsewhere", "preempted", "ended", "hit", "fill", "difference",
  "accepted", "rejected"];

export function readPalette() {
  colours = [];
  const style = getComputedStyle(document.documentElement);
  for (const name of NAMES) palette[name] = style.getPropertyValue(`--${name}`).trim();
  palette.dark = style.colorScheme === "dark";
  palette.mono = style.getPropertyValue("--mono");
  palette.sans = style.getPropertyValue("--sans");
  Object.assign(palette, { p: palette.prefill, r: palette.recompute, d: palette.decode, s: palette.idle,
    w: palette.waiting, q: palette.requeued, o: palette.elsewhere, a: palette.ended });
}

/* Golden-angle steps keep neighbours apart; three levels of lightness tell nearly equal hues apart. */
export function requestColour(index) {
  return (colours[index] ??= mixColour(index));
}

let colours = [];

function mixColour(index) {
  const light = (palette.dark ? [0.7, 0.6, 0.79] : [0.64, 0.54, 0.73])[index % 3];
  return `oklch(${light} 0.115 ${((50 + index * 137.508) % 360).toFixed(0)})`;
}

const KEY = "mini_vllm.inspector.theme";

export function startTheme(onChange) {
  const system = matchMedia("(prefers-color-scheme: dark)");
  const apply = (theme) => {
    document.documentElement.dataset.theme = theme || (system.matches ? "dark" : "light");
    readPalette();
    onChange();
  };
  system.addEventListener("change", () => apply(remembered()));
  apply(remembered());
  return () => {
    const next = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    const usual = system.matches ? "dark" : "light";
    remember(next === usual ? null : next);
    apply(next);
  };
}

/* Storage may be forbidden for pages opened from a file. */
function remembered() {
  try { return localStorage.getItem(KEY); } catch { return null; }
}

function remember(theme) {
  try {
    if (theme) localStorage.setItem(KEY, theme);
    else localStorage.removeItem(KEY);
  } catch { /* then the choice lasts as long as the page */ }
}
