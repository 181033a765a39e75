// Two columns against each other; every point is a sample and opens it.

import { make, number, visible } from "./text.js";

const [WIDTH, HEIGHT, EDGE] = [520, 300, 44];

/** A panel with pickers for both axes; `open(row)` is called for a click on a point. */
export function drawScatter(columns, getRows, { x, y, open }) {
  const names = [...columns.values()].filter((c) => c.kind === "number").map((c) => c.name);
  const pick = (label, chosen) => make("select", { "aria-label": label, onchange: () => draw() },
    ...names.map((n) => make("option", { value: n, selected: n === chosen }, visible(n))));
  const [across, up] = [pick("across", x ?? names[0]), pick("up", y ?? names[1] ?? names[0])];
  const canvas = make("canvas", { role: "img", width: WIDTH, height: HEIGHT });
  const said = make("div", { class: "nb-note", "aria-live": "polite" });
  const element = make("section", { class: "nb-scatter", "aria-label": "plot of the samples" },
    make("div", { class: "nb-bar" }, make("label", {}, "across ", across), make("label", {}, "up ", up)),
    canvas, said);
  let points = [];

  function draw() {
    const [a, b] = [columns.get(across.value), columns.get(up.value)];
    const rows = [...getRows()].filter((r) => Number.isFinite(a.values[r]) && Number.isFinite(b.values[r]));
    const place = scaleOf(rows, a.values, EDGE, WIDTH - 12, false);
    const rise = scaleOf(rows, b.values, HEIGHT - EDGE + 12, 10, true);
    points = rows.map((r) => [place.at(a.values[r]), rise.at(b.values[r]), r]);
    paint(canvas, points, place, rise, [a.name, b.name]);
    said.textContent = `${rows.length.toLocaleString("en")} samples; click a point to open its sample`;
    canvas.setAttribute("aria-label", `${visible(b.name)} against ${visible(a.name)}, ${rows.length} samples`);
  }
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    const [px, py] = [((event.clientX - box.left) * WIDTH) / box.width, ((event.clientY - box.top) * HEIGHT) / box.height];
    let best = null;
    let least = 144;
    for (const [qx, qy, row] of points) {
      const far = (qx - px) ** 2 + (qy - py) ** 2;
      if (far < least) [best, least] = [row, far];
    }
    if (best !== null) open(best);
  });
  return { element, draw };
}

function scaleOf(rows, values, from, to) {
  let [low, high] = [Infinity, -Infinity];
  for (const r of rows) [low, high] = [Math.min(low, values[r]), Math.max(high, values[r])];
  if (!rows.length) [low, high] = [0, 1];
  if (low === high) [low, high] = [low - 0.5, high + 0.5];
  return { low, high, at: (v) => from + ((v - low) / (high - low)) * (to - from) };
}

function paint(canvas, points, place, rise, names) {
  const pen = canvas.getContext("2d");
  const ink = getComputedStyle(canvas).color;
  pen.clearRect(0, 0, WIDTH, HEIGHT);
  pen.fillStyle = ink;
  pen.strokeStyle = ink;
  pen.font = "11px sans-serif";
  pen.globalAlpha = 0.4;
  pen.strokeRect(EDGE, 10, WIDTH - 12 - EDGE, HEIGHT - EDGE + 2);
  if (rise.low < 0 && rise.high > 0) line(pen, EDGE, rise.at(0), WIDTH - 12, rise.at(0));
  if (place.low < 0 && place.high > 0) line(pen, place.at(0), 10, place.at(0), HEIGHT - EDGE + 12);
  pen.globalAlpha = 1;
  pen.fillText(number(place.low), EDGE, HEIGHT - 18);
  pen.textAlign = "right";
  pen.fillText(number(place.high), WIDTH - 12, HEIGHT - 18);
  pen.fillText(number(rise.high), EDGE - 4, 20);
  pen.fillText(number(rise.low), EDGE - 4, HEIGHT - EDGE + 12);
  pen.textAlign = "center";
  pen.fillText(visible(names[0]).slice(0, 60), (EDGE + WIDTH) / 2, HEIGHT - 4);
  pen.save();
  pen.translate(12, HEIGHT / 2 - 10);
  pen.rotate(-Math.PI / 2);
  pen.fillText(visible(names[1]).slice(0, 40), 0, 0);
  pen.restore();
  pen.textAlign = "left";
  pen.globalAlpha = points.length > 5000 ? 0.25 : 0.6;
  pen.fillStyle = "#2f7fd0";
  for (const [x, y] of points) pen.fillRect(x - 2, y - 2, 4, 4);
  pen.globalAlpha = 1;
}

function line(pen, ax, ay, bx, by) {
  pen.beginPath();
  pen.moveTo(ax, ay);
  pen.lineTo(bx, by);
  pen.stroke();
}
