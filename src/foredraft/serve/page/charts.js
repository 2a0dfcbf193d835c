/** Tokens of each round over time, with their running mean. */

import { make, many } from "./dom.js";

const SIZE = { height: 124, left: 20, bottom: 20, top: 8 };
const WINDOW = 8; // rounds of the running mean
const LEAST_ROUNDS = 24; // the bars of a short answer stay slim

function bar(round, index, x, width, unit) {
  const group = make("g", { class: "bar", "data-round": index });
  round.tokens.forEach((token, i) => {
    const y = SIZE.height - SIZE.bottom - (i + 1) * unit;
    group.append(make("rect", { class: token.kind, x, y: y + 0.5, width, height: Math.max(unit - 1, 1) }));
  });
  return group;
}

const lengthsOf = (rounds) => rounds.map((round) => round.tokens.length);

export function runningMeans(lengths) {
  return lengths.map((_, i) => {
    const recent = lengths.slice(Math.max(0, i - WINDOW + 1), i + 1);
    return recent.reduce((sum, n) => sum + n, 0) / recent.length;
  });
}

/** Draws the rounds of an answer; `chosen` is the index of the one that is looked at. */
export function drawChart(panel, rounds, chosen) {
  const total = panel.clientWidth || 480, lengths = lengthsOf(rounds), most = Math.max(4, ...lengths);
  const step = (total - SIZE.left) / Math.max(LEAST_ROUNDS, rounds.length);
  const unit = (SIZE.height - SIZE.bottom - SIZE.top) / most, floor = SIZE.height - SIZE.bottom;
  const x = (i) => SIZE.left + i * step, width = Math.max(step - Math.min(2, step / 4), 0.6);
  const mean = lengths.reduce((sum, n) => sum + n, 0) / Math.max(lengths.length, 1);
  const label = `${many(rounds.length, "round")}, ${mean.toFixed(2)} tokens per round, ${Math.max(0, ...lengths)} at most.`;
  const svg = make("svg", { viewBox: `0 0 ${total} ${SIZE.height}`, role: "img", "aria-label": label });
  for (const n of [1, most]) {
    const y = floor - n * unit;
    svg.append(make("line", { class: "grid", x1: SIZE.left, x2: total, y1: y, y2: y }), make("text", { x: SIZE.left - 6, y: y + 4, "text-anchor": "end" }, String(n)));
  }
  if (chosen in rounds) svg.append(make("rect", { class: "chosen", x: x(chosen) - 1, y: 0, width: width + 2, height: floor + 4 }));
  svg.append(...rounds.map((round, i) => bar(round, i, x(i), width, unit)));
  const points = runningMeans(lengths).map((m, i) => `${(x(i) + width / 2).toFixed(1)} ${(floor - m * unit).toFixed(1)}`);
  if (points.length > 1) svg.append(make("path", { class: "mean", d: `M${points.join(" L")}` }));
  svg.append(make("text", { x: SIZE.left, y: SIZE.height - 4 }, "first round"), make("text", { x: total, y: SIZE.height - 4, "text-anchor": "end" }, `line: mean of ${WINDOW} rounds`));
  panel.replaceChildren(svg);
}
