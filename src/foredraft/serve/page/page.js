/** The page: settings, the conversation, and what happens when something is asked. */

import { Answer, measuredRate } from "./answer.js";
import { chat, model, Refusal, setKey } from "./api.js";
import { $, make, many } from "./dom.js";
import { Insight } from "./insight.js";
import { Speaker } from "./speaker.js";

const insight = new Insight(), speaker = new Speaker($("spoken"));
let card = null; // of the server's model
let messages = []; // as the API takes them
let running = null; // the AbortController of what is asked now
let again = null; // what the button of a problem does

// --- settings ----------------------------------------------------------------------------------------

const methodNamed = (name) => card.foredraft.methods.find((method) => method.name === name);
const plainMethod = () => card.foredraft.methods.find((method) => method.plain);

async function loadModel() {
  card = await model();
  $("model").textContent = card.id;
  $("method").replaceChildren(...card.foredraft.methods.map(({ name }) => make("option", { value: name }, name)));
  $("max-tokens").max = card.foredraft.max_tokens;
  if (Number($("max-tokens").value) > card.foredraft.max_tokens) $("max-tokens").value = card.foredraft.max_tokens;
  showSettings();
}

function showSettings() {
  const temperature = Number($("temperature").value);
  $("temperature-shown").textContent = temperature === 0 ? "0, greedy" : temperature.toFixed(1);
  $("compare").disabled = !card || methodNamed($("method").value).plain;
  $("chosen").textContent = [$("method").value, `temperature ${temperature}`].filter(Boolean).join(" · ");
}

/** The seed of the next question. One of the page's own fits into a number, as the server's may not. */
const nextSeed = () => ($("seed").value === "" ? crypto.getRandomValues(new Uint32Array(1))[0] : Number($("seed").value));

function request(method, history, seed) {
  return {
    model: card.id, messages: history, stream: true, stream_options: { include_usage: true }, seed,
    temperature: Number($("temperature").value), max_tokens: Number($("max-tokens").value),
    foredraft: { method: method.name, trace: method.trace },
  };
}

// --- the conversation --------------------------------------------------------------------------------

const conversation = $("conversation");

function keepAtEnd(change) {
  const isAtEnd = conversation.scrollHeight - conversation.scrollTop - conversation.clientHeight < 60;
  change();
  if (isAtEnd) conversation.scrollTop = conversation.scrollHeight;
}

function say(text) {
  $("welcome").hidden = true;
  messages.push({ role: "user", content: text });
  conversation.append(make("article", { class: "question", "aria-label": "You", dir: "auto" }, text));
}

function begin() {
  const answer = new Answer(methodNamed($("method").value));
  answer.copy.addEventListener("click", () => copyText(answer));
  answer.body.addEventListener("click", (event) => {
    const round = event.target.closest(".round");
    if (round && getSelection().isCollapsed) insight.look(answer, Number(round.dataset.round));
  });
  conversation.append(answer.element);
  conversation.scrollTop = conversation.scrollHeight;
  insight.follow(answer);
  return answer;
}

async function copyText(answer) {
  try {
    await navigator.clipboard.writeText(answer.text);
    answer.copy.textContent = "Copied";
    speaker.announce("Copied.");
  } catch {
    answer.copy.textContent = "Copying is not allowed here";
  }
  setTimeout(() => { answer.copy.textContent = "Copy"; }, 2000);
}

function newChat() {
  running?.abort();
  messages = [];
  conversation.replaceChildren($("welcome"));
  $("welcome").hidden = false;
  hideProblem();
  insight.follow(null);
  state("nothing yet");
  $("message").focus();
}

// --- asking ------------------------------------------------------------------------------------------

const state = (text) => { $("state").textContent = text; };

function busy(controller) {
  const hadFocus = document.activeElement === $("stop");
  running = controller;
  $("send").hidden = controller !== null;
  $("stop").hidden = controller === null;
  if (controller === null && hadFocus) $("message").focus();
}

/** Answers the conversation so far, and then compares. */
async function respond() {
  const controller = new AbortController(), history = messages, seed = nextSeed(), before = insight.answer, answer = begin();
  hideProblem();
  busy(controller);
  state("answering");
  try {
    await receive(answer, request(answer.method, history, seed), controller.signal);
    keepAtEnd(() => answer.end());
    speaker.finish(`Answer finished: ${many(answer.numTokens, "token")} in ${answer.passes}.`);
    if ($("compare").checked && !answer.method.plain) {
      await compare(answer, request(plainMethod(), history, seed), controller.signal);
    }
    if (history === messages) state("finished");
  } catch (error) {
    failed(answer, error, controller.signal.aborted, history === messages);
    if (insight.answer === answer && answer.isEmpty) insight.follow(before);
  } finally {
    if (answer.text) history.push({ role: "assistant", content: answer.text });
    if (running === controller) busy(null);
    insight.update();
  }
}

async function receive(answer, body, signal) {
  for await (const piece of chat(body, signal)) {
    const choice = piece.choices[0], text = choice?.delta.content ?? "";
    if (piece.usage) answer.usage = piece.usage;
    if (!text && !choice?.foredraft) continue;
    keepAtEnd(() => answer.add(choice.foredraft?.round, text));
    speaker.add(text);
    if (insight.answer === answer) insight.update();
  }
}

/** The same request by plain decoding, after the answer: side by side they would slow each other. */
async function compare(answer, body, signal) {
  state("plain decoding, to compare");
  const rounds = [], plain = { rate: null, text: "", tokens: 0, whole: false };
  answer.plain = plain;
  for await (const piece of chat(body, signal)) {
    const choice = piece.choices[0];
    plain.text += choice?.delta.content ?? "";
    if (choice?.foredraft) rounds.push(choice.foredraft.round);
    plain.rate = piece.usage ? piece.usage.foredraft.tokens_per_s : measuredRate(rounds);
    if (piece.usage) Object.assign(plain, { tokens: piece.usage.completion_tokens, whole: true });
    insight.update();
  }
  keepAtEnd(() => answer.end());
  speaker.announce(answer.note.textContent);
}

/** A stop, or an error: what came stays. `isShown` tells whether the chat is still the one on the page. */
function failed(answer, error, isStopped, isShown) {
  const wasWhole = answer.usage !== null;
  if (wasWhole) answer.plain = null; // half a comparison is none
  answer.end(wasWhole ? "" : isStopped ? "stopped" : "failed");
  if (answer.isEmpty && !isStopped) answer.element.remove();
  if (!isShown) return;
  state(isStopped ? "stopped" : "failed");
  if (isStopped) return void speaker.finish("Stopped.");
  if (error.status === 401) return void askForKey(respond);
  if (!(error instanceof Refusal)) console.error(error);
  problem(error instanceof Refusal ? error.message : "The page failed; reload it.", wasWhole ? null : respond);
}

function problem(sentence, retry) {
  $("problem-text").textContent = /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
  keepAtEnd(() => {
    $("problem").hidden = false;
    $("again").hidden = retry === null;
  });
  again = retry;
}

function hideProblem() {
  $("problem").hidden = true;
}

// --- the key -----------------------------------------------------------------------------------------

let afterKey = null;
function askForKey(then) {
  afterKey = then;
  $("key-dialog").showModal();
}

$("key-form").addEventListener("submit", (event) => {
  event.preventDefault();
  setKey($("key").value);
  $("key").value = "";
  $("key-dialog").close();
  afterKey?.();
});
function withoutKey() {
  $("key-dialog").close();
  problem("This server needs an API key.", afterKey);
}
$("key-cancel").addEventListener("click", withoutKey);
$("key-dialog").addEventListener("cancel", withoutKey);

// --- controls ----------------------------------------------------------------------------------------

function send() {
  const text = $("message").value.trim();
  if (!text || running) return;
  if (!card) return void start();
  if (!$("composer").checkValidity()) {
    $("settings").open = true;
    return void $("composer").reportValidity();
  }
  $("message").value = "";
  fit();
  if (messages.at(-1)?.role === "user") messages.pop(); // it got no answer
  say(text);
  respond();
}

function fit() {
  const box = $("message");
  box.style.height = "auto";
  box.style.height = `${Math.min(box.scrollHeight, 200)}px`;
}

const THEMES = { "": ["◐", "automatic"], light: ["☀", "light"], dark: ["☾", "dark"] };
function theme() {
  const names = Object.keys(THEMES), root = document.documentElement;
  const next = names[(names.indexOf(root.dataset.theme ?? "") + 1) % names.length];
  if (next) root.dataset.theme = next;
  else delete root.dataset.theme;
  [$("theme").textContent] = THEMES[next];
  $("theme").setAttribute("aria-label", `Colours: ${THEMES[next][1]}`);
}

$("composer").addEventListener("submit", (event) => { event.preventDefault(); send(); });
$("message").addEventListener("input", fit);
$("message").addEventListener("keydown", (event) => {
  if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
  event.preventDefault();
  send();
});
document.addEventListener("keydown", (event) => { if (event.key === "Escape") running?.abort(); });
$("stop").addEventListener("click", () => running?.abort());
$("again").addEventListener("click", () => { $("message").focus(); again(); });
$("new-chat").addEventListener("click", newChat);
$("theme").addEventListener("click", theme);
$("composer").addEventListener("input", showSettings);
for (const example of document.querySelectorAll(".example")) {
  example.addEventListener("click", () => { $("message").value = example.textContent; send(); });
}

async function start() {
  hideProblem();
  try {
    await loadModel();
  } catch (error) {
    if (error.status === 401) askForKey(start);
    else problem(error.message, start);
  }
}

insight.draw();
start();
