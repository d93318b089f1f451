// Every snapshot that a job has tried, whichever run took it.
import { html, useEffect, useState } from "../vendor/htm-preact.js";
import { get, part, useWatch } from "../api.js";
import { Crumbs, Loading, Lost, State, Trouble } from "../parts/bits.js";
import { Chart } from "../parts/chart.js";
import { Phases, PhaseKeys } from "../parts/waterfall.js";
import { bytes, clock, count, ms, plural, short } from "../words.js";

const PAGE = 100;

export function Snapshots({ job }) {
  const { seen, lost } = useWatch(`job/${job}`);
  const [page, set] = useState(null);
  const [older, setOlder] = useState([]);
  const [refused, refuse] = useState(null);
  const at = `/jobs/${part(job)}/snapshots?limit=${PAGE}`;
  const newest = seen && seen.job.last ? `${seen.job.last.snapshot} ${seen.job.last.status}` : "";
  useEffect(() => { get(at).then(set, refuse); }, [at, newest]);
  const head = html`<${Crumbs} at=${[["Jobs", "#/"], [job, `#/job/${part(job)}`], ["Checkpoints"]]} /><${Lost} lost=${lost} />
    <div class="title"><h1>${job}</h1>${seen && html`<${State} state=${seen.job.state} />`}
      ${page && html`<span class="quiet">${plural(page.total, "snapshot")} tried${page.failed ? `, ${count(page.failed)} failed` : ""}</span>`}</div>
    <nav class="tabs" aria-label="Views of the job"><a href=${`#/job/${part(job)}`}>Graph</a><a href=${`#/job/${part(job)}/snapshots`} aria-current="page">Checkpoints</a></nav>`;
  if (!page) return html`${head}${refused ? html`<${Trouble} error=${refused.message} untouched=${refused.untouched} next=${refused.next} />` : html`<${Loading} what="the history" />`}`;
  if (!page.total) return html`${head}<p class="empty">No snapshot has been taken yet.</p>`;
  const rows = [...page.rows, ...older];
  const under = (seen && seen.under_way) || [];
  const more = async () => {
    const next = await get(`${at}&before=${rows[rows.length - 1].snapshot}`);
    setOlder([...older, ...next.rows]);
  };
  const c = page.chart;
  const go = (i) => { location.hash = `#/job/${part(job)}/snapshots/${c.snapshot[i]}`; };
  const failedAt = c.duration_ms.map((v, i) => (c.failed[i] ? v : null));
  return html`${head}
    <section class="card charts" aria-label="Over time">
      <${Chart} label="How long they took" data=${[c.time, c.duration_ms, failedAt]} value=${ms} pick=${go}
        series=${[{ label: "duration", colour: "--c1", fill: true }, { label: "failed", colour: "--bad", points: true }]} />
      <${Chart} label="How large they are" data=${[c.time, c.bytes_total, c.bytes_new]} value=${bytes} pick=${go}
        series=${[{ label: "total", colour: "--c4", fill: true }, { label: "new", colour: "--c2" }]} />
    </section>
    <${PhaseKeys} />
    <div class="card flush"><table class="rows snapshots">
      <thead><tr><th>snapshot</th><th>status</th><th>started</th><th class="num">took</th><th>where the time went</th><th class="num">new</th><th class="num">total</th><th class="num">in flight</th><th class="num">run</th></tr></thead>
      <tbody>
        ${under.map((p) => html`<tr key=${`now-${p.snapshot}`} class="now"><th scope="row" data-label="snapshot">${p.snapshot} <span class="quiet">${p.kind}</span></th><td data-label="status"><${State} state=${p.status} /></td>
          <td data-label="started">${clock(p.started)}</td><td colspan="6" class="quiet">${plural(p.acknowledged || 0, "part")} of it here</td></tr>`)}
        ${rows.map((r) => html`<${Row} key=${r.snapshot} r=${r} job=${job} />`)}</tbody>
    </table></div>
    ${rows.length < page.total && html`<p class="more"><button onClick=${more}>Show ${Math.min(PAGE, page.total - rows.length)} older</button> <span class="quiet">${count(rows.length)} of ${count(page.total)}</span></p>`}`;
}

function Row({ r, job }) {
  return html`<tr>
    <th scope="row" data-label="snapshot"><a href=${`#/job/${part(job)}/snapshots/${r.snapshot}`}>${r.snapshot}</a> <span class="quiet">${r.kind}${r.kept ? " · kept" : ""}</span></th>
    <td data-label="status"><${State} state=${r.status} /></td>
    <td data-label="started">${clock(r.started)}</td>
    <td class="num" data-label="took">${ms(r.duration_ms)}</td>
    <td class="phases" data-label="where the time went">${r.reason ? html`<span class="bad-ink">${r.reason}</span>` : html`<${Phases} phases=${r.phases} whole=${r.duration_ms} label=${r.slowest} />`}</td>
    <td class="num" data-label="new">${bytes(r.bytes_new)}</td><td class="num" data-label="total">${bytes(r.bytes_total)}</td>
    <td class="num" data-label="in flight">${short(r.rows_in_flight)}</td><td class="num" data-label="run">${count(r.incarnation)}</td></tr>`;
}
