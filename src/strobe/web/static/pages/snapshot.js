// One snapshot: why it took so long, what it holds, whether it can be restored, and how.
import { html, useState } from "../vendor/htm-preact.js";
import { part, post, useAnswer } from "../api.js";
import { Copy, Crumbs, Loading, State, Trouble } from "../parts/bits.js";
import { Order } from "../parts/dialog.js";
import { Sql } from "../parts/sql.js";
import { PhaseKeys, Waterfall } from "../parts/waterfall.js";
import { bytes, clock, count, ms } from "../words.js";

export function Snapshot({ job, id, session }) {
  const at = `/jobs/${part(job)}/snapshots/${id}`;
  const { answer: s, refused } = useAnswer(at);
  const [order, give] = useState(null);
  const live = s && s.host === "live";
  const crumbs = html`<${Crumbs} at=${live ? [["Jobs", "#/"], [job, `#/system/${part(job)}`], [`snapshot ${id}`]]
    : [["Jobs", "#/"], [job, `#/job/${part(job)}`], ["Checkpoints", `#/job/${part(job)}/snapshots`], [String(id)]]} />`;
  if (refused) return html`${crumbs}<${Trouble} error=${refused.message} untouched=${refused.untouched} next=${refused.next} role="alert" />`;
  if (!s) return html`${crumbs}<${Loading} what="the snapshot" />`;
  const p = s.past;
  return html`${crumbs}
    <div class="title"><h1>${p.kind} ${id}</h1><${State} state=${p.status} /><span class="quiet">of ${job}</span>
      ${s.kept && html`<${Actions} s=${s} id=${id} job=${job} at=${at} session=${session} give=${give} />`}</div>
    <${Trouble} error=${p.reason} role="alert" />
    ${!s.kept && p.status === "complete" && html`<p class="banner">It is past its retention: what it held is gone. This is what the job's history has noted.</p>`}
    <section class="card"><dl class="tiles">
      <${Tile} name="took" value=${ms(p.duration_ms)} more=${p.slowest ? `slowest: ${p.slowest}` : ""} />
      <${Tile} name="started" value=${clock(p.started)} more=${`run ${p.incarnation}, timeline ${p.timeline}`} />
      <${Tile} name="new" value=${bytes(p.bytes_new)} more=${`of ${bytes(p.bytes_total)}`} />
      <${Tile} name="rows in flight" value=${count(p.rows_in_flight)} more=${s.mode} />
      ${s.kept && !live && html`<${Restorable} at=${at} />`}
    </dl></section>
    ${s.nodes.some((n) => n.duration_ms) && html`<section class="card"><h2>Where the time went</h2><${PhaseKeys} /><${Waterfall} nodes=${s.nodes} past=${p} /></section>`}
    ${s.nodes.length > 0 && html`<${Parts} s=${s} live=${live} />`}
    ${s.positions.length > 0 && html`<section class="card flush"><h2>Channels at the cut</h2><table class="rows"><thead><tr><th>channel</th><th>read by</th><th class="num">barrier at</th><th class="num">read up to</th><th class="num">rows in flight</th></tr></thead>
      <tbody>${s.positions.map((c) => html`<tr><th scope="row" data-label="channel">${c.channel}</th><td data-label="read by">${c.consumer}</td><td class="num" data-label="barrier at">${count(c.barrier)}</td><td class="num" data-label="read up to">${count(c.after)}</td><td class="num" data-label="rows in flight">${count(c.rows)}</td></tr>`)}</tbody></table></section>`}
    ${s.sinks.length > 0 && html`<section class="card flush"><h2>Sinks</h2><table class="rows"><thead><tr><th>sink</th><th>transaction</th><th>position</th></tr></thead>
      <tbody>${s.sinks.map((k) => html`<tr><th scope="row" data-label="sink">${k.sink}</th><td data-label="transaction">${k.handle}</td><td data-label="position"><pre>${k.data}</pre></td></tr>`)}</tbody></table></section>`}
    ${Object.keys(s.content).length > 0 && html`<section class="card"><h2>States</h2>${Object.entries(s.content).map(([n, v]) => html`<div class="held"><h3>${n}</h3><pre>${v}</pre></div>`)}
      <h2>In flight</h2>${Object.keys(s.in_flight).length ? Object.entries(s.in_flight).map(([n, v]) => html`<div class="held"><h3>${n}</h3><pre>${v}</pre></div>`) : html`<p class="quiet">nothing</p>`}</section>`}
    ${s.kept && session.sql && html`<${Sql} at=${at} />`}
    ${s.kept && html`<section class="card"><h2>Proof</h2><dl class="facts"><dt>root</dt><dd><code>${s.root}</code> <${Copy} text=${s.root} /></dd><dt>at</dt><dd><code>${s.where}</code> <${Copy} text=${s.where} /></dd></dl></section>`}
    ${order && html`<${Order} order=${order} onClose=${() => give(null)} />`}`;
}

function Tile({ name, value, more }) {
  return html`<div><dt>${name}</dt><dd>${value}<small>${more || " "}</small></dd></div>`;
}

function Restorable({ at }) {
  const { answer, refused } = useAnswer(`${at}/restorable`);
  const value = refused ? "unknown" : !answer ? "…" : answer.why_not ? "no" : "yes";
  const more = refused ? refused.message : !answer ? "looking at its tables" : answer.why_not || "all that it needs is there";
  return html`<${Tile} name="restorable" value=${value} more=${more} />`;
}

function Parts({ s, live }) {
  return html`<section class="card flush"><h2>${live ? "Nodes" : "Parts"}</h2><table class="rows"><thead><tr><th>${live ? "node" : "stage"}</th>${!live && html`<th class="num">batch</th><th class="num">partitions</th><th class="num">state rows</th>`}<th class="num">files</th><th class="num">new</th><th class="num">size</th><th>offsets</th></tr></thead>
    <tbody>${s.nodes.map((n) => html`<tr key=${n.node}><th scope="row" data-label=${live ? "node" : "stage"}>${n.node}</th>${!live && html`<td class="num" data-label="batch">${n.batch === null || n.batch < 0 ? "–" : count(n.batch)}</td><td class="num" data-label="partitions">${count(n.partitions)}</td>
      <td class="num" data-label="state rows">${count(n.state_rows)}</td>`}<td class="num" data-label="files">${count(n.files)}</td><td class="num" data-label="new">${bytes(n.bytes_new)}</td><td class="num" data-label="size">${bytes(n.bytes_total)}</td>
      <td data-label="offsets">${n.offsets ? html`<details><summary>offsets</summary><pre>${n.offsets}</pre></details>` : ""}</td></tr>`)}</tbody></table></section>`;
}

function Actions({ s, id, job, at, session, give }) {
  const live = s.host === "live";
  const orders = {
    Verify: { title: `Verify snapshot ${id}`, verb: "Verify it", does: "Reads every byte of it, compares hashes, and checks that it is a consistent cut. Changes nothing.",
      command: () => `strobe verify ${session.home.startsWith("s3://") ? s.where : `${job}/${id}`}`, act: () => post(`${at}/verify`), show: verdict },
    "Plan a restore": { title: `Go back to snapshot ${id}`, verb: "Plan it", does: "A dry run with the file that the job was run from: what going back in place would do. It starts Spark, takes some seconds, and changes nothing.",
      act: () => post(`${at}/plan`, {}), show: plan },
    "Plan a fork": { title: `Fork snapshot ${id}`, verb: "Plan it", does: "A dry run: what a new job beside this one would begin with. It starts Spark, takes some seconds, and changes nothing.", start: { fork: `${job}-fork` },
      fields: [{ name: "fork", label: "Name of the new job" }], act: (v) => post(`${at}/plan`, { fork: v.fork }), show: plan },
    Dispose: { title: `Dispose of snapshot ${id}`, verb: "Delete it", danger: true, does: "Deletes it, and what only it needs. A checkpoint of a job that runs is refused: its retention deletes those.",
      command: () => `strobe dispose ${job}/${id}`, act: () => post(`${at}/dispose`), show: ({ done: d }) => html`Snapshot ${d.snapshot} is gone${d.bytes === null ? "" : `; it held ${bytes(d.bytes)}`}.` },
  };
  const off = (n) => session.read_only && n !== "Verify"; // reading is not an order
  const names = Object.keys(orders).filter((n) => !live || !n.startsWith("Plan"));
  return html`<div class="actions" role="group" aria-label="Orders">${names.map((n) => html`<button disabled=${off(n)} class=${orders[n].danger ? "danger" : ""}
    title=${off(n) ? "This page is read-only." : orders[n].does} onClick=${() => give(orders[n])}>${n}</button>`)}</div>`;
}

function verdict({ done: d }) {
  if (d.sound) return html`<b>Sound:</b> ${count(d.files)} files, ${bytes(d.bytes)}, every byte as written; a consistent cut.<p class="quiet">root ${d.root}</p>`;
  return html`<b class="bad-ink">Not sound.</b><ul>${(d.problems || []).map((p) => html`<li>${p}</li>`)}</ul>`;
}

function plan({ plan: p, command }) {
  const known = ["stages", "channels", "sinks", "problems", "refusals", "notes", "warnings"];
  return html`<p>The command that does it: <code class="wide">${command}</code> <${Copy} text=${command} /></p>
    ${known.filter((k) => p[k] && Object.keys(p[k]).length).map((k) => html`<h3>${k}</h3><${Items} value=${p[k]} />`)}
    <details><summary>the whole plan</summary><pre>${JSON.stringify(p, null, 1)}</pre></details>`;
}

function Items({ value }) {
  const items = Array.isArray(value) ? value.map((v) => ["", v]) : Object.entries(value);
  return html`<ul class="plain">${items.map(([k, v]) => html`<li>${k && html`<b>${k}</b> `}${typeof v === "string" ? v : Object.entries(v || {}).filter(([, x]) => x !== null && x !== "" && !(Array.isArray(x) && !x.length)).map(([n, x]) => `${n.replaceAll("_", " ")} ${typeof x === "object" ? JSON.stringify(x) : x}`).join(", ")}</li>`)}</ul>`;
}
