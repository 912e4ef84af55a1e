// Figures as people read them.

/** Milliseconds. */
export function duration(ms) {
  if (ms > 0 && ms < 0.1) return `${Math.round(1000 * ms)} µs`;
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  if (ms < 60_000) return `${(ms / 1000).toFixed(1)} s`;
  const minutes = Math.floor(ms / 60_000);
  if (minutes < 60) return `${minutes} min ${Math.round((ms % 60_000) / 1000)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** A number that people compare: three digits and a unit. */
export function count(value) {
  if (value < 10_000) return Math.round(value).toLocaleString("en");
  const units = ["k", "M", "G", "T"];
  let scaled = value;
  let unit = "";
  while (scaled >= 1000 && units.length > 0) {
    scaled /= 1000;
    unit = units.shift();
  }
  return `${scaled.toFixed(scaled < 10 ? 2 : scaled < 100 ? 1 : 0)} ${unit}`;
}

/** Bytes. */
export function bytes(value) {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let scaled = value;
  while (scaled >= 1000 && units.length > 1) {
    scaled /= 1000;
    units.shift();
  }
  return `${scaled < 10 && units[0] !== "B" ? scaled.toFixed(1) : Math.round(scaled)} ${units[0]}`;
}

/** A speed. */
export function rate(value) {
  return value < 10 ? value.toFixed(1) : Math.round(value).toLocaleString("en");
}

/** A share of 1. */
export function percent(share) {
  return `${(100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0)} %`;
}
