// A graph, as the server has laid it out. Boxes are buttons; channels say what waits in them; barriers travel.
import { Component, html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { MOODS } from "./bits.js";
import { clip, short } from "../words.js";

const LEAST = 0.62; // smaller than this nobody can read

export function Graph({ drawing, boxes, wires, chosen, choose, label }) {
  const frame = useRef(null);
  const latest = useRef(choose);
  latest.current = choose;
  const [pick] = useState(() => (node) => latest.current(node));
  const [room, measure] = useState(0);
  const [zoom, setZoom] = useState(0); // 0: as it fits
  useEffect(() => {
    const watch = new ResizeObserver(() => frame.current && measure(frame.current.clientWidth));
    watch.observe(frame.current);
    measure(frame.current.clientWidth);
    return () => watch.disconnect();
  }, []);
  const fit = Math.max(LEAST, Math.min(1, room ? room / drawing.width : 1));
  const scale = zoom || fit;
  const turn = (by) => setZoom(Math.min(2, Math.max(0.2, scale * by)));
  return html`<div class="graph">
    <div class="zoom" role="group" aria-label="Size of the graph">
      <button class="small quiet" onClick=${() => turn(1 / 1.25)} aria-label="Smaller">−</button>
      <button class="small quiet" onClick=${() => setZoom(0)} aria-label="As it fits">fit</button>
      <button class="small quiet" onClick=${() => setZoom(room ? Math.min(1, room / drawing.width) : 1)} aria-label="All of it">all</button>
      <button class="small quiet" onClick=${() => turn(1.25)} aria-label="Larger">+</button>
    </div>
    <div class="frame" ref=${frame} tabindex="0" role="group" aria-label=${label}>
      <svg width=${drawing.width * scale} height=${drawing.height * scale} viewBox=${`0 0 ${drawing.width} ${drawing.height}`}>
        <defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="11" markerHeight="11" markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0.8L7 4L0 7.2Z" class="tip" /></marker></defs>
        ${drawing.wires.map((w) => html`<${Still} of=${WireLine} key=${`${w.source}>${w.target}`} wire=${w} about=${wires[`${w.source}>${w.target}`] || {}} />`)}
        ${drawing.wires.map((w) => html`<${Still} of=${Load} key=${`load ${w.source}>${w.target}`} wire=${w} about=${wires[`${w.source}>${w.target}`] || {}} />`)}
        ${drawing.boxes.map((b) => html`<${Still} of=${BoxMark} key=${b.node} box=${b} width=${drawing.box_width} height=${drawing.box_height}
          about=${boxes[b.node] || {}} chosen=${chosen === b.node} choose=${pick} />`)}
      </svg>
    </div>
  </div>`;
}

// Drawn again only when what it shows has changed: of sixty stages most have not.
class Still extends Component {
  shouldComponentUpdate(next) {
    const about = ({ about: a, chosen, wire, box }) => JSON.stringify([a, chosen, wire, box]);
    return about(next) !== about(this.props);
  }
  render({ of: Part, ...props }) { return html`<${Part} ...${props} />`; }
}

function WireLine({ wire, about }) {
  const kind = ["wire", wire.feedback && "feedback", about.barrier && `barrier-${about.barrier}`].filter(Boolean).join(" ");
  return html`<g class=${kind} data-wire=${`${wire.source}>${wire.target}`}>
    <path d=${wire.path} marker-end="url(#tip)"><title>${about.title || `${wire.source} to ${wire.target}`}</title></path></g>`;
}

// In front of all channels: what waits in one, and a barrier that travels.
function Load({ wire, about }) {
  const text = about.waiting ? short(about.waiting) : "";
  return html`<g>
    ${text && html`<g class="load" transform=${`translate(${wire.label_x} ${wire.label_y})`}><title>${about.title}</title>
      <rect x=${-(text.length * 3.6 + 7)} y="-9" width=${text.length * 7.2 + 14} height="18" rx="9" />
      <text text-anchor="middle" dy="3.8">${text}</text></g>`}
    ${about.barrier === "inside" && html`<${Travelling} path=${wire.path} />`}</g>`;
}

// A barrier that is in a channel: its producer has sent it, its reader has not got it.
function Travelling({ path }) {
  if (matchMedia("(prefers-reduced-motion: reduce)").matches) return null;
  return html`<g class="traveller"><rect x="-3" y="-11" width="6" height="22" rx="2" /><animateMotion dur="1.1s" repeatCount="indefinite" rotate="auto" path=${path} /></g>`;
}

function BoxMark({ box, width, height, about, chosen, choose }) {
  const small = height < 70;
  const room = Math.floor((width - 34) / (small ? 6.9 : 7.9));
  const press = (e) => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); choose(box.node); } };
  const kind = `box mood-${about.mood || "unknown"} ${about.phase ? `phase-${about.phase}` : ""} ${chosen ? "chosen" : ""}`;
  const lines = (about.lines || []).slice(0, small ? 1 : 3);
  const label = `${box.node}: ${MOODS[about.mood] || about.mood || ""}. ${lines.join(", ")}. ${about.phaseWords || ""}`;
  return html`<g class=${kind} transform=${`translate(${box.x} ${box.y})`} role="button" tabindex="0" aria-label=${label} aria-pressed=${chosen}
      data-stage=${box.node} data-phase=${about.phase || ""} onClick=${() => choose(box.node)} onKeyDown=${press}>
    <title>${label}</title>
    <rect class="body" width=${width} height=${height} rx="8" />
    <rect class="mood" x="0" y="0" width="7" height=${height} rx="3.5" />
    <text class="name" x="18" y=${small ? 21 : 25}>${clip(box.node, room)}</text>
    ${lines.map((line, i) => html`<text class="line" x="18" y=${(small ? 40 : 46) + i * 17}>${clip(line, Math.floor((width - 26) / 6.4))}</text>`)}
    ${about.error && html`<text class="alarm" x=${width - 18} y=${small ? 21 : 25} aria-hidden="true">!</text>`}
    ${about.phase && html`<g class="seal" transform=${`translate(${width - 14} ${height - 14})`}><rect x="-8" y="-8" width="16" height="16" rx="4" /><text text-anchor="middle" dy="4">${SEALS[about.phase] || "?"}</text></g>`}
  </g>`;
}

export const SEALS = { ahead: "·", aligning: "⋯", recording: "●", storing: "↑", acknowledged: "✓" };
export const PHASE_WORDS = {
  ahead: "the barrier has not come", aligning: "holds inputs until all have the barrier", recording: "recorded; channels open",
  storing: "recorded; making it durable", acknowledged: "done",
};

export function Legend({ moods }) {
  return html`<ul class="legend" aria-label="Colours">${moods.map((m) => html`<li><i class=${`swatch mood-${m}`}></i>${MOODS[m]}</li>`)}</ul>`;
}

// How the wires and boxes stand to a barrier that is under way.
export function journey(barriers, snapshot) {
  const of = Object.fromEntries(barriers.filter((b) => b.snapshot === snapshot).map((b) => [b.stage, b]));
  const sent = (stage) => of[stage] && ["recording", "storing", "acknowledged"].includes(of[stage].phase);
  return {
    of,
    wire(source, target) {
      const reader = of[target];
      if (!reader || !sent(source)) return "";
      if (["storing", "acknowledged"].includes(reader.phase)) return "passed";
      return reader.arrived.includes(source) ? "arrived" : "inside";
    },
    done: Object.values(of).filter((b) => b.phase === "acknowledged").length,
    waits: Object.values(of).filter((b) => b.waits_for.length && b.phase !== "acknowledged"),
  };
}

