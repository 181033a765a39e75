// The host without a kernel: everything it shows is in the page.

import { mount } from "./app.js";

async function unpack(packed) {
  const bytes = Uint8Array.from(atob(packed), (c) => c.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function savedSource(data) {
  const buffers = data.buffers.map((b) => new DataView(Uint8Array.from(atob(b), (c) => c.charCodeAt(0)).buffer));
  const texts = new Map(data.first.map((t) => [t.row, t]));
  const samples = new Map(data.samples.map((s) => [s.row, s]));
  const hit = (text, asked) => [text.id, text.prompt, text.response, text.label]
    .some((t) => (t ?? "").toLowerCase().includes(asked));
  return {
    header: data.header, buffers, first: data.first, note: data.note, selected: [],
    rows: async (rows) => rows.filter((r) => texts.has(r)).map((r) => texts.get(r)),
    sample: async (row) => samples.get(row) ?? null,
    search: async (asked) => new Set(data.first.filter((t) => hit(t, asked.toLowerCase())).map((t) => t.row)),
    select: () => {},
  };
}

/** Replace the static table in `root` by the browser. */
async function mountSaved(root, packed) {
  const data = await unpack(packed);
  mount(root, savedSource(data));
}
