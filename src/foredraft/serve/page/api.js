/** The server's API: its model, and chats as streams. The key lives in this module's memory alone. */

let key = "";

export const setKey = (given) => { key = given; };

/** What the server, or the way to it, refused; `message` is one sentence. */
export class Refusal extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

const LOST = "The connection to the server was lost; check that it runs, and try again.";

const headers = () => ({ "Content-Type": "application/json", ...(key && { Authorization: `Bearer ${key}` }) });

async function ask(path, options) {
  let response;
  try {
    response = await fetch(path, { ...options, headers: headers(), credentials: "omit" });
  } catch (error) {
    throw error.name === "AbortError" ? error : new Refusal(0, LOST);
  }
  if (response.ok) return response;
  const document = await response.json().catch(() => null);
  throw new Refusal(response.status, document?.error?.message ?? `The server answered with status ${response.status}.`);
}

/** The card of the one model. */
export async function model() {
  return (await (await ask("/v1/models")).json()).data[0];
}

/** Pieces of a chat's answer, as documents; an error among them is thrown. */
export async function* chat(body, signal) {
  const response = await ask("/v1/chat/completions", { method: "POST", body: JSON.stringify(body), signal });
  for await (const data of events(response.body)) {
    if (data === "[DONE]") return;
    const document = JSON.parse(data);
    if (document.error) throw new Refusal(500, document.error.message);
    yield document;
  }
  throw new Refusal(0, LOST); // every whole stream says that it is done
}

async function* events(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let buffered = "";
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const parts = (buffered + value).split("\n\n");
      buffered = parts.pop();
      for (const part of parts) if (part.startsWith("data: ")) yield part.slice(6);
    }
  } catch (error) {
    throw error.name === "AbortError" ? error : new Refusal(0, LOST);
  } finally {
    reader.cancel().catch(() => {});
  }
}
