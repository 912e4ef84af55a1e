// The tiles of the live view that are made of counters.

import { Columns, Meter, Sparkline, StackedBar } from "./chart.js";
import { el } from "./dom.js";
import { bytes, count, duration, percent, rate } from "./format.js";

export const STAGES = [
  { key: "draft", name: "draft", title: "The draft model's own pass" },
  { key: "channel", name: "channel", title: "The way to the draft and back" },
  { key: "tree", name: "tree", title: "Growing the tree" },
  { key: "verify", name: "verify", title: "The target's pass over the tree" },
  { key: "commit", name: "commit", title: "Choosing tokens and committing them" },
];

/** Seconds that speeds and shares are taken over. */
const WINDOW = 60;

/** A tile with a heading. */
export function tile(kind, title, ...children) {
  return el("section", { class: `tile ${kind}`, "aria-label": title }, el("h2", {}, title), ...children);
}

/** The row of large figures. */
class Headline {
  constructor() {
    this.speed = figure("tokens per second");
    this.length = figure("tokens per round");
    this.accepted = figure("of drafts accepted");
    this.running = figure("answers being made");
    this.waiting = figure("waiting");
    this.spark = new Sparkline(WINDOW);
    this.speed.element.append(this.spark.element);
    const all = [this.speed, this.length, this.accepted, this.running, this.waiting];
    this.element = el("div", { class: "headline" }, ...all.map(({ element }) => element));
  }

  update(status, recent) {
    const speed = recent.speed();
    this.speed.set(rate(speed));
    this.spark.push(speed);
    const { rounds, accepted, drafted } = recent.speculation();
    this.length.set(rounds > 0 ? (1 + accepted / rounds).toFixed(2) : "–");
    this.accepted.set(drafted > 0 ? percent(accepted / drafted) : "–");
    const { running, slots, queued } = status.requests;
    this.running.set(running ?? "–", slots ? `of ${slots}` : "");
    this.waiting.set(queued ?? "–");
  }
}

function figure(name) {
  const value = el("b");
  const of = el("small");
  return {
    element: el("div", { class: "figure" }, el("div", {}, value, of), el("span", {}, name)),
    set(text, rest = "") {
      value.textContent = text;
      of.textContent = rest;
    },
  };
}

class Acceptance {
  constructor() {
    this.columns = new Columns("Rounds by accepted draft tokens");
    this.note = el("p", { class: "note" });
    this.element = tile("acceptance", "Accepted per round", this.columns.element, this.note);
  }

  update(status, recent) {
    const { byAccepted, rounds } = recent.speculation();
    const shown = byAccepted.slice(0, 1 + byAccepted.findLastIndex((n) => n > 0));
    this.columns.update(
      (shown.length > 0 ? shown : [0]).map((n, accepted) => {
        const share = rounds > 0 ? n / rounds : 0;
        return { name: accepted, share, words: `${percent(share)} of rounds accepted ${accepted}` };
      }),
    );
    this.note.textContent = rounds > 0
      ? `Percent of ${count(rounds)} rounds, by draft tokens accepted.`
      : "No rounds yet.";
  }
}

class StageTimes {
  constructor() {
    this.bar = new StackedBar(STAGES, duration);
    this.element = tile("stages", "Time of a round", this.bar.element);
  }

  update(status, recent) {
    const { rounds, stages } = recent.speculation();
    const perRound = STAGES.map(({ key }) => [key, rounds > 0 ? (1000 * stages[key]) / rounds : 0]);
    this.bar.update(Object.fromEntries(perRound));
  }
}

/** The processes, their models and devices. */
class Workers {
  constructor() {
    this.rows = el("div", { class: "workers" });
    this.element = tile("devices", "Devices", this.rows);
  }

  update({ target, draft, prefill, speculation }) {
    const rows = [
      worker("target", "Target", target, [
        target.architecture,
        target.layers && `${target.layers} layers`,
        target.n_ctx && `${count(target.n_ctx)} tokens of context`,
      ]),
      worker("draft", "Draft", draft, [
        draft?.transport && `over ${draft.transport}`,
        draft?.block_size && `${draft.block_size} positions at a time`,
        speculation?.draft_timeouts > 0 && `late proposals: ${count(speculation.draft_timeouts)}`,
      ]),
      worker("prefill", "Prefill", prefill, [
        prefill?.state === "ready" && (prefill.is_resident ? "on its device" : "at rest"),
        prefill?.prompts > 0 && `${count(prefill.prompts)} prompts`,
      ]),
    ];
    this.rows.replaceChildren(...rows);
  }
}

function worker(kind, name, told, facts) {
  const state = told?.state ?? "none";
  const memory = told?.memory ?? {};
  const resident = memory.resident_bytes && `${bytes(memory.resident_bytes)} of host memory`;
  const free = memory.device_free_bytes && `${bytes(memory.device_free_bytes)} free on the device`;
  const rest = told ? [...facts, resident, free].filter(Boolean) : [];
  return el(
    "div",
    { class: `worker of-${kind}` },
    el("div", { class: "worker-head" }, el("i", { class: "dot", dataset: { state } }), el("b", {}, name), el("span", {}, told?.model ?? (told ? "" : "none"))),
    told?.device ? el("p", { class: "device" }, told.device) : null,
    told?.reason ? el("p", { class: "reason" }, told.reason) : null,
    rest.length > 0 ? el("p", { class: "note" }, rest.join(" · ")) : null,
  );
}

class Requests {
  constructor() {
    this.slots = el("div", { class: "slots", role: "img" });
    this.inFlight = new Meter("In flight");
    this.list = facts();
    this.element = tile("requests", "Requests", this.slots, this.inFlight.element, this.list.element);
  }

  update({ requests }, recent) {
    const { slots = 0, running = 0, in_flight: inFlight, max_in_flight: most } = requests;
    this.slots.replaceChildren(...Array.from({ length: Math.min(slots ?? 0, 64) }, (_, n) => el("i", { class: n < running ? "is-taken" : "" })));
    this.slots.setAttribute("aria-label", `${running ?? 0} of ${slots ?? 0} places taken`);
    this.inFlight.update(inFlight / most, `${inFlight} of ${most}`);
    this.list.update([
      ["waiting for a place", count(requests.queued ?? 0)],
      ["answered", count(requests.finished ?? 0)],
      ["given up by clients", count(requests.cancelled ?? 0)],
      ["prompt tokens per second", rate(recent.promptSpeed())],
    ]);
  }
}

class PrefixCache {
  constructor() {
    this.list = facts();
    this.saved = new Meter("Prompt tokens that were there already");
    this.element = tile("prefixes", "Prefix cache", this.saved.element, this.list.element);
  }

  update({ prefix_cache: cache, tokens }) {
    if (!cache) return;
    const all = cache.reused_tokens + (tokens.prompt ?? 0);
    const share = all > 0 ? cache.reused_tokens / all : 0;
    this.saved.update(share, percent(share));
    const rows = [
      ["requests that went on from one", count(cache.hits)],
      ["tokens not computed again", count(cache.reused_tokens)],
      ["prefixes kept", `${count(cache.prefixes)}, ${bytes(cache.bytes)}`],
      ["made room", count(cache.evictions)],
    ];
    if (cache.disk.prefixes > 0) rows.push(["kept in files", `${count(cache.disk.prefixes)}, ${bytes(cache.disk.bytes)}`]);
    this.list.update(rows);
  }
}

class Compression {
  constructor() {
    this.list = facts();
    this.note = el("p", { class: "note" });
    this.element = tile("compression", "Long prompts", this.list.element, this.note);
  }

  update({ compression, prefill }) {
    const rows = [["made shorter", compression.mode === "auto" ? `from ${count(compression.threshold)} tokens on` : compression.mode]];
    if (compression.mode !== "off") rows.push(["share kept", compression.keep]);
    if (prefill?.prompts > 0) {
      rows.push(["tokens in", count(prefill.tokens_in)], ["tokens kept", count(prefill.tokens_out)]);
      rows.push(["time per prompt", duration((1000 * prefill.score_seconds) / prefill.prompts)]);
    }
    this.list.update(rows);
    const isWanted = compression.mode !== "off" || prefill;
    this.note.textContent = isWanted && compression.trouble ? compression.trouble : "";
  }
}

/** Names and values under each other. */
function facts() {
  const element = el("dl", { class: "facts" });
  return {
    element,
    update(rows) {
      element.replaceChildren(...rows.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
    },
  };
}

/** What has changed in the last while. Counters begin anew with the target, and so does this. */
export class Recent {
  constructor() {
    this.samples = [];
  }

  push(status) {
    if (!status.speculation) return;
    const newest = this.samples.at(-1);
    if (newest && status.tokens.steps < newest.status.tokens.steps) this.samples = [];
    this.samples.push({ at: performance.now(), status });
    if (this.samples.length > WINDOW + 1) this.samples.shift();
  }

  /** Generated tokens per second, over two seconds. */
  speed() {
    return this.#perSecond("generated");
  }

  promptSpeed() {
    return this.#perSecond("prompt");
  }

  #perSecond(kind) {
    const [from, to] = [this.samples.at(-3) ?? this.samples[0], this.samples.at(-1)];
    if (!from || from === to) return 0;
    return (1000 * (to.status.tokens[kind] - from.status.tokens[kind])) / (to.at - from.at);
  }

  /** Of the window; where it saw no round, since the target's start. */
  speculation() {
    const to = this.samples.at(-1)?.status.speculation;
    if (!to) return { rounds: 0, accepted: 0, drafted: 0, byAccepted: [], stages: {} };
    const from = this.samples[0].status.speculation;
    const base = to.rounds > from.rounds ? from : null;
    const since = (value, key) => value - (base ? base[key] : 0);
    return {
      rounds: since(to.rounds, "rounds"),
      accepted: since(to.accepted_tokens, "accepted_tokens"),
      drafted: since(to.draft_tokens, "draft_tokens"),
      byAccepted: to.rounds_by_accepted.map((n, accepted) => n - (base?.rounds_by_accepted[accepted] ?? 0)),
      stages: Object.fromEntries(STAGES.map(({ key }) => [key, to.stage_seconds[key] - (base?.stage_seconds[key] ?? 0)])),
    };
  }
}

/** All of them, in their order. */
export function tiles() {
  return {
    headline: new Headline(),
    acceptance: new Acceptance(),
    stages: new StageTimes(),
    workers: new Workers(),
    requests: new Requests(),
    prefixes: new PrefixCache(),
    compression: new Compression(),
  };
}
