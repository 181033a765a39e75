// The browser: a table of samples, a plot, a group, a sample; the same with and without a kernel.

import { filterRows, readColumns, readTest, sortRows } from "./columns.js";
import { drawSample } from "./sample.js";
import { drawScatter } from "./scatter.js";
import { drawHead, drawRow, fillRow } from "./table.js";
import { make, number, visible } from "./text.js";

const PAGE = 15;
const PATIENCE = 400;

/**
 * Draw the browser into `root`.
 *
 * `source` has `header`, `buffers`, `first` (texts of the first rows), `rows(list, most)`,
 * `sample(row)` and `search(text)` (promises), `select(list)`, `selected` and `note`.
 */
export function mount(root, source) {
  const { header } = source;
  const columns = readColumns(header, source.buffers);
  const state = {
    rows: new Uint32Array(0), page: 0, sort: null, filters: new Map(), found: null,
    selected: new Set(source.selected), colour: header.colour, asked: 0,
  };
  const texts = new Map(source.first.map((t) => [t.row, t]));
  const samples = new Map();
  const status = make("span", { class: "nb-status", role: "status", "aria-live": "polite" });
  const search = make("input", { type: "search", placeholder: "search all text ( / )",
    "aria-label": "search prompts, answers, labels and ids", oninput: () => later(find) });
  const table = make("table", { class: "nb-table" });
  const body = make("tbody");
  const pager = make("div", { class: "nb-bar", role: "group", "aria-label": "pages" });
  const detail = make("div", { class: "nb-detail" });
  let opened = null;
  let timer = null;
  const plot = drawScatter(columns, () => state.rows, { ...header.plot, open });
  const plotted = make("details", { class: "nb-plot", ontoggle: () => plotted.open && plot.draw() },
    make("summary", {}, "plot the samples"), plot.element);
  const again = make("button", { type: "button", onclick: clear }, "clear filters");
  root.replaceChildren(
    make("div", { class: "nb-bar" }, make("b", {}, visible(header.title)), search, again, status),
    source.note ? make("div", { class: "nb-note" }, visible(source.note)) : "",
    ...header.warnings.map((w) => make("div", { class: "nb-warning", role: "note" }, `\u26a0 ${visible(w)}`)),
    plotted,
    make("div", { class: "nb-scroll", tabindex: -1 }, table), pager, detail,
    make("div", { class: "nb-note" },
      "Keys: j k or arrows move, Enter opens, Space selects, [ ] go through the group, c changes the colour, / searches, Esc closes."),
  );
  root.classList.add("nbrl-view");
  // JupyterLab's own shortcuts stay out of the way of the keys used here.
  root.setAttribute("data-lm-suppress-shortcuts", "true");
  table.append(body);
  root.addEventListener("keydown", keys);
  head();
  refresh();
  if (header.plot) plotted.open = true;

  function later(action) {
    clearTimeout(timer);
    timer = setTimeout(action, 120);
  }

  /** The answer of the source; says so where it takes long, as while the kernel is busy. */
  async function wait(promise) {
    const slow = setTimeout(() => { status.textContent = "waiting for the kernel, which is busy"; }, PATIENCE);
    try {
      return await promise;
    } finally {
      clearTimeout(slow);
      count();
    }
  }

  function head() {
    table.querySelector("thead")?.remove();
    table.prepend(drawHead(columns, state, { sort, filter }));
  }

  function sort(name) {
    const same = state.sort?.name === name;
    if (same && !state.sort.descending) state.sort = null;
    else state.sort = { name, descending: !same };
    head();
    refresh();
    table.querySelector(`[data-sort="${CSS.escape(name)}"]`)?.focus();
  }

  function filter(name, input) {
    const asked = input.value.trim();
    const known = columns.get(name).kind === "word" || columns.get(name).kind === "flag";
    const wrong = asked !== "" && !known && readTest(asked) === null;
    input.setAttribute("aria-invalid", wrong);
    if (wrong) return;
    if (asked === "") state.filters.delete(name);
    else state.filters.set(name, asked);
    refresh();
  }

  function clear() {
    state.filters.clear();
    state.found = null;
    state.sort = null;
    search.value = "";
    head();
    refresh();
  }

  async function find() {
    const asked = search.value;
    const ticket = ++state.asked;
    const found = asked === "" ? null : await wait(source.search(asked));
    if (ticket !== state.asked) return;
    state.found = found;
    refresh();
  }

  function refresh() {
    const tests = [...state.filters].map(([name, asked]) => {
      const column = columns.get(name);
      const exact = column.kind === "word" || column.kind === "flag";
      return { column, test: exact ? (x) => x === Number(asked) : readTest(asked) };
    });
    let rows = filterRows(header.count, tests, state.found);
    if (state.sort) rows = sortRows(rows, columns.get(state.sort.name), state.sort.descending);
    state.rows = rows;
    state.page = 0;
    if (plotted.open) plot.draw();
    turn(0);
  }

  function count() {
    const [shown, all] = [state.rows.length, header.count];
    const chosen = state.selected.size ? `, ${number(state.selected.size)} selected` : "";
    status.textContent = `${number(shown)} of ${number(all)} samples${chosen}`;
  }

  async function turn(page) {
    const last = Math.max(0, Math.ceil(state.rows.length / PAGE) - 1);
    state.page = Math.max(0, Math.min(last, page));
    const shown = [...state.rows.slice(state.page * PAGE, (state.page + 1) * PAGE)];
    const lines = shown.map((row) => drawRow(row, columns, state, { open, select }));
    if (lines.length) lines[0].tabIndex = 0;
    body.replaceChildren(...(lines.length ? lines : [make("tr", {}, make("td", { colspan: columns.size + 4 },
      header.count ? "No sample passes the filters." : "There are no samples."))]));
    pages(last);
    count();
    const missing = shown.filter((row) => !texts.has(row));
    shown.forEach((row, at) => texts.has(row) && fillRow(lines[at], texts.get(row)));
    if (!missing.length) return;
    for (const text of await wait(source.rows(missing, 200))) texts.set(text.row, text);
    shown.forEach((row, at) => texts.has(row) && fillRow(lines[at], texts.get(row)));
  }

  function pages(last) {
    const go = (label, name, to, off) => make("button",
      { type: "button", "aria-label": name, disabled: off, onclick: () => turn(to) }, label);
    pager.replaceChildren(
      go("\u00ab", "first page", 0, state.page === 0), go("\u2039", "page before", state.page - 1, state.page === 0),
      make("span", {}, `page ${number(state.page + 1)} of ${number(last + 1)}`),
      go("\u203a", "next page", state.page + 1, state.page === last), go("\u00bb", "last page", last, state.page === last),
      make("button", { type: "button", onclick: () => selectAll() }, "select all that are shown"),
      make("button", { type: "button", disabled: !state.selected.size, onclick: () => selectNone() }, "select none"),
    );
  }

  function selectAll() {
    for (const row of state.rows) state.selected.add(row);
    chosen();
    turn(state.page);
  }

  function selectNone() {
    state.selected.clear();
    chosen();
    turn(state.page);
  }

  function select(row) {
    if (!state.selected.delete(row)) state.selected.add(row);
    const line = body.querySelector(`[data-row="${row}"]`);
    if (line) {
      line.setAttribute("aria-selected", state.selected.has(row));
      line.querySelector("input").checked = state.selected.has(row);
    }
    chosen();
    count();
  }

  function chosen() {
    source.select([...state.selected].sort((a, b) => a - b));
  }

  async function open(row) {
    const ticket = (opened = { row });
    if (!samples.has(row)) samples.set(row, await wait(source.sample(row)));
    const sample = samples.get(row);
    if (opened !== ticket) return;
    if (sample === null) {
      detail.replaceChildren(make("div", { class: "nb-note" },
        "This saved view holds no tokens of that sample; run the cell to see it."));
      return;
    }
    if (samples.size > 40) samples.delete(samples.keys().next().value);
    opened.drawn = drawSample(sample, { colour: state.colour, onColour: (c) => { state.colour = c; } });
    const mates = make("div", { class: "nb-group" });
    detail.replaceChildren(
      make("div", { class: "nb-bar" }, make("b", {}, visible(sample.id)),
        make("button", { type: "button", onclick: () => group(row, mates) }, "show its group"),
        make("button", { type: "button", onclick: close }, "close")),
      mates, opened.drawn.element);
    detail.scrollIntoView({ block: "nearest" });
  }

  function mates(row) {
    const codes = columns.get("group").values;
    const best = columns.get(header.best);
    const rows = Uint32Array.from({ length: header.count }, (_, at) => at).filter((at) => codes[at] === codes[row]);
    return best ? sortRows(rows, best, true) : rows;
  }

  async function group(row, into) {
    const rows = [...mates(row)];
    const shown = await wait(source.rows(rows.slice(0, 32), 2000));
    const best = columns.get(header.best);
    into.replaceChildren(...shown.map((text) => make("article", { class: text.row === row ? "nb-card nb-here" : "nb-card" },
      make("button", { type: "button", onclick: () => open(text.row) }, visible(text.id)),
      make("div", { class: "nb-score" }, best ? `${visible(header.best)} ${number(best.values[text.row]) || "none"}` : ""),
      make("pre", { dir: "auto" }, visible(text.response ?? "", true)))));
  }

  function close() {
    opened = null;
    detail.replaceChildren();
    body.querySelector("tr")?.focus();
  }

  function move(step) {
    const lines = [...body.querySelectorAll("tr[data-row]")];
    const at = lines.indexOf(root.ownerDocument.activeElement?.closest("tr"));
    const to = Math.max(0, Math.min(lines.length - 1, at < 0 ? 0 : at + step));
    if (!lines.length) return;
    lines.forEach((line, i) => { line.tabIndex = i === to ? 0 : -1; });
    lines[to].focus();
  }

  function through(step) {
    if (!opened) return;
    const rows = [...mates(opened.row)];
    open(rows[(rows.indexOf(opened.row) + step + rows.length) % rows.length]);
  }

  function keys(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = event.target.matches("input[type=text], input[type=search], select");
    if (event.key === "Escape") {
      if (typing) event.target.blur();
      close();
      return;
    }
    if (typing) return;
    const line = event.target.closest?.("tr[data-row]");
    const row = line ? Number(line.dataset.row) : null;
    const actions = {
      j: () => move(1), k: () => move(-1), ArrowDown: () => move(1), ArrowUp: () => move(-1),
      PageDown: () => turn(state.page + 1), PageUp: () => turn(state.page - 1),
      "/": () => search.focus(), "[": () => through(-1), "]": () => through(1),
      c: () => opened?.drawn?.next(),
    };
    if (line && !event.target.matches("button")) Object.assign(actions, { Enter: () => open(row), " ": () => select(row) });
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    event.stopPropagation();
    action();
  }

  return {
    setSelected(rows) {
      state.selected = new Set(rows);
      turn(state.page);
    },
  };
}
