// One sample: facts, rewards, and its tokens coloured by any number held for them.

import { makeScale } from "./colours.js";
import { make, number, visible } from "./text.js";

const SOURCES = ["prompt", "policy", "environment"];

/** The sample's element; `colour` is the column to start with, `onColour` hears of another one. */
export function drawSample(sample, { colour, onColour }) {
  const names = Object.keys(sample.columns);
  const chosen = names.includes(colour) ? colour : (sample.colour ?? names[0]);
  const readout = make("output", { class: "nb-readout", "aria-live": "polite" },
    "Hover a token, or focus the text and use the arrow keys.");
  const legend = make("div", { class: "nb-legend", "aria-label": "legend" });
  const text = make("div", {
    class: "nb-tokens", tabindex: 0, role: "textbox", "aria-readonly": "true",
    "aria-multiline": "true", "aria-label": `tokens of ${visible(sample.id)}`, dir: "auto",
  });
  const spans = drawTokens(sample, text);
  const picker = make("select", { "aria-label": "colour tokens by" },
    ...names.map((n) => make("option", { value: n, selected: n === chosen }, visible(n))));
  const paint = () => {
    paintTokens(sample, spans, picker.value, legend);
    onColour(picker.value);
  };
  picker.addEventListener("change", paint);
  hoverTokens(sample, spans, text, readout);
  const head = make("div", { class: "nb-bar" },
    make("label", {}, "colour by ", picker), legend);
  const element = make("section", { class: "nb-sample", "aria-label": "sample" },
    drawFacts(sample), drawRewards(sample), head, text, readout);
  if (sample.note) element.append(make("div", { class: "nb-note" }, visible(sample.note)));
  paint();
  return { element, picker, text, next: () => stepColour(picker, paint) };
}

function stepColour(picker, paint) {
  picker.selectedIndex = (picker.selectedIndex + 1) % picker.options.length;
  paint();
}

function drawFacts(sample) {
  const rows = sample.facts.map(([name, value]) =>
    make("div", { class: "nb-fact" }, make("span", { class: "nb-name" }, visible(name)), " ",
      make("span", { class: "nb-said", dir: "auto" }, factText(value))));
  return make("div", { class: "nb-facts" }, ...rows);
}

function factText(value) {
  if (typeof value === "boolean") return value ? "yes" : "no";
  return typeof value === "number" ? number(value) : visible(value, true);
}

function drawRewards(sample) {
  if (!sample.rewards.length) return null;
  const head = ["reward", "value", "status", "error", "seconds", "extras"];
  const row = (cells) => make("tr", {}, ...cells.map((c) =>
    make("td", { class: typeof c === "number" ? "nb-number" : "", dir: "auto" },
      typeof c === "number" ? number(c) : visible(c ?? "", true))));
  return make("table", { class: "nb-rewards" },
    make("thead", {}, make("tr", {}, ...head.map((h) => make("th", { scope: "col" }, h)))),
    make("tbody", {}, ...sample.rewards.map(row)));
}

function drawTokens(sample, into) {
  const pieces = document.createDocumentFragment();
  const spans = [];
  let first = 0;
  let before = -1;
  sample.spans.forEach(([text, count], at) => {
    const source = sample.source[first];
    if (source !== before) {
      pieces.append(make("span", { class: "nb-turn", "aria-hidden": "true" }, SOURCES[source]));
      before = source;
    }
    const span = document.createElement("span");
    span.textContent = visible(text, true) || "\u2205";
    span.className = `nb-t nb-s${source}`;
    span.dataset.at = at;
    pieces.append(span);
    spans.push({ span, first, count });
    first += count;
  });
  into.append(pieces);
  return spans;
}

function paintTokens(sample, spans, name, legend) {
  const column = sample.columns[name];
  const scale = makeScale(column, (at) => column.everywhere || sample.source[at] === 1);
  for (const { span, first, count } of spans) {
    let value = column.values[first];
    // A span of several tokens shows the one that stands out most.
    for (let at = first + 1; at < first + count; at++) {
      const other = column.values[at];
      if (Math.abs(other) > Math.abs(value) || Number.isNaN(value)) value = other;
    }
    const applies = column.everywhere || sample.source[first] === 1;
    const pair = applies && value != null ? scale.pick(value) : null;
    span.style.backgroundColor = pair ? pair[0] : "";
    span.style.color = pair ? pair[1] : "";
    span.classList.toggle("nb-minus", applies && column.centre != null && value < column.centre);
  }
  legend.replaceChildren(...scale.legend.map(([pair, label]) => {
    const box = make("span", { class: "nb-key" }, typeof label === "number" ? number(label) : visible(label));
    if (pair) [box.style.backgroundColor, box.style.color] = pair;
    return box;
  }), make("span", { class: "nb-note" },
    [column.unit, column.centre != null ? "underlined: below the middle" : "", scale.note].filter(Boolean).join("; ")));
}

/** Every number that is held for the tokens of a span, one token after the other. */
export function describeSpan(sample, { first, count }) {
  const told = [];
  for (let at = first; at < first + count; at++) {
    const numbers = Object.entries(sample.columns)
      .filter(([, c]) => c.values[at] != null && !Number.isNaN(c.values[at]))
      .map(([n, c]) => `${visible(n)} ${c.kind === "word" ? visible(c.words[c.values[at]]) : number(c.values[at])}`);
    told.push(`token ${at}, id ${sample.ids[at]}: ${numbers.join(", ")}`);
  }
  return told.join(" \u00b7 ");
}

function hoverTokens(sample, spans, text, readout) {
  let current = -1;
  const show = (at) => {
    spans[current]?.span.classList.remove("nb-current");
    current = at;
    const found = spans[at];
    found.span.classList.add("nb-current");
    const [shown] = sample.spans[at];
    readout.textContent = `\u201c${visible(shown)}\u201d \u2014 ${describeSpan(sample, found)}`;
  };
  text.addEventListener("mouseover", (event) => {
    const at = event.target.dataset?.at;
    if (at !== undefined) show(Number(at));
  });
  text.addEventListener("keydown", (event) => {
    const step = { ArrowRight: 1, ArrowLeft: -1, Home: -spans.length, End: spans.length }[event.key];
    if (!step || !spans.length) return;
    event.preventDefault();
    event.stopPropagation();
    show(Math.max(0, Math.min(spans.length - 1, current + step)));
    spans[current].span.scrollIntoView({ block: "nearest" });
  });
}
