/** The side that shows how an answer is made: speed, tokens per round, one round's tree. */

import { KINDS } from "./answer.js";
import { drawChart } from "./charts.js";
import { $, many, rate, seldom } from "./dom.js";
import { drawTable, drawTree, sentence } from "./tree.js";

const DRAW_EVERY_MS = 120; // drawing takes time from a model on the same machine

export class Insight {
  constructor() {
    this.answer = null;
    this.index = -1; // of the round that is looked at
    this.follows = true; // the newest round is looked at as it comes
    this.update = seldom(() => this.draw(), DRAW_EVERY_MS);
    $("previous").addEventListener("click", () => this.look(this.answer, this.index - 1));
    $("next").addEventListener("click", () => this.look(this.answer, this.index + 1));
    $("table-box").addEventListener("toggle", () => this.draw());
    $("chart").addEventListener("click", (event) => {
      const bar = event.target.closest("[data-round]");
      if (bar) this.look(this.answer, Number(bar.dataset.round));
    });
    new ResizeObserver(this.update).observe($("chart"));
  }

  /** An answer, round by round as it comes; null is none. */
  follow(answer) {
    this.answer?.mark(-1);
    Object.assign(this, { answer, index: -1, follows: true });
    this.update();
  }

  /** One round of an answer; the last one follows what comes. */
  look(answer, index) {
    this.answer?.mark(-1);
    const last = answer.rounds.length - 1;
    Object.assign(this, { answer, index: Math.min(Math.max(index, 0), last), follows: index >= last });
    this.draw();
  }

  draw() {
    const answer = this.answer, rounds = answer?.rounds ?? [];
    if (this.follows) this.index = rounds.length - 1;
    this.drawSpeed(answer);
    for (const kind of KINDS) $(`count-${kind}`).textContent = answer?.count(kind) ?? 0;
    const perPass = answer?.tokensPerPass ?? null;
    $("per-pass").textContent = perPass === null ? "" : `${perPass.toFixed(2)} per pass`;
    drawChart($("chart"), rounds, this.index);
    this.drawRound(rounds[this.index], rounds.length);
  }

  drawSpeed(answer) {
    const mine = answer?.rate ?? null, plain = answer?.plain?.rate ?? null, most = Math.max(mine ?? 0, plain ?? 0) || 1;
    $("mine-name").textContent = answer?.method.name.replaceAll(":", ":\u200b") ?? "with drafts"; // lines break there
    $("mine-rate").textContent = rate(mine);
    $("plain-rate").textContent = rate(plain);
    $("mine-bar").style.width = `${(100 * (mine ?? 0)) / most}%`;
    $("plain-bar").style.width = `${(100 * (plain ?? 0)) / most}%`;
    $("ratio").hidden = !answer?.plain?.whole;
    if (answer?.plain?.whole) $("ratio").textContent = ratioSentence(answer);
  }

  drawRound(round, count) {
    const isThere = round !== undefined;
    $("previous").disabled = !isThere || this.index === 0;
    $("next").disabled = !isThere || this.index === count - 1;
    $("tree").hidden = $("table-box").hidden = !isThere;
    $("round-title").textContent = isThere ? `Round ${this.index + 1} of ${count}` : "Round";
    if (!isThere) {
      $("summary").textContent = "Each round drafts a tree of tokens and checks it in one pass. It is drawn here.";
      return;
    }
    this.answer.mark(this.index);
    $("summary").textContent = sentence(round);
    drawTree($("tree"), round);
    if ($("table-box").open) drawTable($("table"), round);
  }
}

function ratioSentence(answer) {
  const ratio = `${(answer.rate / answer.plain.rate).toFixed(2)}× plain decoding`;
  const words = answer.plain.text === answer.text ? "the same words" : "other words";
  return `${ratio}: the same request, one after the other on this machine, ${words} (${many(answer.plain.tokens, "token")}).`;
}
