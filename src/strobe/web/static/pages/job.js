// One job: its graph, the barrier on its way, a stage, and what can be ordered.
import { html, useEffect, useMemo, useRef, useState } from "../vendor/htm-preact.js";
import { part, post, useWatch } from "../api.js";
import { Crumbs, Loading, Lost, State, Trouble, useNow } from "../parts/bits.js";
import { Graph, Legend, PHASE_WORDS, journey } from "../parts/graph.js";
import { Order } from "../parts/dialog.js";
import { Stage } from "../parts/stage.js";
import { bytes, clock, count, ms, plural, rate, short, since } from "../words.js";

const SAMPLES = 600;

export function Job({ job, session }) {
  const { seen, trouble, lost } = useWatch(`job/${job}`);
  const [chosen, choose] = useState(null);
  const [order, give] = useState(null);
  const now = useNow();
  const samples = useSamples(seen);
  useEffect(() => {
    const close = (e) => { if (e.key === "Escape" && !document.querySelector("dialog[open]")) choose(null); };
    addEventListener("keydown", close);
    return () => removeEventListener("keydown", close);
  }, []);
  const crumbs = html`<${Crumbs} at=${[["Jobs", "#/"], [job]]} />`;
  if (!seen) return html`${crumbs}<${Lost} lost=${lost} />${trouble ? html`<${Trouble} ...${trouble} />` : html`<${Loading} what="the job" />`}`;
  const snapshot = seen.under_way.length ? seen.under_way[seen.under_way.length - 1].snapshot : null;
  const way = journey(seen.barriers, snapshot);
  const boxes = Object.fromEntries(seen.stages.map((s) => [s.uid, box(s, way.of[s.uid])]));
  const wires = Object.fromEntries(seen.channels.map((c) => [`${c.producer}>${c.consumer}`, wire(c, way)]));
  const stage = seen.stages.find((s) => s.uid === chosen);
  const moods = ["busy", "idle", "held", "restarting", "failed"].concat(seen.job.live ? [] : ["unknown"]);
  return html`${crumbs}<${Lost} lost=${lost} />
    <div class="title"><h1>${job}</h1><${State} state=${seen.job.state} />
      <span class="quiet">${facts(seen, now)}</span>
      <${Actions} seen=${seen} session=${session} give=${give} /></div>
    <nav class="tabs" aria-label="Views of the job"><a href=${`#/job/${part(job)}`} aria-current="page">Graph</a>
      <a href=${`#/job/${part(job)}/snapshots`}>Checkpoints</a></nav>
    ${trouble && html`<${Trouble} ...${trouble} />`}
    <${Trouble} error=${seen.job.trouble} />
    <${Trouble} error=${seen.job.error} role="alert" />
    <${Sinks} sinks=${seen.sinks} />
    <${Held} held=${seen.facts.held} job=${job} />
    <${Invariants} all=${seen.facts.invariants || []} job=${job} />
    <${Barrier} seen=${seen} way=${way} snapshot=${snapshot} now=${now} />
    <div class=${`split ${stage ? "open" : ""}`}>
      <section class="card" aria-label="The graph">
        ${seen.stages.length ? html`<${Graph} drawing=${seen.drawing} boxes=${boxes} wires=${wires} chosen=${chosen} choose=${(s) => choose(s === chosen ? null : s)}
          label=${`${plural(seen.stages.length, "stage")} of ${job}, from left to right`} />
          <footer class="under"><${Legend} moods=${moods} /><span class="quiet">${seen.known_by === "job" ? "a number on a channel: rows that wait in it" : "a number on a channel: rows in flight at the snapshot"}</span>
          ${seen.known_by === "snapshot" && html`<span class="quiet">As its newest snapshot has it; the job itself cannot be asked.</span>`}</footer>`
          : html`<p class="empty">The job has not run far enough to have a graph.</p>`}
      </section>
      ${stage && html`<${Stage} stage=${stage} samples=${samples.get(chosen)} channels=${seen.channels} barrier=${way.of[chosen]} close=${() => choose(null)} />`}
    </div>
    ${order && html`<${Order} order=${order} onClose=${() => give(null)} />`}`;
}

function facts(seen, now) {
  const f = seen.facts;
  const up = seen.job.live && seen.job.started ? `up ${since(seen.job.started, now)}` : seen.job.ended ? `ended ${clock(seen.job.ended)}` : "";
  return [up, f.pid && `pid ${f.pid}`, seen.job.incarnation && `run ${seen.job.incarnation}`, f.timeline && `timeline ${f.timeline}`,
    f.completed !== undefined && `${plural(f.completed, "snapshot")}${f.failed ? `, ${f.failed} failed` : ""}`].filter(Boolean).join(" · ");
}

function box(s, barrier) {
  const f = s.figures;
  const lines = f.chained_into ? [`in the query of ${f.chained_into}`] : f.batch_ms === undefined ? [s.state || "not running", f.snapshot_bytes ? `${bytes(f.snapshot_bytes)} in the snapshot` : ""] : [
    `${rate(f.rows_per_second)} rows/s${f.lag_rows ? ` · ${short(f.lag_rows)} waiting` : ""}`,
    f.batch < 0 ? "no batch yet" : `batch ${f.batch} · ${ms(f.batch_ms)}`,
    [f.state_rows ? `state ${short(f.state_rows)} rows` : "", f.state_store && f.state_store.bytes ? bytes(f.state_store.bytes) : "", f.restarts ? plural(f.restarts, "restart") : ""].filter(Boolean).join(" · ") || "no state",
  ];
  return { mood: s.mood, lines: lines.filter(Boolean), error: !!s.error, phase: barrier && barrier.phase, phaseWords: barrier ? PHASE_WORDS[barrier.phase] : "" };
}

function wire(c, way) {
  const parts = [`${c.producer} to ${c.consumer}`];
  if (c.chained) parts.push("chained, there is no channel");
  if (c.rows_waiting !== null) parts.push(`${count(c.rows_waiting)} rows waiting in ${plural(c.commits_waiting, "commit")}`);
  if (c.rows_in_flight !== null) parts.push(`${count(c.rows_in_flight)} in flight at the newest snapshot`);
  return { waiting: c.rows_waiting === null ? c.rows_in_flight : c.rows_waiting, title: parts.join(": "), barrier: way.wire(c.producer, c.consumer) };
}

// Always there, at the same height: a snapshot that begins moves nothing.
function Barrier({ seen, way, snapshot, now }) {
  const current = seen.under_way[seen.under_way.length - 1];
  const last = seen.job.last;
  const total = Object.keys(way.of).length;
  let head, more;
  if (current) {
    head = html`<b>${current.kind} ${snapshot}</b> is under way: the barrier is through ${way.done} of ${plural(total, "stage")}`;
    const waits = way.waits.map((b) => `${b.stage} waits for ${b.waits_for.join(", ")}`);
    const batch = Object.values(way.of).filter((b) => b.phase === "ahead" && !b.waits_for.length).map((b) => b.stage);
    const storing = Object.values(way.of).filter((b) => b.phase === "storing").map((b) => b.stage);
    more = [...waits, batch.length ? `${batch.join(", ")}: at the end of its batch` : "", storing.length ? `${storing.join(", ")}: being made durable` : ""].filter(Boolean).join(" · ") || "every stage has recorded";
  } else if (last) {
    head = html`No snapshot is under way. Last: <a href=${`#/job/${part(seen.job.name)}/snapshots/${last.snapshot}`}>${last.kind} ${last.snapshot}</a>`;
    more = `${last.status}, ${since(last.ended, now)} ago, took ${ms(last.duration_ms)}`;
  } else {
    head = "No snapshot has been taken yet.";
    more = "";
  }
  return html`<div class=${`barrier ${current ? "on" : ""}`} role="status" aria-live="polite" data-snapshot=${snapshot || ""}>
    <span class="bar" aria-hidden="true"><i style=${{ width: `${current && total ? (100 * way.done) / total : 0}%` }}></i></span>
    <span>${head}</span><span class="quiet grow" title=${more}>${more}</span></div>`;
}

function Invariants({ all, job }) {
  return all.map((i) => (i.outcome === "violated" || i.outcome === "failed"
    ? html`<${Trouble} key=${i.name} error=${i.sentence || `Invariant '${i.name}' ${i.outcome === "failed" ? "could not be evaluated" : "is violated"}${i.snapshot ? ` at snapshot ${i.snapshot}` : ""}.`} next=${`See: strobe checks ${job}`} role="alert" />`
    : html`<p class="invariant quiet" key=${i.name}>Invariant '${i.name}': ${i.outcome || "not asked yet"}${i.snapshot ? ` at snapshot ${i.snapshot}` : ""}</p>`));
}

function Held({ held, job }) {
  if (!held || !held.snapshot) return null;
  return html`<${Trouble} error=${`${plural(held.parts, "part")} held since snapshot ${held.snapshot}: ${held.reason}`}
    next=${`Nothing of it is visible. strobe release ${job} ${held.newest} lets it go${held.good ? `; strobe run -s ${job}/${held.good} goes back` : ""}.`} role="alert" />`;
}

function Sinks({ sinks }) {
  const odd = sinks.filter((s) => s.failures || s.in_doubt);
  return odd.map((s) => html`<${Trouble} key=${s.sink} error=${`Sink ${s.sink}: ${plural(s.in_doubt, "part")} in doubt${s.failures ? `, ${plural(s.failures, "failure")} in a row` : ""}. ${s.error || ""}`}
    next="Nothing is lost: what a complete snapshot names is committed when the sink can be reached." />`);
}

// What has been seen of each stage since this page was opened.
function useSamples(seen) {
  const kept = useRef(new Map());
  return useMemo(() => {
    if (!seen || !seen.sampled) return kept.current;
    const next = new Map();
    for (const s of seen.stages) {
      const old = kept.current.get(s.uid) || { time: [], rate: [], batch: [], lag: [], state: [] };
      const add = (list, value) => [...list.slice(-SAMPLES), value ?? 0];
      const f = s.figures;
      next.set(s.uid, { time: add(old.time, seen.sampled), rate: add(old.rate, f.rows_per_second), batch: add(old.batch, f.batch_ms),
        lag: add(old.lag, f.lag_rows), state: add(old.state, f.state_rows) });
    }
    kept.current = next;
    return next;
  }, [seen]);
}

function Actions({ seen, session, give }) {
  const job = seen.job.name, at = `/jobs/${part(job)}`;
  const off = session.read_only || !seen.job.live;
  const place = (v) => (v.directory ? { directory: v.directory } : {});
  const orders = {
    Checkpoint: { title: "Take a checkpoint", verb: "Take it", does: "A barrier goes through the whole graph, and every stage records its state. The job runs on.",
      command: () => `strobe checkpoint ${job}`, act: () => post(`${at}/checkpoint`),
      show: ({ done: d }) => html`Checkpoint <a href=${`#/job/${part(job)}/snapshots/${d.snapshot}`}>${d.snapshot}</a> is complete: ${ms(d.duration_ms)}, new ${bytes(d.bytes_new)} of ${bytes(d.bytes_total)}.` },
    Savepoint: { title: "Take a savepoint", verb: "Take it", does: "Copies everything that the job is, rows in flight included, to a place of its own. The job runs on.",
      fields: [{ name: "directory", label: "Where to (absolute, new or empty)", hint: "below the job's home" }],
      command: (v) => `strobe savepoint ${job}${v.directory ? ` ${v.directory}` : ""}`, act: (v) => post(`${at}/savepoint`, place(v)), show: saved },
    Stop: { title: "Stop with a savepoint", verb: "Stop it", danger: true, does: "Takes a savepoint after which no stage does anything more, then ends the job. If the savepoint fails, the job goes on.",
      fields: [{ name: "drain", kind: "choice", label: "Drain: let the sources end and everything run through first, to the end of event time" },
        { name: "directory", label: "Where to (absolute, new or empty)", hint: "below the job's home" }],
      command: (v) => `strobe stop ${job}${v.directory ? ` --savepoint ${v.directory}` : ""}${v.drain ? " --drain" : ""}`,
      act: (v) => post(`${at}/stop`, { ...place(v), drain: !!v.drain }), show: saved },
    Cancel: { title: "Cancel the job", verb: "Cancel it", danger: true, does: "Ends the job now, whatever is under way. What it has done stays, and a later run resumes it.",
      fields: [{ name: "remove", kind: "choice", label: "Delete its checkpoints, too (savepoints always stay)" }],
      command: (v) => `strobe cancel ${job}${v.remove ? " --delete" : ""}`, act: (v) => post(`${at}/cancel`, v.remove ? { retention: "delete" } : {}),
      show: ({ done: d }) => html`${job} is ${d.state}.` },
  };
  return html`<div class="actions" role="group" aria-label="Orders">${Object.entries(orders).map(([name, o]) => html`<button disabled=${off} class=${o.danger ? "danger" : ""}
    title=${session.read_only ? "This page is read-only." : seen.job.live ? o.does : "The job is not running."} onClick=${() => give(o)}>${name}</button>`)}</div>`;
}

function saved({ done: d }) {
  return html`Savepoint ${d.snapshot} is complete: ${bytes(d.bytes_total)}, ${count(d.rows_in_flight)} rows in flight.
    <dl class="facts"><dt>at</dt><dd><code>${d.path}</code></dd><dt>root</dt><dd><code>${d.root}</code></dd></dl>`;
}
