/** Elements, and how numbers and tokens are written. */

const SVG = "http://www.w3.org/2000/svg";
const SVG_TAGS = new Set(["svg", "g", "rect", "path", "text", "title", "line"]);

export const $ = (id) => document.getElementById(id);

export function make(tag, attributes = {}, ...children) {
  const element = SVG_TAGS.has(tag) ? document.createElementNS(SVG, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children);
  return element;
}

/** Control characters, and spaces at the edges, as something that can be seen. */
function picture(character) {
  if (character === "\n") return "↵";
  if (character === "\t") return "⇥";
  if (character === " ") return "␣";
  const code = character.codePointAt(0);
  return code < 0x20 ? String.fromCodePoint(0x2400 + code) : code === 0x7f ? "␡" : character;
}

export const visible = (name) => Array.from(name).map((c, i, all) =>
  c === " " && i > 0 && i < all.length - 1 ? c : picture(c)).join("");

export const percent = (p) =>
  p === null ? "–" : p < 0.001 ? "<.1%" : p < 0.0995 ? `${(100 * p).toFixed(1)}%` : `${Math.round(100 * p)}%`;

export const many = (n, one) => `${n} ${one}${n === 1 ? "" : "s"}`;

export const rate = (value) => (value === null ? "–" : value < 100 ? value.toFixed(1) : value.toFixed(0));

/** Calls `draw` soon after the first of many calls, and at most so often. */
export function seldom(draw, everyMs) {
  let timer = 0;
  return () => {
    if (!timer) timer = setTimeout(() => { timer = 0; draw(); }, everyMs);
  };
}
