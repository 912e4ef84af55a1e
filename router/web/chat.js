// The chat: conversations, the composer, and the answer that is being made.

import { ApiError, streamChat } from "./api.js";
import { byId, el, icon, iconButton, oncePerFrame, relabel } from "./dom.js";
import { AssistantMessage, userMessage } from "./message.js";
import * as store from "./store.js";

const EXAMPLES = [
  "Write a Python function that returns the n-th Fibonacci number.",
  "Write a function that reverses a string.",
  "Write a function that checks whether a number is prime.",
  "Write a class for a stack with push and pop.",
];
/** How often an answer that is being made is stored. */
const SAVE_MS = 500;
/** Within which a page that goes away is gone. */
const GOING_MS = 250;
/** From the end, in pixels, up to which new text keeps the view at the end. */
const NEAR_END = 80;
const TITLE_CHARS = 60;

export class Chat {
  /** `needsKey` is called where the server wants one. */
  constructor({ needsKey }) {
    this.needsKey = needsKey;
    this.conversation = lastOpen();
    /** `{ abort, shown }` of the answer that is being made. */
    this.running = null;
    this.messages = byId("messages");
    this.scroll = byId("scroll");
    this.prompt = byId("prompt");
    this.sendButton = byId("send");
    this.toEnd = byId("to-end");
    this.follows = true;
    this.#listen();
    this.#show();
  }

  focus() {
    this.prompt.focus();
  }

  begin() {
    this.stop();
    this.#open(store.newConversation());
    this.focus();
  }

  stop() {
    this.running?.abort.abort();
  }

  deleteAll() {
    for (const { id } of store.conversations()) store.remove(id);
    this.begin();
  }

  #listen() {
    const grow = () => {
      this.prompt.style.height = "auto";
      this.prompt.style.height = `${this.prompt.scrollHeight}px`;
      this.#showSend();
    };
    this.prompt.addEventListener("input", grow);
    this.prompt.addEventListener("keydown", (event) => {
      if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
      event.preventDefault();
      if (!this.running) this.#submit();
    });
    byId("composer").addEventListener("submit", (event) => {
      event.preventDefault();
      if (this.running) this.stop();
      else this.#submit();
    });
    byId("new-chat").addEventListener("click", () => this.begin());
    this.toEnd.append(icon("down"));
    this.toEnd.addEventListener("click", () => {
      this.follows = true;
      this.#followEnd();
    });
    this.scroll.addEventListener("scroll", () => {
      const { scrollTop, clientHeight, scrollHeight } = this.scroll;
      this.follows = scrollHeight - clientHeight - scrollTop < NEAR_END;
      this.toEnd.hidden = this.follows;
    });
    addEventListener("keydown", (event) => {
      if (event.key === "Escape" && this.running && !document.querySelector("dialog[open]")) this.stop();
      if (event.altKey && event.code === "KeyN") this.begin();
    });
    // Another tab may have changed the list.
    addEventListener("storage", () => this.#showList());
    // Half an answer is better than none.
    addEventListener("pagehide", () => this.#save());
    byId("examples").append(...EXAMPLES.map((text) => el("button", { class: "example", type: "button", on: { click: () => this.#send(text) } }, text)));
    this.grow = grow;
  }

  #submit() {
    const text = this.prompt.value.trim();
    if (text === "") return;
    this.prompt.value = "";
    this.grow();
    this.#send(text);
  }

  #send(text) {
    const { conversation } = this;
    if (conversation.messages.length === 0) conversation.title = text.slice(0, TITLE_CHARS);
    conversation.messages.push({ role: "user", content: text });
    this.#answer();
  }

  /** Has the conversation so far answered. */
  async #answer() {
    const { conversation } = this;
    const message = { role: "assistant", content: "", reasoning: "" };
    const asked = request(conversation.messages);
    conversation.messages.push(message);
    conversation.updated = Date.now();
    this.follows = true;
    const run = { abort: new AbortController(), conversation };
    this.running = run;
    this.#save();
    this.#show();
    const answer = new Answer(message);
    const render = oncePerFrame(() => {
      this.shown?.update(this.running === run, answer.progress);
      this.#followEnd();
    });
    const saving = setInterval(() => this.#save(conversation), SAVE_MS);
    try {
      for await (const part of streamChat(asked, run.abort.signal)) {
        answer.take(part);
        if (this.running === run) render();
      }
    } catch (error) {
      // A page that goes away sees its connections break before it hears that it goes: no failure of the server.
      if (error.status === 0) await new Promise((resolve) => setTimeout(resolve, GOING_MS));
      answer.fail(error);
      if (error.status === 401 || error.status === 403) this.needsKey(() => this.#again());
    } finally {
      clearInterval(saving);
      answer.end();
      if (this.running === run) {
        this.running = null;
        this.shown?.update(false);
        this.#showSend();
        this.#followEnd();
        byId("announce").textContent = message.trouble ? message.trouble.title : "The answer is complete.";
      }
      this.#save(conversation);
    }
  }

  /** Forgets the last answer and makes another one. */
  #again() {
    if (this.running) return;
    if (this.conversation.messages.at(-1)?.role === "assistant") this.conversation.messages.pop();
    if (this.conversation.messages.length > 0) this.#answer();
  }

  /** Takes a message and all that followed it back into the composer. */
  #edit(index) {
    this.stop();
    const [message] = this.conversation.messages.splice(index);
    this.#save();
    this.#show();
    this.prompt.value = message.content;
    this.grow();
    this.focus();
  }

  #open(conversation) {
    this.stop();
    this.running = null;
    this.conversation = conversation;
    this.follows = true;
    store.current.set(conversation.id);
    this.#show();
  }

  #remove(id) {
    store.remove(id);
    if (id === this.conversation.id) {
      this.running?.abort.abort();
      this.running = null;
      this.#open(store.newConversation());
    }
    this.#showList();
  }

  #save(conversation = this.conversation) {
    // One that was deleted while its answer was made stays deleted.
    if (conversation.messages.length === 0) {
      store.remove(conversation.id);
      return;
    }
    if (conversation === this.conversation || store.conversation(conversation.id)) {
      if (!store.save(conversation)) byId("announce").textContent = "This browser has no room to keep the conversation.";
    }
    if (conversation === this.conversation) store.current.set(conversation.id);
  }

  #show() {
    const { messages } = this.conversation;
    this.shown = null;
    const elements = messages.map((message, index) => {
      if (message.role === "user") return userMessage(message, { edit: () => this.#edit(index) });
      const shown = new AssistantMessage(message, { again: () => this.#againAt(index) });
      this.shown = shown;
      return shown.element;
    });
    this.shown?.update(this.running !== null);
    this.messages.replaceChildren(...elements);
    byId("welcome").hidden = messages.length > 0;
    this.#showSend();
    this.#showList();
    this.#followEnd();
  }

  #againAt(index) {
    if (this.running) return;
    this.conversation.messages.length = index;
    this.#answer();
  }

  #showSend() {
    if (this.running) relabel(this.sendButton, "stop", "Stop (Esc)");
    else relabel(this.sendButton, "send", "Send (Enter)");
    this.sendButton.classList.toggle("is-stop", Boolean(this.running));
    this.sendButton.disabled = !this.running && this.prompt.value.trim() === "";
  }

  #showList() {
    const items = store.conversations().map((conversation) => {
      const isOpen = conversation.id === this.conversation.id;
      const title = conversation.title || "Untitled";
      const open = el("button", { class: "entry", type: "button", title, on: { click: () => this.#choose(conversation.id) } }, title);
      if (isOpen) open.setAttribute("aria-current", "true");
      const remove = iconButton("trash", `Delete “${title}”`, () => this.#remove(conversation.id), "icon-button small");
      return el("li", {}, open, remove);
    });
    byId("conversations").replaceChildren(...items);
  }

  #choose(id) {
    const conversation = store.conversation(id);
    if (conversation && id !== this.conversation.id) this.#open(conversation);
    document.body.classList.remove("shows-list");
    this.focus();
  }

  #followEnd() {
    if (this.follows) this.scroll.scrollTop = this.scroll.scrollHeight;
  }
}

/** The conversation that was open last. An answer that was being made when the page went away ended there. */
function lastOpen() {
  const conversation = store.conversation(store.current.get()) ?? store.newConversation();
  const last = conversation.messages.at(-1);
  if (last?.role === "assistant" && !last.finish && !last.trouble) last.stopped = true;
  return conversation;
}

/** An answer on its way into a message. */
class Answer {
  constructor(message) {
    this.message = message;
    this.started = performance.now();
    this.progress = null;
  }

  take(part) {
    const { message } = this;
    const now = performance.now() - this.started;
    if (part.prompt_progress) this.progress = progressWords(part.prompt_progress);
    if (part.timings) message.timings = part.timings;
    const choice = part.choices?.[0];
    const { reasoning_content: reasoning = "", content = "" } = choice?.delta ?? {};
    if (reasoning || content) message.firstTokenMs ??= now;
    message.reasoning += reasoning ?? "";
    if (content) {
      if (message.reasoning && message.content === "") message.thoughtMs = now - message.firstTokenMs;
      message.content += content;
    }
    if (choice?.finish_reason) message.finish = choice.finish_reason;
  }

  fail(error) {
    const { message } = this;
    if (error.name === "AbortError") {
      message.stopped = true;
      return;
    }
    const known = error instanceof ApiError ? error : new ApiError(-1, String(error));
    message.trouble = { title: known.title, message: known.message, retryAfterSeconds: known.retryAfterSeconds };
  }

  end() {
    const { message } = this;
    if (message.reasoning && !message.thoughtMs) message.thoughtMs = performance.now() - this.started - (message.firstTokenMs ?? 0);
  }
}

/** What the server is asked: what was said, without what was thought and without answers that never came. */
function request(messages) {
  const settings = store.settings();
  const said = messages
    .filter(({ role, content }) => role === "user" || content !== "")
    .map(({ role, content }) => ({ role, content }));
  const system = settings.system.trim() ? [{ role: "system", content: settings.system }] : [];
  const body = { messages: [...system, ...said] };
  if (settings.temperature !== null) body.temperature = settings.temperature;
  if (settings.maxTokens !== null) body.max_tokens = settings.maxTokens;
  if (settings.thinking) body.reasoning_effort = settings.thinking;
  return body;
}

const STAGES = { waiting: "Waiting for a place", prefill: "Reading the prompt" };

function progressWords({ stage, total, processed }) {
  const words = STAGES[stage] ?? stage.replaceAll("_", " ");
  return total > 0 ? `${words}, ${Math.floor((100 * processed) / total)} %` : words;
}
