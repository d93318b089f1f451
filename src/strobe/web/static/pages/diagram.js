// The space–time diagram of a run: zoomable, with the cut that one points at in front.
import { html, useEffect, useRef, useState } from "../vendor/htm-preact.js";
import { part } from "../api.js";
import { Crumbs, Loading, Trouble } from "../parts/bits.js";

// Each snapshot has a colour of its own. What is of the one that is pointed at comes to the front, the others fade.
function front(box, target) {
  const cuts = new Set([...box.querySelectorAll('path[stroke-opacity="0.5"]')].map((e) => e.getAttribute("stroke")));
  const of = (e) => [e.getAttribute("stroke"), e.getAttribute("fill")].find((c) => cuts.has(c));
  const chosen = target && target.getAttribute ? of(target) : undefined;
  for (const e of box.querySelectorAll("svg *")) {
    const own = of(e);
    e.classList.toggle("front", chosen !== undefined && own === chosen);
    e.classList.toggle("faint", chosen !== undefined && own !== undefined && own !== chosen);
  }
}

export function Diagram({ name }) {
  const [events, setEvents] = useState(120);
  const [scale, setScale] = useState(1);
  const [state, set] = useState({});
  const box = useRef(null);
  useEffect(() => {
    let current = true;
    fetch(`api/v1/systems/${part(name)}/diagram.svg?events=${events}`).then(async (answer) => {
      if (!current) return;
      if (!answer.ok) set({ refused: await answer.json() });
      else set({ svg: new DOMParser().parseFromString(await answer.text(), "image/svg+xml").documentElement });
    }, () => current && set({ refused: { error: "strobe ui does not answer." } }));
    return () => { current = false; };
  }, [name, events]);
  useEffect(() => {
    if (!state.svg || !box.current) return;
    const [, , width, height] = state.svg.getAttribute("viewBox").split(" ").map(Number);
    state.svg.setAttribute("width", width * scale);
    state.svg.setAttribute("height", height * scale);
    box.current.replaceChildren(document.importNode(state.svg, true));
  }, [state.svg, scale]);
  const turn = (e) => {
    if (!e.ctrlKey) return;
    e.preventDefault();
    setScale((s) => Math.min(4, Math.max(0.3, s * (e.deltaY < 0 ? 1.15 : 1 / 1.15))));
  };
  return html`<${Crumbs} at=${[["Jobs", "#/"], [name, `#/system/${part(name)}`], ["diagram"]]} />
    <div class="title"><h1>What happened in ${name}</h1>
      <div class="actions" role="group" aria-label="Size">
        <button class="small" onClick=${() => setScale(scale / 1.25)} aria-label="Smaller">−</button>
        <button class="small" onClick=${() => setScale(1)}>1:1</button>
        <button class="small" onClick=${() => setScale(scale * 1.25)} aria-label="Larger">+</button>
        <label class="field inline">events <select value=${events} onChange=${(e) => setEvents(Number(e.target.value))}>${[60, 120, 240, 600].map((n) => html`<option value=${n}>${n}</option>`)}</select></label>
      </div></div>
    ${state.refused ? html`<${Trouble} ...${state.refused} />` : !state.svg ? html`<${Loading} what="the journal" />`
      : html`<section class="card"><div class="diagram" ref=${box} tabindex="0" role="group" aria-label="Space–time diagram; Ctrl and the wheel zoom" onWheel=${turn}
        onPointerOver=${(e) => front(box.current, e.target)} onPointerLeave=${() => front(box.current, null)}></div></section>`}`;
}
