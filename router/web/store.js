// What outlives the page: conversations and settings, in this browser only.

const CHAT = "tandem.chat.";
const SETTINGS = "tandem.settings";
const CURRENT = "tandem.current";
const THEME = "tandem.theme";
/** The oldest ones make room. */
const MAX_CONVERSATIONS = 100;

export const DEFAULT_SETTINGS = { system: "", temperature: null, maxTokens: null, thinking: "" };

/** A conversation without messages; stored once there is one. */
export function newConversation() {
  return { id: crypto.getRandomValues(new Uint32Array(2)).join("-"), title: "", updated: Date.now(), messages: [] };
}

/** All conversations, the newest first. Each has a place of its own, so that two tabs do not overwrite each other's. */
export function conversations() {
  const found = [];
  for (let n = 0; n < localStorage.length; n += 1) {
    const name = localStorage.key(n);
    if (!name.startsWith(CHAT)) continue;
    const conversation = readJson(name);
    if (Array.isArray(conversation?.messages)) found.push(conversation);
  }
  return found.sort((a, b) => b.updated - a.updated);
}

/** One of them, or nothing. */
export function conversation(id) {
  const found = readJson(CHAT + id);
  return Array.isArray(found?.messages) ? found : null;
}

/** Stores a conversation; whether there was room. */
export function save(conversation) {
  const others = conversations().filter(({ id }) => id !== conversation.id);
  while (others.length >= MAX_CONVERSATIONS) remove(others.pop().id);
  for (;;) {
    try {
      localStorage.setItem(CHAT + conversation.id, JSON.stringify(conversation));
      return true;
    } catch {
      const oldest = others.pop();
      if (!oldest) return false;
      remove(oldest.id);
    }
  }
}

export function remove(id) {
  localStorage.removeItem(CHAT + id);
}

/** The conversation that was open last. */
export const current = {
  get: () => localStorage.getItem(CURRENT),
  set: (id) => attempt(() => localStorage.setItem(CURRENT, id)),
};

export function settings() {
  return { ...DEFAULT_SETTINGS, ...readJson(SETTINGS) };
}

export function saveSettings(changed) {
  attempt(() => localStorage.setItem(SETTINGS, JSON.stringify(changed)));
}

/** `light` or `dark`; null: as the system has it. */
export const theme = {
  get: () => localStorage.getItem(THEME),
  set: (value) => attempt(() => localStorage.setItem(THEME, value)),
};

function readJson(name) {
  try {
    return JSON.parse(localStorage.getItem(name));
  } catch {
    return null;
  }
}

function attempt(act) {
  try {
    act();
  } catch {
    // A full or forbidden storage costs the memory of a choice, no more.
  }
}
