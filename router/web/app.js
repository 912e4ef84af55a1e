// The page: two views, the theme, and whether the server is there.

import { ask, getJson } from "./api.js";
import { Chat } from "./chat.js";
import { byId, icon, relabel } from "./dom.js";
import { Live } from "./live.js";
import { setUpSettings } from "./settings.js";
import * as store from "./store.js";

/** How often an idle page asks whether the server is there. */
const HEALTH_MS = 10_000;
const TITLES = { chat: "Tandem", live: "Tandem, live" };

const chat = new Chat({ needsKey: (then) => openSettings({ needsKey: true, then }) });
const live = new Live(byId("live"), { needsKey: (then) => openSettings({ needsKey: true, then }) });
const openSettings = setUpSettings({ deleteAll: () => chat.deleteAll() });

function show(view) {
  const isChat = view === "chat";
  document.body.dataset.view = view;
  document.title = TITLES[view];
  byId("chat").hidden = !isChat;
  byId("live").hidden = isChat;
  document.body.classList.remove("shows-list");
  for (const link of document.querySelectorAll(".tabs a")) {
    if (link.dataset.view === view) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  if (isChat) {
    live.stop();
    if (matchMedia("(pointer: fine)").matches) chat.focus();
  } else {
    live.start();
  }
}

const viewOf = (path) => (path.startsWith("/status") ? "live" : "chat");

for (const link of document.querySelectorAll("a[data-view]")) {
  link.addEventListener("click", (event) => {
    if (event.metaKey || event.ctrlKey || event.shiftKey || event.button !== 0) return;
    event.preventDefault();
    const path = link.getAttribute("href");
    if (path !== location.pathname) history.pushState(null, "", path);
    show(link.dataset.view);
  });
}
addEventListener("popstate", () => show(viewOf(location.pathname)));

// The list of conversations, where there is no room for it beside the chat.
const opener = byId("open-list");
opener.append(icon("menu"));
opener.addEventListener("click", () => {
  const shows = document.body.classList.toggle("shows-list");
  opener.setAttribute("aria-expanded", String(shows));
});
byId("new-chat").addEventListener("click", () => document.body.classList.remove("shows-list"));
document.addEventListener("click", (event) => {
  if (!event.target.closest(".list, #open-list")) document.body.classList.remove("shows-list");
});

const isDark = () => {
  const chosen = store.theme.get();
  return chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
};
const showTheme = () => {
  if (store.theme.get()) document.documentElement.dataset.theme = store.theme.get();
  relabel(byId("theme"), isDark() ? "sun" : "moon", isDark() ? "Light" : "Dark");
};
byId("theme").addEventListener("click", () => {
  store.theme.set(isDark() ? "light" : "dark");
  showTheme();
});
showTheme();

async function checkServer() {
  const [dot, name] = [byId("server-dot"), byId("server-name")];
  try {
    await ask("/health");
    dot.dataset.state = "ready";
    const { data } = await getJson("/v1/models");
    name.textContent = data[0].id;
    const context = data[0].context_length;
    byId("welcome-model").textContent = context
      ? `${data[0].id} answers, with room for ${context.toLocaleString("en")} tokens.`
      : `${data[0].id} answers.`;
  } catch (error) {
    const words = { 0: "no connection", 401: "wants a key", 503: "not ready" };
    dot.dataset.state = error.status === 503 ? "waiting" : "gone";
    if (error.status === 401) dot.dataset.state = "waiting";
    name.textContent = words[error.status] ?? "trouble";
  }
}
checkServer();
setInterval(() => {
  if (!document.hidden) checkServer();
}, HEALTH_MS);

show(viewOf(location.pathname));
