// Before anything is painted, so that a page in the dark does not flash.
"use strict";

{
  let theme = null;
  try {
    theme = localStorage.getItem("tandem.theme");
  } catch {
    // Without storage the system decides.
  }
  if (theme === "light" || theme === "dark") document.documentElement.dataset.theme = theme;
}
