// The host inside a kernel's page: texts, tokens and searches are asked for by message.

import { mount } from "./app.js";

function kernelSource(model) {
  const waiting = new Map();
  let ticket = 0;
  const hear = (message, buffers) => {
    const done = waiting.get(message.ticket);
    waiting.delete(message.ticket);
    if (done) done(message.found ? readBits(buffers[0]) : message.answer);
  };
  model.on("msg:custom", hear);
  const ask = (content) => new Promise((done) => {
    waiting.set(++ticket, done);
    model.send({ ...content, ticket });
  });
  const data = model.get("data");
  return {
    header: data.header, buffers: data.buffers, first: data.first, note: "",
    selected: model.get("selected"),
    rows: (rows, most) => ask({ ask: "rows", rows, most }),
    sample: (row) => ask({ ask: "sample", row }),
    search: (text) => ask({ ask: "search", text }),
    select: (rows) => { model.set("selected", rows); model.save_changes(); },
    stop: () => model.off("msg:custom", hear),
  };
}

function readBits(view) {
  const found = new Set();
  for (let at = 0; at < view.byteLength; at++) {
    const byte = view.getUint8(at);
    for (let bit = 0; bit < 8; bit++) if (byte & (1 << bit)) found.add(at * 8 + bit);
  }
  return found;
}

function render({ model, el }) {
  const source = kernelSource(model);
  const root = document.createElement("div");
  el.append(root);
  const browser = mount(root, source);
  // The picture for saved notebooks stands above; while this view lives, it is not needed.
  const picture = document.querySelector(`[data-nbrl-picture="${CSS.escape(model.get("picture"))}"]`);
  if (picture) picture.style.display = "none";
  const changed = () => browser.setSelected(model.get("selected"));
  model.on("change:selected", changed);
  return () => {
    model.off("change:selected", changed);
    source.stop();
    if (picture) picture.style.display = "";
  };
}

export default { render };
