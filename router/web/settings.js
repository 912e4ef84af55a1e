// The dialog with the settings.

import { getJson, key } from "./api.js";
import { byId, icon } from "./dom.js";
import * as store from "./store.js";

/** Sets the dialog up; gives what opens it. */
export function setUpSettings({ deleteAll }) {
  const dialog = byId("settings");
  let afterwards = null;
  byId("close-settings").append(icon("close"));
  byId("open-settings").append(icon("settings"));
  byId("open-settings").addEventListener("click", () => open());
  byId("close-settings").addEventListener("click", () => close());
  // A click beside it closes it.
  dialog.addEventListener("click", (event) => {
    if (event.target === dialog) close();
  });
  // Escape.
  dialog.addEventListener("cancel", keep);
  dialog.addEventListener("close", () => {
    const act = afterwards;
    afterwards = null;
    if (dialog.returnValue === "done") act?.();
    dialog.returnValue = "";
  });
  byId("settings-form").addEventListener("submit", (event) => {
    event.preventDefault();
    if (event.target.reportValidity()) close("done");
  });
  byId("clear-all").addEventListener("click", () => {
    if (!confirm("Delete all conversations in this browser?")) return;
    deleteAll();
    close();
  });

  /** Keeps before it closes: the event comes later, and a page that goes away meanwhile never hears it. */
  function close(result = "") {
    keep();
    dialog.close(result);
  }

  function open({ needsKey = false, then = null } = {}) {
    const settings = store.settings();
    afterwards = then;
    byId("set-system").value = settings.system;
    byId("set-temperature").value = settings.temperature ?? "";
    byId("set-max-tokens").value = settings.maxTokens ?? "";
    byId("set-thinking").value = settings.thinking;
    byId("set-key").value = key.get();
    byId("set-keep-key").checked = key.isKept();
    byId("key-notice").hidden = !needsKey;
    showDefaults();
    if (!dialog.open) dialog.showModal();
    if (needsKey) byId("set-key").focus();
  }
  return open;
}

/** What holds where nothing is set. */
async function showDefaults() {
  let defaults = {};
  try {
    defaults = (await getJson("/props")).default_generation_settings ?? {};
  } catch {
    // Then the fields just do not tell.
  }
  byId("set-temperature").placeholder = defaults.temperature ?? "Server's";
  byId("set-max-tokens").placeholder = defaults.max_tokens ?? "No limit";
}

function keep() {
  const number = (id) => {
    const field = byId(id);
    return field.value === "" || !field.validity.valid ? null : Number(field.value);
  };
  store.saveSettings({
    system: byId("set-system").value,
    temperature: number("set-temperature"),
    maxTokens: number("set-max-tokens"),
    thinking: byId("set-thinking").value,
  });
  key.set(byId("set-key").value.trim(), byId("set-keep-key").checked);
}
