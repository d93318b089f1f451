// A chart over time, in the colours of the page.
import { html, useEffect, useRef } from "../vendor/htm-preact.js";

const uPlot = globalThis.uPlot; // a plain script, loaded before the modules
const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

function hour(time, range) {
  const at = new Date(time * 1000);
  if (range > 172800) return at.toLocaleDateString("en-CA");
  return at.toLocaleTimeString("en-GB", range < 600 ? {} : { hour: "2-digit", minute: "2-digit" });
}

export function Chart({ label, data, series, height = 150, value = String, pick, bare = false }) {
  const box = useRef(null);
  const plot = useRef(null);
  const shape = series.map((s) => s.label).join();
  useEffect(() => {
    const axis = { stroke: () => colour("--quiet"), grid: { stroke: () => colour("--line"), width: 1 }, ticks: { show: false }, font: "11px system-ui" };
    const draw = () => {
      if (plot.current) plot.current.destroy();
      plot.current = new uPlot({
        width: Math.max(160, box.current.clientWidth), height, legend: { show: false },
        cursor: { y: false, points: { size: 6 } },
        scales: { x: { time: true }, y: { range: (u, least, most) => [0, Math.max(most * 1.1, 1e-9)] } },
        axes: [{ ...axis, show: !bare, space: 70, size: 30, values: (u, all) => all.map((t) => hour(t, u.scales.x.max - u.scales.x.min)) },
          { ...axis, size: 62, space: 24, values: (u, all) => all.map(value) }],
        series: [{}, ...series.map((s) => ({
          label: s.label, stroke: () => colour(s.colour), width: s.points ? 0 : 1.6,
          points: s.points ? { show: true, size: 7, fill: () => colour(s.colour) } : { show: data[0].length < 40, size: 4 },
          fill: s.fill ? () => `${colour(s.colour)}22` : undefined, paths: s.points ? () => null : undefined,
        }))],
      }, data, box.current);
      if (pick) plot.current.over.addEventListener("click", () => {
        const i = plot.current.cursor.idx;
        if (i !== null && i !== undefined) pick(i);
      });
    };
    draw();
    const watch = new ResizeObserver(() => plot.current && plot.current.setSize({ width: Math.max(160, box.current.clientWidth), height }));
    watch.observe(box.current);
    const scheme = matchMedia("(prefers-color-scheme: dark)");
    scheme.addEventListener("change", draw);
    return () => { watch.disconnect(); scheme.removeEventListener("change", draw); plot.current.destroy(); plot.current = null; };
  }, [shape]);
  useEffect(() => { if (plot.current) plot.current.setData(data); }, [data]);
  const last = series.map((s, i) => `${s.label} ${value(data[i + 1][data[i + 1].length - 1] ?? 0)}`).join(", ");
  return html`<figure class="chart">
    <figcaption>${label}<span class="keys">${series.map((s) => html`<span><i class=${`dot ${s.colour.slice(2)}`}></i>${s.label}</span>`)}</span></figcaption>
    <div ref=${box} class="plot" role="img" aria-label=${`${label}: now ${last}`}></div>
  </figure>`;
}
