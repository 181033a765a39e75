// Colours of tokens: literal pairs of ground and ink, legible alone, told apart by the colour-blind.

// Blue to orange through nothing; each ink has a contrast of at least 4.5 to its ground.
export const DIVERGING = [
  ["#0b4f8a", "#ffffff"], ["#2f74b5", "#ffffff"], ["#9cc4e6", "#000000"], ["#d3e5f4", "#000000"],
  null,
  ["#fce0c3", "#000000"], ["#f9b97a", "#000000"], ["#d97706", "#000000"], ["#9a4a00", "#ffffff"],
];
export const RISING = [
  null, ["#fdf0c4", "#000000"], ["#f9d777", "#000000"], ["#f2b04a", "#000000"],
  ["#dd7f3a", "#000000"], ["#b3452f", "#ffffff"], ["#84265b", "#ffffff"], ["#4c1868", "#ffffff"],
];
export const WORDS = [
  null, ["#2f74b5", "#ffffff"], ["#f9b97a", "#000000"], ["#1b6e3c", "#ffffff"],
  ["#84265b", "#ffffff"], ["#f9d777", "#000000"], ["#555555", "#ffffff"],
];

/** How a token column is coloured: a function from value to `[ground, ink]` or null, a legend. */
export function makeScale(column, policyOnly) {
  if (column.kind === "word") return wordScale(column);
  const finite = column.values.filter((x, at) => Number.isFinite(x) && policyOnly(at));
  if (!finite.length) return { pick: () => null, legend: [], note: "no values" };
  const sorted = finite.slice().sort((a, b) => a - b);
  const at = (share) => sorted[Math.round(share * (sorted.length - 1))];
  const centre = column.centre;
  if (centre != null) {
    const reach = Math.max(Math.abs(at(0.98) - centre), Math.abs(at(0.02) - centre)) || 1;
    return ramp(DIVERGING, centre - reach, centre + reach, sorted);
  }
  const [low, high] = [at(0.02), at(0.98)];
  if (low === high) return { pick: () => null, legend: [[null, low]], note: "nearly all the same" };
  return column.high === "low" ? ramp(RISING, high, low, sorted) : ramp(RISING, low, high, sorted);
}

function ramp(colours, from, to, sorted) {
  const span = to - from || 1;
  const steps = colours.length;
  const bin = (x) => Math.max(0, Math.min(steps - 1, Math.floor(((x - from) / span) * steps)));
  const [low, high] = [Math.min(from, to), Math.max(from, to)];
  const beyond = sorted.filter((x) => x < low || x > high).length;
  return {
    pick: (x) => (Number.isFinite(x) ? colours[bin(x)] : null),
    legend: colours.map((pair, at) => [pair, from + ((at + 0.5) / steps) * span]),
    note: beyond ? `${beyond} tokens lie beyond the ends` : "",
  };
}

function wordScale(column) {
  const pair = (x) => WORDS[x % WORDS.length];
  return {
    pick: (x) => pair(x),
    legend: column.words.map((word, at) => [pair(at), word]),
    note: "",
  };
}
