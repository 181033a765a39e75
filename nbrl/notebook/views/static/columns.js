// The index: one typed array a column for all samples, sorted and filtered without the kernel.

const ARRAYS = { f4: Float32Array, u4: Uint32Array, u1: Uint8Array };

/** Columns by name from the header's descriptions and their bytes. */
export function readColumns(header, buffers) {
  return new Map(
    header.columns.map((column, at) => {
      const view = buffers[at];
      const bytes = new Uint8Array(view.buffer, view.byteOffset, view.byteLength).slice();
      return [column.name, { ...column, values: new ARRAYS[column.dtype](bytes.buffer) }];
    }),
  );
}

/** What a cell shows: a word, yes or no, or the number itself. */
export function shownValue(column, row) {
  const value = column.values[row];
  if (column.kind === "word") return column.words[value] ?? "";
  if (column.kind === "flag") return value ? "yes" : "no";
  return value;
}

/** Rows in the column's order, ties in row order, missing numbers last either way. */
export function sortRows(rows, column, descending) {
  const { values } = column;
  const sign = descending ? -1 : 1;
  return rows.slice().sort((a, b) => {
    const x = values[a];
    const y = values[b];
    if (x === y) return a - b;
    if (x !== x) return y !== y ? a - b : 1;
    if (y !== y) return -1;
    return x < y ? -sign : sign;
  });
}

const TEST = /^(<=|>=|!=|=|<|>)?\s*(-?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?)$/i;
const RANGE = /^(-?[\d.]+(?:e[+-]?\d+)?)\s*\.\.\s*(-?[\d.]+(?:e[+-]?\d+)?)$/i;
const COMPARE = {
  "<": (x, y) => x < y,
  ">": (x, y) => x > y,
  "<=": (x, y) => x <= y,
  ">=": (x, y) => x >= y,
  "=": (x, y) => Math.abs(x - y) <= 1e-6 * Math.max(1, Math.abs(y)),
  "!=": (x, y) => Math.abs(x - y) > 1e-6 * Math.max(1, Math.abs(y)),
};

/** A test of a column's number for `> 0.5`, `0..1`, `= 1`, `none`; null where it cannot be read. */
export function readTest(text) {
  const asked = text.trim();
  if (asked === "none") return (x) => Number.isNaN(x);
  const range = RANGE.exec(asked);
  if (range) return (x) => x >= Number(range[1]) && x <= Number(range[2]);
  const found = TEST.exec(asked);
  if (!found) return null;
  const compare = COMPARE[found[1] ?? "="];
  const limit = Number(found[2]);
  return (x) => compare(x, limit);
}

/** The rows that pass every `{column, test}` and, where there is one, the set of found rows. */
export function filterRows(count, tests, found) {
  const kept = new Uint32Array(count);
  let length = 0;
  for (let row = 0; row < count; row++) {
    if (found && !found.has(row)) continue;
    if (tests.every(({ column, test }) => test(column.values[row]))) kept[length++] = row;
  }
  return kept.slice(0, length);
}
