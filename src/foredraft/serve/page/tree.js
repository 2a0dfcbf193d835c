/** A round's tree: in words, as a drawing, and as a table. */

import { make, many, percent, visible } from "./dom.js";

const SYMBOLS = { accepted: "✓", recovered: "↻", bonus: "+", plain: "·" };
const NODE = { height: 38, gap: 8, between: 26, margin: 14, padding: 10, longest: 16 };

function depthsOf(nodes) {
  const depths = [0];
  for (let n = 1; n < nodes.length; n++) depths.push(depths[nodes[n].parent] + 1);
  return depths;
}

/** What became of each node. Behind the point where a stop cut the round, nobody knows. */
function fatesOf(round) {
  const end = round.nodes.findLastIndex((node) => node.accepted), fates = [];
  round.nodes.forEach((node, i) => {
    const isBehind = round.cut && (node.parent === end || fates[node.parent] === "cut off");
    fates.push(i === 0 ? "root" : node.accepted ? "accepted" : isBehind ? "cut off" : "rejected");
  });
  return fates;
}

export function sentence(round) {
  const last = round.tokens.at(-1), name = `“${visible(last.name)}”`;
  if (last.kind === "plain") return `No draft: the pass gave one token, ${name}.`;
  const levels = Math.max(...depthsOf(round.nodes));
  const accepted = round.tokens.filter((token) => token.kind === "accepted").length;
  const draft = `${many(round.nodes.length - 1, "token")} drafted in ${many(levels, "level")}, ${accepted} accepted`;
  if (last.kind === "bonus") return `${draft}: a path to its end, which earned the bonus token ${name}.`;
  if (last.kind === "recovered") return `${draft}; then the model chose ${name} itself.`;
  return `${draft}; the answer ends with ${name}${round.cut ? ", and what was verified behind it is cut off" : ""}.`;
}

/** The nodes to draw: the draft, and the token that came without it, below the node that it follows. */
function drawnNodes(round) {
  const fates = fatesOf(round), last = round.tokens.at(-1);
  const nodes = round.nodes.map((node, i) => ({ ...node, fate: fates[i], kind: fates[i].replace("cut off", "rejected") }));
  if (last.kind !== "accepted") nodes.push({ ...last, q: null, parent: round.last, fate: last.kind, kind: `final ${last.kind}` });
  const depths = depthsOf(nodes);
  nodes.forEach((node, i) => {
    Object.assign(node, { depth: depths[i], children: [], odds: i === 0 ? "so far" : oddsOf(node), label: labelOf(node) });
    if (i > 0) nodes[node.parent].children.push(node);
  });
  return nodes;
}

const oddsOf = (node) => `p ${percent(node.p)}${node.q === null ? "" : `  q ${percent(node.q)}`}`;

function labelOf(node) {
  const letters = Array.from(visible(node.name)), symbol = SYMBOLS[node.fate];
  const short = letters.length > NODE.longest ? `${letters.slice(0, NODE.longest - 1).join("")}…` : letters.join("");
  return symbol ? `${symbol} ${short}` : short;
}

const pen = document.createElement("canvas").getContext("2d");
function widthOf(node) {
  const family = getComputedStyle(document.documentElement).getPropertyValue("--mono");
  pen.font = `700 13px ${family}`;
  const label = pen.measureText(node.label).width;
  pen.font = `10.5px ${family}`;
  return Math.ceil(Math.max(label, pen.measureText(node.odds).width, 24) + 2 * NODE.padding);
}

/** Places nodes: a column for each level, a row for each leaf, parents half-way between their children. */
function place(nodes) {
  const columns = [];
  for (const node of nodes) columns[node.depth] = Math.max(columns[node.depth] ?? 0, (node.width = widthOf(node)));
  const starts = columns.map((_, d) => NODE.margin + columns.slice(0, d).reduce((sum, w) => sum + w + NODE.between, 0));
  const order = [];
  let rows = 0;
  for (const stack = [nodes[0]]; stack.length;) {
    const node = stack.pop();
    order.push(node);
    stack.push(...node.children.toReversed());
    if (!node.children.length) node.y = NODE.margin + rows++ * (NODE.height + NODE.gap);
  }
  for (const node of order.reverse()) {
    node.x = starts[node.depth];
    if (node.children.length) node.y = (node.children[0].y + node.children.at(-1).y) / 2;
  }
  return {
    width: starts.at(-1) + columns.at(-1) + NODE.margin,
    height: 2 * NODE.margin + rows * (NODE.height + NODE.gap) - NODE.gap,
  };
}

function edge(parent, child) {
  const half = NODE.height / 2, [y1, y2] = [parent.y + half, child.y + half];
  const start = child.x - NODE.between, middle = child.x - NODE.between / 2;
  const kind = child.kind === "accepted" ? "kept" : child.kind;
  return make("path", { class: `edge ${kind}`, d: `M${parent.x + parent.width} ${y1} L${start} ${y1} C${middle} ${y1} ${middle} ${y2} ${child.x} ${y2}` });
}

function box(node) {
  const rect = (inset, name) => make("rect", {
    class: name, x: node.x + inset, y: node.y + inset, rx: 8 - inset, width: node.width - 2 * inset, height: NODE.height - 2 * inset,
  });
  const text = (content, y, name) => make("text", { class: name, x: node.x + NODE.padding, y: node.y + y }, content);
  const title = make("title", {}, `“${visible(node.name)}” · ${node.odds} · ${node.fate}`);
  const group = make("g", { class: `node ${node.kind}` }, title, rect(0, "outer"));
  if (node.kind === "final bonus") group.append(rect(3, "inner"));
  group.append(text(node.label, 16, "label"), text(node.odds, 31, "odds"));
  return group;
}

const isLoud = (node) => node.kind === "accepted" || node.kind.startsWith("final");

/** Draws a round's tree into a panel that scrolls, with the end of its path in view. */
export function drawTree(panel, round) {
  const nodes = drawnNodes(round), { width, height } = place(nodes);
  const label = `Tree of ${many(nodes.length, "node")}. ${sentence(round)}`;
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": label });
  const edges = nodes.slice(1).toSorted((a, b) => isLoud(a) - isLoud(b)); // the path lies on top
  svg.append(...edges.map((node) => edge(nodes[node.parent], node)), ...nodes.map(box));
  panel.replaceChildren(svg);
  const end = nodes.findLast(isLoud) ?? nodes[0];
  panel.scrollTo(end.x + end.width + NODE.margin - panel.clientWidth, (nodes[0].y + end.y + NODE.height - panel.clientHeight) / 2);
}

/** The same as a table, for those who read rather than look. */
export function drawTable(panel, round) {
  const depths = depthsOf(round.nodes), fates = fatesOf(round);
  const row = (cells, tag) => make("tr", {}, ...cells.map((cell) => make(tag, tag === "th" ? { scope: "col" } : {}, String(cell))));
  const rows = round.nodes.slice(1).map((node, i) => row([
    depths[i + 1], visible(node.name), visible(round.nodes[node.parent].name), percent(node.p), percent(node.q), fates[i + 1]], "td"));
  const head = make("thead", {}, row(["depth", "token", "after", "p", "q", "fate"], "th"));
  panel.replaceChildren(make("table", {}, head, make("tbody", {}, ...rows)));
}
