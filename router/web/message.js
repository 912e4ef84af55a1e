// One message of a conversation on the page.

import { copyFrom } from "./code.js";
import { el, icon, iconButton } from "./dom.js";
import { count, duration, percent, rate } from "./format.js";
import { Markdown } from "./markdown.js";

/** What a person said. `acts`: `edit`. */
export function userMessage(message, acts) {
  const edit = iconButton("edit", "Edit and ask again", acts.edit);
  return el(
    "article",
    { class: "message of-user", "aria-label": "You" },
    el("div", { class: "bubble" }, message.content),
    el("div", { class: "actions" }, copyButton(() => message.content), edit),
  );
}

/** What the model said or says. `acts`: `again`. */
export class AssistantMessage {
  constructor(message, acts) {
    this.message = message;
    this.acts = acts;
    this.thinking = el("div", { class: "markdown" });
    this.content = el("div", { class: "markdown content" });
    this.summary = el("span");
    this.fold = el(
      "details",
      { class: "thinking", hidden: true },
      el("summary", {}, el("span", { class: "spark" }), this.summary),
      this.thinking,
    );
    this.fold.addEventListener("toggle", () => this.#renderThinking());
    this.wait = el("p", { class: "wait" }, el("span", { class: "pulse" }), el("span"));
    this.footer = el("footer", { class: "figures" });
    this.trouble = el("div", { class: "trouble", role: "alert", hidden: true });
    this.element = el(
      "article",
      { class: "message of-model", "aria-label": "Model" },
      this.fold,
      this.wait,
      this.content,
      this.trouble,
      this.footer,
    );
    this.shownThinking = new Markdown(this.thinking);
    this.shownContent = new Markdown(this.content);
    this.update(false);
  }

  /** Shows the message as it is now. */
  update(isRunning, progress = null) {
    const { message } = this;
    this.element.setAttribute("aria-busy", String(isRunning));
    const isThinking = isRunning && message.content === "" && Boolean(message.reasoning);
    this.fold.hidden = !message.reasoning;
    this.fold.classList.toggle("is-running", isThinking);
    this.summary.textContent = thought(message, isThinking);
    this.#renderThinking();
    this.wait.hidden = !isRunning || message.content !== "" || Boolean(message.reasoning);
    this.wait.lastChild.textContent = progress ?? "";
    this.shownContent.update(message.content);
    this.#renderTrouble();
    this.footer.replaceChildren(...(isRunning ? [] : this.#figures()));
  }

  /** What is folded away costs nothing. */
  #renderThinking() {
    if (this.fold.open) this.shownThinking.update(this.message.reasoning ?? "");
  }

  #renderTrouble() {
    const { trouble } = this.message;
    this.trouble.hidden = !trouble;
    if (!trouble || this.trouble.dataset.of === JSON.stringify(trouble)) return;
    this.trouble.dataset.of = JSON.stringify(trouble);
    const wait = trouble.retryAfterSeconds ? ` It asks for ${trouble.retryAfterSeconds} s of patience.` : "";
    const again = el("button", { class: "button", type: "button", on: { click: this.acts.again } }, icon("again"), "Try again");
    const words = el("div", {}, el("strong", {}, trouble.title), el("p", {}, trouble.message + wait));
    this.trouble.replaceChildren(words, again);
  }

  #figures() {
    const { message } = this;
    const said = figures(message).map(([value, unit, title]) => el("span", { title }, el("b", {}, value), ` ${unit}`));
    const actions = el("div", { class: "actions" });
    if (message.content) actions.append(copyButton(() => message.content));
    if (!message.trouble) actions.append(iconButton("again", "Answer again", this.acts.again));
    return [actions, ...said];
  }
}

function copyButton(text) {
  const button = iconButton("copy", "Copy", () => copyFrom(button, text()));
  return button;
}

function thought(message, isThinking) {
  if (isThinking) return "Thinking";
  // What came with the first words was thought before this page could look.
  return message.thoughtMs > 50 ? `Thought for ${duration(message.thoughtMs)}` : "Thoughts";
}

/** What is known of an answer's speed, as value, unit and explanation. */
function figures({ timings, firstTokenMs, stopped, finish }) {
  const shown = [];
  if (timings) {
    shown.push([rate(timings.predicted_per_second), "tokens/s", `${count(timings.predicted_n)} tokens in ${duration(timings.predicted_ms)}`]);
  }
  if (firstTokenMs) {
    const cached = timings?.cache_n ? `, ${count(timings.cache_n)} of the prompt's tokens were kept` : "";
    shown.push([duration(firstTokenMs), "to the first token", `measured here${cached}`]);
  }
  if (timings?.speculation) {
    const { acceptance_length: length, rounds } = timings.speculation;
    shown.push([length.toFixed(1), "tokens per round", `${count(rounds)} rounds`]);
    const share = timings.draft_n > 0 ? timings.draft_n_accepted / timings.draft_n : 0;
    shown.push([percent(share), "of drafts accepted", `${count(timings.draft_n_accepted)} of ${count(timings.draft_n)} draft tokens`]);
  }
  if (stopped) shown.push(["", "stopped", "You stopped it"]);
  else if (finish === "length") shown.push(["", "cut off", "The limit of tokens was reached"]);
  return shown;
}
