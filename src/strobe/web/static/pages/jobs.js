// All jobs and live systems of the home.
import { html } from "../vendor/htm-preact.js";
import { part, useWatch } from "../api.js";
import { Loading, Lost, State, Trouble, useNow } from "../parts/bits.js";
import { clock, count, ms, plural, since } from "../words.js";

export function Jobs() {
  const { seen, trouble, lost } = useWatch("jobs");
  const now = useNow();
  if (!seen) return trouble ? html`<${Trouble} ...${trouble} />` : html`<${Lost} lost=${lost} /><${Loading} what="the home" />`;
  const spark = seen.filter((j) => j.kind !== "live"), live = seen.filter((j) => j.kind === "live");
  return html`<${Lost} lost=${lost} />
    <h1>Jobs</h1>
    ${spark.length ? html`<${Table} jobs=${spark} now=${now} path="job" stage="stages" waiting="rows waiting" />`
      : html`<p class="empty">No pipeline has run in this home. <code>strobe run FILE</code> starts one.</p>`}
    ${live.length > 0 && html`<h2>Live systems</h2><${Table} jobs=${live} now=${now} path="system" stage="nodes" waiting="queued" />`}`;
}

function Table({ jobs, now, path, stage, waiting }) {
  return html`<div class="card flush"><table class="rows">
    <thead><tr><th>name</th><th>state</th><th class="num">${stage}</th><th class="num">${waiting}</th><th>last snapshot</th><th>started</th></tr></thead>
    <tbody>${jobs.map((j) => html`<${Row} key=${j.name} j=${j} now=${now} path=${path} stage=${stage} waiting=${waiting} />`)}</tbody>
  </table></div>`;
}

function Row({ j, now, path, stage, waiting }) {
  return html`<tr>
      <th scope="row" data-label="name"><a href=${`#/${path}/${part(j.name)}`}>${j.name}</a></th>
      <td data-label="state"><${State} state=${j.state} />${j.violated ? html` <span class="bad-ink">${plural(j.violated, "invariant")} violated</span>` : j.invariants ? html` <span class="quiet">${plural(j.invariants, "invariant")}</span>` : ""}</td>
      <td class="num" data-label=${stage}>${count(j.stages)}</td>
      <td class="num" data-label=${waiting}>${count(j.lag_rows)}</td>
      <td data-label="last snapshot">${j.last ? html`<${Last} j=${j} now=${now} path=${path} />` : "none yet"}</td>
      <td data-label="started">${j.started ? html`${clock(j.started)}${j.incarnation ? html` <span class="quiet">run ${j.incarnation}</span>` : ""}` : "–"}</td>
    </tr>
    ${(j.error || j.trouble) && html`<tr class="about"><td colspan="6"><${Trouble} error=${j.trouble || j.error} /></td></tr>`}`;
}

function Last({ j, now, path }) {
  const href = path === "job" ? `#/job/${part(j.name)}/snapshots/${j.last.snapshot}` : `#/system/${part(j.name)}`;
  return html`<a href=${href}>${j.last.snapshot}</a>
    ${j.last.status !== "complete" ? html` <span class="bad-ink">${j.last.status}</span>` : ""}
    <span class="quiet"> ${since(j.last.ended, now)} ago, ${ms(j.last.duration_ms)}</span>`;
}
