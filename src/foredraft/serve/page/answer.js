/** One answer: its rounds, its text, and its place in the conversation. */

import { make, many, rate, visible } from "./dom.js";

const PART = "\ufffd"; // begins the names of tokens that hold a part of a character
export const KINDS = ["accepted", "recovered", "bonus", "plain"];
const TITLES = {
  accepted: "accepted: drafted, and the model agreed",
  recovered: "recovered: the model’s own, where it agreed with no draft",
  bonus: "bonus: behind a draft that was accepted whole",
  plain: "plain: of a round without a draft",
};

function tokenElement(token) {
  const attributes = { class: `token ${token.kind}`, title: TITLES[token.kind] };
  if (token.text === "") attributes["data-name"] = token.name.startsWith(PART) ? "◦" : visible(token.name);
  return make("span", attributes, token.text);
}

/** Tokens by decoding time, as the server's own `tokens_per_s` has it; null before the first. */
export function measuredRate(rounds) {
  const ms = rounds.reduce((sum, r) => sum + r.times.draft + r.times.target + r.times.verify + r.times.other, 0);
  const tokens = rounds.reduce((sum, r) => sum + r.tokens.length, 0);
  return ms > 0 ? (1000 * tokens) / ms : null;
}

export class Answer {
  /** `method` is what makes it, as the server's card has it. */
  constructor(method) {
    this.method = method;
    this.rounds = [];
    this.text = "";
    this.usage = null; // the server's count, when the answer is whole
    this.plain = null; // {rate, text} of the same request by plain decoding
    this.note = make("span", { class: "note" }, "…");
    this.copy = make("button", { type: "button", class: "quiet small", hidden: "" }, "Copy");
    this.body = make("div", { class: "text", dir: "auto" });
    this.element = make("article", { class: "answer running", "aria-label": "Answer" },
      this.body, make("footer", {}, this.note, this.copy));
  }

  /** A round that came, or text alone where rounds are not told. */
  add(round, text) {
    this.text += text;
    if (!round) {
      this.body.append(text);
      return;
    }
    const index = this.rounds.push(round) - 1;
    this.body.append(make("span", { class: "round", "data-round": index }, ...round.tokens.map(tokenElement)));
    this.note.textContent = `${many(this.numTokens, "token")} in ${this.passes}`;
  }

  get isEmpty() {
    return this.text === "" && this.rounds.length === 0;
  }

  get numTokens() {
    return this.usage?.completion_tokens ?? this.rounds.reduce((sum, round) => sum + round.tokens.length, 0);
  }

  get passes() {
    const count = this.usage?.foredraft.target_passes ?? this.rounds.length;
    return count === 1 ? "1 pass" : `${count} passes`;
  }

  /** Tokens per second; null where it is not known (yet). */
  get rate() {
    return this.usage ? this.usage.foredraft.tokens_per_s : measuredRate(this.rounds);
  }

  get tokensPerPass() {
    if (this.usage) return this.usage.foredraft.tokens_per_pass;
    return this.rounds.length ? this.numTokens / this.rounds.length : null;
  }

  count(kind) {
    return this.rounds.flatMap((round) => round.tokens).filter((token) => token.kind === kind).length;
  }

  /** No more will come; `ending` says why, unless the answer is whole. */
  end(ending) {
    this.element.classList.remove("running");
    this.copy.hidden = this.text === "";
    this.note.textContent = this.summary(ending);
  }

  summary(ending) {
    const parts = [`${many(this.numTokens, "token")} in ${this.passes}`];
    if (this.rate !== null) parts.push(`${rate(this.rate)} tokens/s`);
    if (this.plain?.rate) parts.push(`${(this.rate / this.plain.rate).toFixed(2)}× plain decoding`);
    if (this.usage) parts.push(`seed ${this.usage.foredraft.seed ?? "none (greedy)"}`);
    if (ending) parts.push(ending);
    return parts.join(" · ");
  }

  /** Marks the round that is looked at; -1 none. */
  mark(index) {
    this.body.querySelector(".round.looked")?.classList.remove("looked");
    if (index >= 0) this.body.children[index]?.classList.add("looked");
  }
}
