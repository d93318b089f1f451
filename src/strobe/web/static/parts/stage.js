// One stage, beside the graph: its figures, how they have been, its error, what it is.
import { html, useEffect, useRef } from "../vendor/htm-preact.js";
import { Chart } from "./chart.js";
import { MOODS, State } from "./bits.js";
import { PHASE_WORDS } from "./graph.js";
import { bytes, count, ms, rate, short, words } from "../words.js";

const SHOWN = { rows_per_second: rate, batch_ms: ms, state_bytes: bytes, snapshot_bytes: bytes };
const plain = (value) => value === null || typeof value !== "object" || Array.isArray(value);
const figure = (name, value) => (value === null || (name === "batch" && value < 0) ? "–" : name === "busy" ? `${Math.round(value * 100)} %` : name.endsWith("_per_second") ? rate(value) : SHOWN[name] ? SHOWN[name](value) : name.endsWith("_bytes") ? bytes(value) : name.endsWith("_ms") ? ms(value)
  : typeof value === "number" ? (Number.isInteger(value) ? count(value) : value.toFixed(2)) : typeof value === "object" ? JSON.stringify(value) : String(value));

export function Stage({ stage, samples, channels, barrier, close }) {
  const head = useRef(null);
  useEffect(() => { head.current.focus({ preventScroll: true }); }, [stage.uid]);
  const reads = channels.filter((c) => c.consumer === stage.uid), read = channels.filter((c) => c.producer === stage.uid);
  const d = stage.description;
  return html`<aside class="card stage" aria-label=${`Stage ${stage.uid}`}>
    <header><h2 tabindex="-1" ref=${head}>${stage.uid}</h2><${State} state=${stage.state} /><button class="quiet" onClick=${close} aria-label="Close the stage">✕</button></header>
    <p class="quiet">${MOODS[stage.mood]}${barrier ? ` · snapshot ${barrier.snapshot}: ${PHASE_WORDS[barrier.phase] || barrier.phase}` : ""}
      ${barrier && barrier.waits_for.length ? ` · waits for ${barrier.waits_for.join(", ")}` : ""}</p>
    ${stage.error && html`<pre class="error" role="alert">${stage.error}</pre>`}
    <${Figures} of=${Object.entries(stage.figures).filter(([, v]) => plain(v))} />
    ${samples && samples.time.length > 1 && html`<div class="history"><h3>Since this page was opened</h3>
      <${Chart} label="rows/s" data=${[samples.time, samples.rate]} series=${[{ label: "rows/s", colour: "--c1", fill: true }]} height=${72} bare=${true} value=${rate} />
      <${Chart} label="batch time" data=${[samples.time, samples.batch]} series=${[{ label: "ms", colour: "--c2", fill: true }]} height=${72} bare=${true} value=${ms} />
      <${Chart} label="rows waiting" data=${[samples.time, samples.lag]} series=${[{ label: "rows", colour: "--c3", fill: true }]} height=${72} bare=${true} value=${short} />
      <${Chart} label="state" data=${[samples.time, samples.state]} series=${[{ label: "rows", colour: "--c4", fill: true }]} height=${72} bare=${true} value=${short} /></div>`}
    ${Object.entries(stage.figures).filter(([, v]) => !plain(v)).map(([k, v]) => html`<h3>${name(k)}</h3><${Figures} of=${Object.entries(v).filter(([, each]) => each !== null)} />`)}
    ${reads.length > 0 && html`<h3>Reads</h3><ul class="plain">${reads.map((c) => html`<li>${c.producer}${c.feedback ? " (feedback)" : ""}${c.chained ? " (chained: no channel)" : ""}<span class="quiet"> ${c.rows_waiting === null ? "" : `${count(c.rows_waiting)} rows waiting`}</span></li>`)}</ul>`}
    ${(read.length > 0 || stage.sinks.length > 0) && html`<h3>Goes to</h3><ul class="plain">${read.map((c) => html`<li>${c.consumer}</li>`)}${stage.sinks.map((s) => html`<li>sink ${s}</li>`)}</ul>`}
    ${Object.keys(stage.settings).length > 0 && html`<h3>Settings</h3><dl class="facts">${Object.entries(stage.settings).map(([k, v]) => html`<dt>${words(k)}</dt><dd>${v}</dd>`)}</dl>`}
    ${d.operators && html`<h3>What it is</h3>
      <ul class="plain">${(d.sources || []).map((s) => html`<li>source <code>${text(s)}</code></li>`)}${d.operators.map((o) => html`<li>operator <code>${text(o)}</code></li>`)}
      ${d.operators.length === 0 && html`<li class="quiet">keeps no state</li>`}</ul>
      ${d.schema && html`<details><summary>schema</summary><pre>${d.schema}</pre></details>`}
      ${d.meaning && html`<details><summary>plan, as far as its state depends on it</summary><pre>${JSON.stringify(d.meaning, null, 1)}</pre></details>`}`}
  </aside>`;
}

const name = (k) => words(k).replace(/^./, (first) => first.toUpperCase());

function Figures({ of }) {
  return html`<dl class="figures">${of.map(([k, v]) => html`<div><dt>${words(k)}</dt><dd>${figure(k, v)}</dd></div>`)}</dl>`;
}

function text(value) {
  if (typeof value === "string") return value;
  if (value && typeof value === "object" && !Array.isArray(value)) {
    return Object.entries(value).filter(([, v]) => v !== null && v !== "").map(([k, v]) => `${k} ${typeof v === "object" ? JSON.stringify(v) : v}`).join(", ");
  }
  return JSON.stringify(value);
}
