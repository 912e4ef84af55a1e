// The live view: rounds as they happen, and how the set is doing.

import { ApiError, ask, events } from "./api.js";
import { StackedBar } from "./chart.js";
import { el, iconButton, relabel } from "./dom.js";
import { duration } from "./format.js";
import { drawRound, visible } from "./round.js";
import { Recent, STAGES, tile, tiles } from "./tiles.js";

/** The least time that a round stays. */
const ROUND_MS = 450;
/** Rounds that one can go back to. */
const KEPT = 100;
const RETRY_MS = 2000;

export class Live {
  /** `needsKey` is called where the server wants one. */
  constructor(root, { needsKey }) {
    this.needsKey = needsKey;
    this.recent = new Recent();
    this.tiles = tiles();
    this.rounds = new Rounds();
    this.trouble = el("div", { class: "trouble", role: "alert", hidden: true });
    const { headline, acceptance, stages, workers, requests, prefixes, compression } = this.tiles;
    root.append(
      el(
        "div",
        { class: "live-page" },
        this.trouble,
        headline.element,
        el("div", { class: "grid" }, this.rounds.element, acceptance.element, stages.element, workers.element, requests.element, prefixes.element, compression.element),
      ),
    );
  }

  /** Watches until it is stopped, over interruptions. */
  async start() {
    if (this.watching) return;
    const watching = new AbortController();
    this.watching = watching;
    while (!watching.signal.aborted) {
      try {
        const reply = await ask("/status/events", { signal: watching.signal });
        for await (const { event, data } of events(reply)) this.#take(event, JSON.parse(data));
        this.#fail(new ApiError(0, "The server ended the connection."));
      } catch (error) {
        if (watching.signal.aborted) return;
        this.#fail(error);
        if (error.status === 401 || error.status === 403) {
          this.stop();
          this.needsKey(() => this.start());
          return;
        }
      }
      await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
    }
  }

  /** Where nobody looks, nobody watches. */
  stop() {
    this.watching?.abort();
    this.watching = null;
  }

  #take(event, data) {
    this.trouble.hidden = true;
    if (event === "round") {
      this.rounds.push(data);
      return;
    }
    this.recent.push(data);
    this.rounds.note(data);
    for (const part of Object.values(this.tiles)) part.update(data, this.recent);
  }

  #fail(error) {
    const known = error instanceof ApiError ? error : new ApiError(-1, String(error));
    this.trouble.hidden = false;
    this.trouble.replaceChildren(el("div", {}, el("strong", {}, known.title), el("p", {}, `${known.message} Trying again.`)));
  }
}

/** The newest round, or one of those before it. */
class Rounds {
  constructor() {
    this.kept = [];
    this.at = -1;
    this.isPaused = false;
    this.canvas = el("div", { class: "canvas", tabIndex: 0, "aria-label": "The round as a tree" });
    this.empty = el("p", { class: "empty" });
    this.canvas.append(this.empty);
    this.text = el("p", { class: "told" });
    this.times = new StackedBar(STAGES, duration);
    this.back = iconButton("back", "The round before", () => this.#step(-1));
    this.forward = iconButton("forward", "The round after", () => this.#step(1));
    this.pause = iconButton("pause", "Pause", () => this.#setPaused(!this.isPaused));
    this.place = el("span", { class: "place" });
    this.element = tile(
      "rounds",
      "Speculative rounds",
      el("div", { class: "round-controls" }, this.place, this.back, this.pause, this.forward),
      this.canvas,
      el("ul", { class: "legend kinds" }, kind("anchor", "newest token"), kind("accepted", "proposed, accepted"), kind("own", "the target's own"), kind("rejected", "proposed, not chosen")),
      this.text,
      el("h3", {}, "This round"),
      this.times.element,
    );
    this.canvas.addEventListener("keydown", (event) => {
      if (event.key === "ArrowLeft") this.#step(-1);
      if (event.key === "ArrowRight") this.#step(1);
      if (event.key === " ") {
        event.preventDefault();
        this.#setPaused(!this.isPaused);
      }
    });
    this.#show();
  }

  /** What can be said while there is no round. */
  note({ draft, state, shows_text: showsText }) {
    this.showsText = showsText;
    if (this.kept.length > 0) return;
    if (state !== "ready") this.empty.textContent = "The target is not there yet.";
    else if (!draft) this.empty.textContent = "This set has no draft: tokens come one by one.";
    else if (draft.state !== "ready") this.empty.textContent = `The draft is not there: ${draft.reason}.`;
    else this.empty.textContent = "Rounds show up here while an answer is made. Ask something in the chat.";
  }

  push(round) {
    this.kept.push(round);
    if (this.kept.length > KEPT) {
      this.kept.shift();
      this.at = Math.max(0, this.at - 1);
    }
    if (this.isPaused || this.waits) return;
    this.at = this.kept.length - 1;
    this.#show();
    // What comes meanwhile is skipped, but for the last.
    this.waits = setTimeout(() => {
      this.waits = null;
      if (this.isPaused || this.at === this.kept.length - 1) return;
      this.at = this.kept.length - 1;
      this.#show();
    }, ROUND_MS);
  }

  #step(by) {
    this.#setPaused(true);
    this.at = Math.min(this.kept.length - 1, Math.max(0, this.at + by));
    this.#show();
  }

  #setPaused(isPaused) {
    this.isPaused = isPaused;
    relabel(this.pause, isPaused ? "play" : "pause", isPaused ? "Go on" : "Pause");
    if (!isPaused) this.at = this.kept.length - 1;
    this.#show();
  }

  #show() {
    const round = this.kept[this.at];
    this.back.disabled = this.at <= 0;
    this.forward.disabled = this.at >= this.kept.length - 1;
    this.pause.disabled = !round;
    this.times.element.hidden = !round;
    if (!round) return;
    const { sequence, position, step_sequences: company } = round;
    this.place.textContent = `sequence ${sequence}, position ${position}${company > 1 ? `, ${company} in the step` : ""}`;
    this.canvas.replaceChildren(drawRound(round));
    this.text.replaceChildren(...this.#told(round));
    this.times.update(round.ms);
  }

  #told({ chosen, nodes, accepted }) {
    const sum = `${accepted.length} of ${nodes.length} proposed tokens accepted, ${chosen.length} tokens in one step`;
    if (!this.showsText) return [sum, el("span", { class: "note" }, " (--status-text shows the tokens)")];
    return [sum, el("span", { class: "chips" }, ...chosen.map((text, n) => el("span", { class: n < accepted.length ? "is-accepted" : "is-own" }, visible(text))))];
  }
}

function kind(name, words) {
  return el("li", {}, el("i", { class: `is-${name}` }), words);
}
