// Small things that every page uses.
import { html, useEffect, useState } from "../vendor/htm-preact.js";

export const MOODS = {
  busy: "busy", idle: "idle", held: "held by a barrier", restarting: "restarting", failed: "failed",
  ended: "ended", unknown: "not running",
};

const GOOD = ["running", "finished", "complete"];
const BAD = ["failed", "dead", "unreadable", "missing"];
const ODD = ["suspended", "silent", "failing", "restoring", "restarting"];

export function State({ state }) {
  const kind = GOOD.includes(state) ? "good" : BAD.includes(state) ? "bad" : ODD.includes(state) ? "odd" : "calm";
  return html`<span class=${`state ${kind}`}>${state || "unknown"}</span>`;
}

export function Trouble({ error, next, untouched, role = "status" }) {
  if (!error) return null;
  return html`<div class="trouble" role=${role}><p>${error}</p>${(untouched || next) && html`<p class="more">${untouched} ${next}</p>`}</div>`;
}

export function Lost({ lost }) {
  return lost ? html`<p class="banner odd" role="alert">The connection to strobe ui is lost. It is tried again; what stands here is the last that was seen.</p>` : null;
}

export function Crumbs({ at }) {
  return html`<nav class="crumbs" aria-label="Where you are">
    ${at.map(([name, href], i) => html`${i > 0 && html`<span aria-hidden="true">/</span>`}
      ${href ? html`<a href=${href}>${name}</a>` : html`<span aria-current="page">${name}</span>`}`)}
  </nav>`;
}

export function Copy({ text, label = "Copy" }) {
  const [done, set] = useState(false);
  const copy = async () => {
    try { await navigator.clipboard.writeText(text); set(true); setTimeout(() => set(false), 1500); } catch { set(false); }
  };
  return html`<button class="small quiet" onClick=${copy} aria-label=${`${label}: ${text}`}>${done ? "Copied" : label}</button>`;
}

// A clock that ticks once a second, for "3 s ago".
export function useNow() {
  const [now, set] = useState(Date.now());
  useEffect(() => {
    const timer = setInterval(() => set(Date.now()), 1000);
    return () => clearInterval(timer);
  }, []);
  return now;
}

export function Loading({ what }) {
  return html`<p class="empty" aria-busy="true">Reading ${what} …</p>`;
}
