// Numbers and times for people.
const NARROW = "\u202f";

export function count(n) {
  if (n === null || n === undefined) return "–";
  if (typeof n !== "number") return String(n);
  return Math.round(n).toLocaleString("en").replaceAll(",", NARROW);
}

export function short(n) {
  if (n === null || n === undefined) return "–";
  const size = Math.abs(n);
  if (size >= 1e9) return `${(n / 1e9).toFixed(1)} G`;
  if (size >= 1e6) return `${(n / 1e6).toFixed(1)} M`;
  if (size >= 1e4) return `${(n / 1e3).toFixed(size >= 1e5 ? 0 : 1)} k`;
  return count(n);
}

export function rate(n) {
  if (n === null || n === undefined) return "–";
  return n > 0 && n < 10 ? n.toFixed(1) : short(n);
}

export function ms(n) {
  if (n === null || n === undefined) return "–";
  if (n < 1) return n === 0 ? "0 ms" : "<1 ms";
  if (n < 1000) return `${Math.round(n)} ms`;
  if (n < 60000) return `${(n / 1000).toFixed(n < 10000 ? 2 : 1)} s`;
  return `${Math.floor(n / 60000)} min ${Math.round((n % 60000) / 1000)} s`;
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let i = 0;
  while (n >= 1024 && i < units.length - 1) { n /= 1024; i += 1; }
  return `${i && n < 10 ? n.toFixed(1) : Math.round(n)} ${units[i]}`;
}

export function clock(time) {
  const at = new Date(time);
  if (!time || Number.isNaN(at.getTime())) return "–";
  const today = new Date().toDateString() === at.toDateString();
  const hours = at.toLocaleTimeString("en-GB");
  return today ? hours : `${at.toLocaleDateString("en-CA")} ${hours}`;
}

export function since(time, now = Date.now()) {
  const at = new Date(time).getTime();
  if (!time || Number.isNaN(at)) return "–";
  const s = Math.max(0, Math.round((now - at) / 1000));
  if (s < 90) return `${s} s`;
  if (s < 5400) return `${Math.round(s / 60)} min`;
  if (s < 172800) return `${Math.round(s / 3600)} h`;
  return `${Math.round(s / 86400)} days`;
}

export const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;
export const clip = (text, most) => (text.length > most ? `${text.slice(0, most - 1)}…` : text);
export const words = (name) => name.replaceAll("_", " ");

// The phases of a snapshot, in their order, each with what it means.
export const PHASES = {
  start_delay: "the barrier was on its way, or the stage's own batch was running",
  alignment: "held the inputs that had the barrier, until all had it",
  sync: "recorded its state; the stage stood still",
  channels: "waited for barriers of channels that it did not hold",
  async: "made its part durable, while it ran on",
  prepare: "its sinks prepared what they commit with the snapshot",
  acknowledge: "the coordinator read its part",
  manifest: "the cut was checked and the manifest written",
};
