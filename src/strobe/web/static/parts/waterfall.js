// Where a snapshot's time went: phases side by side, stages one below the other, all from the trigger on.
import { html } from "../vendor/htm-preact.js";
import { PHASES, ms, words } from "../words.js";

const shown = (phases) => Object.entries(phases).filter(([name, took]) => name in PHASES && took > 0);
const told = (phases) => shown(phases).map(([name, took]) => `${words(name)} ${ms(took)}`).join(", ");

export function Phases({ phases, whole, label = "" }) {
  const parts = shown(phases);
  if (!parts.length || !whole) return html`<span class="quiet">–</span>`;
  return html`<span class="phasebar" role="img" aria-label=${`${label ? `slowest ${label}: ` : ""}${told(phases)}`} title=${`${label ? `slowest: ${label}\n` : ""}${told(phases)}`}>
    ${parts.map(([name, took]) => html`<i class=${`phase ${name}`} style=${{ width: `${(100 * took) / whole}%` }}></i>`)}</span>`;
}

export function PhaseKeys({ also = [] }) {
  return html`<ul class="legend phases" aria-label="Phases">${Object.keys(PHASES).concat(also).map((name) => html`<li title=${PHASES[name]}><i class=${`swatch phase ${name}`}></i>${words(name)}</li>`)}</ul>`;
}

export function Waterfall({ nodes, past }) {
  const rest = past.phases.manifest || 0;
  const whole = Math.max(past.duration_ms, ...nodes.map((n) => n.duration_ms), 1e-9);
  const sorted = [...nodes].sort((a, b) => start(a) - start(b) || a.duration_ms - b.duration_ms);
  return html`<div class="waterfall" role="table" aria-label="Stages, and how long each phase took">
    ${sorted.map((n) => html`<div class="fall" role="row" key=${n.node}>
      <span role="rowheader" class=${n.node === past.slowest ? "slowest" : ""} title=${n.node === past.slowest ? `${n.node}: its part came last` : n.node}>${n.node}</span>
      <span role="cell" class="track" aria-label=${told(n.phases)} title=${told(n.phases)}>
        ${shown(n.phases).map(([name, took]) => html`<i class=${`phase ${name}`} style=${{ width: `${(100 * took) / whole}%` }}></i>`)}
        ${n.node === past.slowest && rest > 0 && html`<i class="phase manifest" style=${{ width: `${(100 * rest) / whole}%` }}></i>`}
      </span>
      <span role="cell" class="num">${ms(n.duration_ms)}</span></div>`)}
    <div class="fall axis" aria-hidden="true"><span></span><span class="track"><b>0</b><b>${ms(whole / 2)}</b><b>${ms(whole)}</b></span><span></span></div>
  </div>`;
}

const start = (n) => n.phases.start_delay || 0;
