// The table of samples: head with sort and filters, one page of rows, a pager.

import { shownValue } from "./columns.js";
import { make, number, visible } from "./text.js";

/** The head: a sort button and a filter a column; `on` hears sort and filter. */
export function drawHead(columns, state, on) {
  const texts = ["sample", "prompt", "answer"].map((name) => make("th", { scope: "col" }, name));
  const sorts = [];
  const filters = [];
  for (const column of columns.values()) {
    const sorted = state.sort?.name === column.name;
    sorts.push(make("th", {
      scope: "col",
      "aria-sort": sorted ? (state.sort.descending ? "descending" : "ascending") : "none",
    }, make("button", { type: "button", "data-sort": column.name, onclick: () => on.sort(column.name) },
      visible(column.name), sorted ? (state.sort.descending ? " \u2193" : " \u2191") : "")));
    filters.push(make("td", {}, drawFilter(column, state, on)));
  }
  return make("thead", {},
    make("tr", {}, make("th", { scope: "col" }, make("span", { class: "nb-hidden" }, "selected")), ...texts, ...sorts),
    make("tr", { class: "nb-filters" }, make("td"), make("td", { colspan: 3 }), ...filters));
}

function drawFilter(column, state, on) {
  const label = `filter ${visible(column.name)}`;
  const asked = state.filters.get(column.name) ?? "";
  if (column.kind === "number" || column.kind === "group") {
    return make("input", {
      type: "text", size: 5, value: asked, "aria-label": label, placeholder: "> 0.5",
      title: "a number, > 0.5, <= 3, 0..1, != 0, or none", "data-filter": column.name,
      oninput: (event) => on.filter(column.name, event.target),
    });
  }
  const words = column.kind === "flag" ? ["no", "yes"] : column.words;
  return make("select", { "aria-label": label, "data-filter": column.name,
    onchange: (event) => on.filter(column.name, event.target) },
    make("option", { value: "" }, "all"),
    ...words.map((word, at) => make("option", { value: at, selected: String(at) === asked }, visible(word))));
}

/** A row; its texts are filled in by `fillRow` when they are there. */
export function drawRow(row, columns, state, on) {
  const box = make("input", { type: "checkbox", "aria-label": "select", tabindex: -1,
    onclick: (event) => { event.stopPropagation(); on.select(row); } });
  box.checked = state.selected.has(row);
  const cells = ["nb-id", "nb-text", "nb-text"].map((c) => make("td", { class: c, dir: "auto" }, "\u2026"));
  const values = [...columns.values()].map((column) => {
    const value = shownValue(column, row);
    return typeof value === "number"
      ? make("td", { class: "nb-number" }, number(value))
      : make("td", {}, visible(value));
  });
  return make("tr", { tabindex: -1, "data-row": row, "aria-selected": state.selected.has(row),
    onclick: () => on.open(row) }, make("td", {}, box), ...cells, ...values);
}

/** Put a row's id, prompt and answer in. */
export function fillRow(line, texts) {
  const [, id, prompt, answer] = line.children;
  id.textContent = visible(texts.id);
  prompt.textContent = visible(texts.prompt ?? "");
  answer.textContent = visible(texts.response ?? "");
  if (texts.error) answer.append(make("div", { class: "nb-error" }, visible(texts.error)));
}
