/** Tells a screen reader an answer while it comes: sentence by sentence, not token by token. */

const SENTENCE = /^[\s\S]*[.!?…:](?=\s)|^[\s\S]*\n/;

export class Speaker {
  /** `region` is a live region that nobody sees. */
  constructor(region) {
    this.region = region;
    this.waiting = "";
  }

  add(text) {
    this.waiting += text;
    const ready = SENTENCE.exec(this.waiting)?.[0];
    if (!ready) return;
    this.announce(ready);
    this.waiting = this.waiting.slice(ready.length);
  }

  /** The rest of the answer, and a closing remark. */
  finish(remark) {
    this.announce(`${this.waiting} ${remark}`);
    this.waiting = "";
  }

  announce(text) {
    if (text.trim()) this.region.textContent = text.trim();
  }
}
