"use strict";
(() => {
const trace = JSON.parse(document.getElementById("data").textContent);
const rounds = trace.rounds;
const $ = (id) => document.getElementById(id);
const SVG = "http://www.w3.org/2000/svg";
const HOVER_DELAY_MS = 80; // a pointer that only crosses the answer selects nothing
const STAGES = ["draft", "target", "verify", "other"];
const PART = "\ufffd"; // begins the names of tokens that hold a part of a character
const SYMBOLS = { accepted: "✓", recovered: "↻", bonus: "+", plain: "·" };
const NODE = { height: 40, gap: 10, between: 28, margin: 14, padding: 10, longest: 16 };

// --- text --------------------------------------------------------------------------------------------

/** Control characters and spaces as something that can be seen. */
function picture(character) {
  if (character === "\n") return "↵";
  if (character === "\t") return "⇥";
  if (character === " ") return "␣";
  const code = character.codePointAt(0);
  return code < 0x20 ? String.fromCodePoint(0x2400 + code) : code === 0x7f ? "␡" : character;
}
const visible = (name) => Array.from(name).map((c, i, all) =>
  c === " " && i > 0 && i < all.length - 1 ? c : picture(c)).join("");
const quoted = (name) => `“${visible(name)}”`;
const percent = (p) => p === null ? "–" : p < 0.001 ? "<.1%" : p < 0.0995 ? `${(100 * p).toFixed(1)}%` : `${Math.round(100 * p)}%`;
const milliseconds = (ms) => `${ms < 10 ? ms.toFixed(2) : ms.toFixed(1)} ms`;
const many = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;

function make(tag, attributes = {}, ...children) {
  const space = ["svg", "g", "rect", "path", "text", "title"].includes(tag) ? SVG : "http://www.w3.org/1999/xhtml";
  const element = document.createElementNS(space, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

// --- what a round says -------------------------------------------------------------------------------

const drafted = (round) => round.nodes.length - 1;

/** What became of each node. Behind the point where a stop cut the round, nobody knows. */
function fatesOf(round) {
  const end = round.nodes.findLastIndex((node) => node.accepted), fates = [];
  round.nodes.forEach((node, i) => {
    const isBehind = round.cut && (node.parent === end || fates[node.parent] === "cut off");
    fates.push(i === 0 ? "root" : node.accepted ? "accepted" : isBehind ? "cut off" : "rejected");
  });
  return fates;
}

const acceptedTokens = (round) => round.tokens.filter((t) => t.kind === "accepted").length;

function depthsOf(nodes) {
  const depths = [0];
  for (let n = 1; n < nodes.length; n++) depths.push(depths[nodes[n].parent] + 1);
  return depths;
}

function sentence(round) {
  const last = round.tokens.at(-1), name = quoted(last.name);
  if (last.kind === "plain") return `No draft: the pass gave one token, ${name}.`;
  const levels = Math.max(...depthsOf(round.nodes));
  const draft = `${many(drafted(round), "token")} drafted in ${many(levels, "level")}, ${acceptedTokens(round)} accepted`;
  if (last.kind === "bonus") return `${draft}: a path to its end, which earned the bonus token ${name}.`;
  if (last.kind === "recovered") return `${draft}; then the target chose ${name} itself.`;
  return `${draft}; the answer ends with ${name}${round.cut ? ", and what was verified behind it is cut off" : ""}.`;
}

// --- the answer --------------------------------------------------------------------------------------

function withMarks(text) {
  const blank = /^ +$/.test(text);
  return text.split(/(?<=[\x00-\x1f\x7f])|(?=[\x00-\x1f\x7f])/).flatMap((part) =>
    blank || /^[\x00-\x1f\x7f]$/.test(part)
      ? [make("span", { "data-mark": Array.from(part, picture).join(""), "aria-hidden": "true" }), part]
      : [part]);
}

function tokenElement(token) {
  const odds = `${token.kind}, p ${percent(token.p)}`;
  const attributes = { class: `token ${token.kind}`, title: `${quoted(token.name)}: ${odds}` };
  if (token.text === "") attributes["data-name"] = token.name.startsWith(PART) ? "◦" : visible(token.name);
  return make("span", attributes, ...withMarks(token.text));
}

function roundElement(round, index) {
  const label = `Round ${index + 1}: ${round.tokens.map((t) => visible(t.text || t.name)).join("")}`;
  const attributes = { class: "round", role: "option", id: `round-${index}`, "data-round": index, tabindex: "-1", "aria-selected": "false", "aria-label": label };
  return make("span", attributes, ...round.tokens.map(tokenElement));
}

const stripElement = (round, index) => make("span", { "data-round": index, title: `Round ${index + 1}` },
  ...round.tokens.map((t) => make("i", { class: t.kind })).reverse());

// --- the tree ----------------------------------------------------------------------------------------

/** The nodes to draw: the draft, and the token that came without it, below the node that it follows. */
function drawnNodes(round) {
  const fates = fatesOf(round);
  const drawn = round.nodes.map((node, i) => ({ ...node, fate: fates[i], kind: fates[i].replace("cut off", "rejected"), children: [] }));
  const last = round.tokens.at(-1);
  if (last.kind !== "accepted") drawn.push({ ...last, q: null, parent: round.last, fate: last.kind, kind: `final ${last.kind}`, symbol: SYMBOLS[last.kind], children: [] });
  const depths = depthsOf(drawn);
  drawn.forEach((node, i) => {
    node.depth = depths[i];
    if (i > 0) drawn[node.parent].children.push(node);
    const letters = Array.from(visible(node.name));
    node.label = letters.length > NODE.longest ? letters.slice(0, NODE.longest - 1).join("") + "…" : letters.join("");
    const symbol = node.symbol ?? (node.kind === "accepted" ? SYMBOLS.accepted : "");
    if (symbol) node.label = `${symbol} ${node.label}`;
    node.odds = i === 0 ? "root" : `p ${percent(node.p)}${node.q === null ? "" : `  q ${percent(node.q)}`}`;
  });
  return drawn;
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
  let rows = 0;
  const order = [];
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
  const width = starts.at(-1) + columns.at(-1) + NODE.margin;
  return { width, height: 2 * NODE.margin + rows * (NODE.height + NODE.gap) - NODE.gap };
}

function edge(parent, child) {
  const [x1, y1, x2, y2] = [parent.x + parent.width, parent.y + NODE.height / 2, child.x, child.y + NODE.height / 2];
  const middle = x2 - NODE.between / 2;
  const kind = child.kind === "accepted" ? "kept" : child.kind;
  return make("path", { class: `edge ${kind}`, d: `M${x1} ${y1} L${x2 - NODE.between} ${y1} C${middle} ${y1} ${middle} ${y2} ${x2} ${y2}` });
}

function box(node) {
  const rect = (inset, name) => make("rect", {
    class: name, x: node.x + inset, y: node.y + inset, rx: 8 - inset, width: node.width - 2 * inset, height: NODE.height - 2 * inset,
  });
  const text = (content, y, name) => make("text", { class: name, x: node.x + NODE.padding, y: node.y + y }, content);
  const group = make("g", { class: `node ${node.kind}` }, make("title", {}, `${quoted(node.name)} · ${node.odds} · ${node.fate}`), rect(0, "outer"));
  if (node.kind === "final bonus") group.append(rect(3, "inner"));
  group.append(text(node.label, 17, "label"), text(node.odds, 32, "odds"));
  return group;
}

function drawTree(round) {
  const nodes = drawnNodes(round), { width, height } = place(nodes);
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": `Tree of ${many(nodes.length, "node")}. ${sentence(round)}` });
  const loud = (node) => node.kind === "accepted" || node.kind.startsWith("final");
  const edges = nodes.slice(1).toSorted((a, b) => loud(a) - loud(b)); // the path lies on top
  svg.append(...edges.map((n) => edge(nodes[n.parent], n)), ...nodes.map(box));
  const panel = $("tree"), end = nodes.findLast(loud) ?? nodes[0];
  panel.replaceChildren(svg);
  panel.scrollTo(end.x + end.width + NODE.margin - panel.clientWidth, (nodes[0].y + end.y + NODE.height - panel.clientHeight) / 2);
}

function drawTable(round) {
  const depths = depthsOf(round.nodes), fates = fatesOf(round);
  const row = (cells, tag = "td") => make("tr", {}, ...cells.map((c, i) => make(tag, i === 1 || i === 2 ? { class: "name" } : {}, String(c))));
  const rows = round.nodes.slice(1).map((node, i) => row([
    depths[i + 1], visible(node.name), visible(round.nodes[node.parent].name), percent(node.p), percent(node.q), fates[i + 1]]));
  $("table").replaceChildren(make("table", {}, make("thead", {}, row(["depth", "token", "after", "p", "q", "fate"], "th")), make("tbody", {}, ...rows)));
}

function drawTime(round) {
  const total = STAGES.reduce((sum, stage) => sum + round.times[stage], 0);
  const bar = make("div", { class: "bar", "aria-hidden": "true" });
  const list = make("ul", { class: "stages" });
  for (const stage of STAGES) {
    const part = make("span", { class: stage });
    part.style.flexGrow = (100 * round.times[stage]) / total || 0; // shares under 1 would leave the bar unfilled
    bar.append(part);
    list.append(make("li", {}, make("i", { class: stage }), `${stage} `, make("b", {}, milliseconds(round.times[stage])), " ",
      make("span", {}, `${Math.round((100 * round.times[stage]) / total || 0)} %`)));
  }
  if (round.draft_passes) list.append(make("li", {}, make("span", {}, many(round.draft_passes, "draft pass").replace("passs", "passes"))));
  $("round-time").replaceChildren(bar, list);
}

// --- choosing a round --------------------------------------------------------------------------------

const options = rounds.map(roundElement), bars = rounds.map(stripElement);
let chosen = -1, held = false;

function choose(index, { focus = false } = {}) {
  index = Math.min(Math.max(index, 0), rounds.length - 1);
  if (index !== chosen) {
    options[chosen]?.setAttribute("aria-selected", "false");
    options[chosen]?.setAttribute("tabindex", "-1");
    bars[chosen]?.classList.remove("chosen");
    chosen = index;
    show(rounds[index], index);
  }
  if (focus) options[index].focus();
}

function show(round, index) {
  options[index].setAttribute("aria-selected", "true");
  options[index].setAttribute("tabindex", "0");
  bars[index].classList.add("chosen");
  revealBar(bars[index]);
  $("round-title").textContent = `Round ${index + 1} of ${rounds.length}`;
  $("summary").textContent = sentence(round);
  $("cut").hidden = !round.cut;
  $("previous").disabled = index === 0;
  $("next").disabled = index === rounds.length - 1;
  drawTree(round);
  drawTime(round);
  if ($("table-box").open) drawTable(round);
}

/** Scrolls the strip, and nothing else, when its bar is out of view. */
function revealBar(bar) {
  const strip = $("strip"), left = bar.offsetLeft - strip.offsetLeft;
  if (left < strip.scrollLeft || left + bar.offsetWidth > strip.scrollLeft + strip.clientWidth) {
    strip.scrollLeft = left - strip.clientWidth / 2;
  }
}

function hold(wanted) {
  held = wanted;
  $("held").hidden = !held;
}

const roundAt = (event) => event.target.closest?.("[data-round]")?.dataset.round;
const MOVES = { ArrowLeft: -1, ArrowUp: -1, ArrowRight: 1, ArrowDown: 1, Home: -Infinity, End: Infinity };

function onKey(event) {
  if (event.ctrlKey || event.altKey || event.metaKey) return;
  if (event.key === "Escape") hold(false);
  const inAnswer = $("answer").contains(event.target);
  if (inAnswer && (event.key === "Enter" || event.key === " ")) hold(!held);
  else if (event.key in MOVES && (inAnswer || event.target === document.body)) choose(chosen + MOVES[event.key], { focus: true });
  else return;
  event.preventDefault();
}

let timer = 0, pointer = "";
function onMove(event) {
  const position = `${event.clientX} ${event.clientY}`;
  if (position === pointer) return; // the page moved, not the pointer
  pointer = position;
  clearTimeout(timer);
  const index = roundAt(event);
  if (index !== undefined && !held) timer = setTimeout(() => held || choose(Number(index)), HOVER_DELAY_MS);
}

function onClick(event) {
  const index = roundAt(event);
  if (index === undefined) return;
  hold(!(held && Number(index) === chosen));
  choose(Number(index), { focus: true });
}

const answer = $("answer");
answer.setAttribute("role", "listbox");
answer.setAttribute("aria-label", "Answer, round by round");
answer.replaceChildren(...options);
$("strip").append(...bars);
for (const place of [answer, $("strip")]) {
  place.addEventListener("pointermove", onMove);
  place.addEventListener("click", onClick);
}
answer.addEventListener("focusin", (event) => choose(Number(roundAt(event) ?? chosen)));
document.addEventListener("keydown", onKey);
$("previous").addEventListener("click", () => choose(chosen - 1));
$("next").addEventListener("click", () => choose(chosen + 1));
$("table-box").addEventListener("toggle", () => $("table-box").open && drawTable(rounds[chosen]));
$("strip-box").hidden = $("round-card").hidden = false;
const widest = rounds.reduce((best, round, i) => (round.tokens.length > rounds[best].tokens.length ? i : best), 0);
choose(widest); // the round that gave most is the one to begin with
})();
